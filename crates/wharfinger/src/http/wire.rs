//! JSON types of requests and answers: camelCase names, times as RFC 3339.

mod cleanups;
pub mod downloads;
mod keys;
mod notifications;
pub mod policies;
mod releases;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use wharfinger_catalog::{ChunkRow, HistoryLine};
use wharfinger_lifecycle::file::{File, UploadRequest};
use wharfinger_lifecycle::id::BatchId;
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quota::Quota;
use wharfinger_lifecycle::retention::deletion_at;
use wharfinger_lifecycle::stage::{self, Stage};
use wharfinger_lifecycle::text_status::TextStatus;

pub use cleanups::{CleanupStatusView, CleanupView, CleanupsView};
pub use keys::{KeyView, KeysView};
pub use notifications::{NotificationView, NotificationsView};
pub use releases::ReleaseRequest;

use super::extract::page_limit;
use super::problem::Problem;
use crate::batches::BatchGrant;
use crate::batches::complete::Completion;
use crate::clock::rfc3339;
use crate::core::FileOutcome;
use crate::pipeline::search::Hit;
use crate::uploads::init::{Grant, GrantedPart, UploadMethod};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitRequest {
    /// A name, not a path.
    #[schema(example = "report.pdf")]
    file_name: String,
    /// The exact number of bytes that will be uploaded.
    #[schema(example = 12_345, minimum = 0)]
    size: u64,
    #[schema(example = "application/pdf")]
    content_type: Option<String>,
    /// Lower-case hex.
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    checksum_sha256: Option<String>,
    /// Adds the file to this active batch.
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: Option<String>,
    /// Any JSON object of the client, at most 16 KiB.
    #[schema(value_type = Option<BTreeMap<String, Value>>, example = json!({"order": 4711}))]
    metadata: Option<Box<RawValue>>,
    /// The stages for this file: some of the configured ones (PIPELINE_STAGES), in any order. A configured `scan` cannot be
    /// left out. Default: all.
    #[serde(default, deserialize_with = "stage_list")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["scan", "extract"]))]
    stages: Option<Vec<Stage>>,
}

/// Reads the words itself, so that an error names the field and not its item.
fn stage_list<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<Stage>>, D::Error> {
    let words = Option::<Vec<String>>::deserialize(from)?;
    let parsed = words.map(|words| words.iter().map(|word| stage::parse(word)).collect());
    parsed.transpose().map_err(D::Error::custom)
}

impl InitRequest {
    pub fn into_upload_request(self) -> Result<(UploadRequest, Option<BatchId>), Problem> {
        let InitRequest { file_name, size, content_type, checksum_sha256, batch_id, metadata, stages } = self;
        let batch = batch_id.map(|id| id.parse()).transpose();
        let batch = batch.map_err(|_| Problem::invalid("batchId", "is not the id of a batch"))?;
        let file = BatchFileRequest { file_name, size, content_type, checksum_sha256, metadata, stages };
        Ok((file.into(), batch))
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchRequest {
    /// At most 10,000 files. More can be added by init with `batchId`.
    pub files: Vec<BatchFileRequest>,
}

/// One file of a batch, with the same fields as in init.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchFileRequest {
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = 12_345, minimum = 0)]
    size: u64,
    #[schema(example = "application/pdf")]
    content_type: Option<String>,
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    checksum_sha256: Option<String>,
    #[schema(value_type = Option<BTreeMap<String, Value>>, example = json!({"order": 4711}))]
    metadata: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "stage_list")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["scan", "extract"]))]
    stages: Option<Vec<Stage>>,
}

impl From<BatchFileRequest> for UploadRequest {
    fn from(file: BatchFileRequest) -> Self {
        UploadRequest {
            name: file.file_name,
            size: file.size,
            content_type: file.content_type,
            checksum_sha256: file.checksum_sha256,
            metadata: file.metadata.map(|raw| raw.get().to_owned()).filter(|text| text != "null"),
            stages: file.stages,
        }
    }
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfirmRequest {
    /// Lower-case hex. The server reads the object to compare it, unless the store has checked it.
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub checksum_sha256: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetQuotaRequest {
    /// Bytes.
    #[schema(example = 10_737_418_240_u64)]
    pub limit: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "registered")]
    status: &'static str,
    /// Absent if the file is in no batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://files.example.com/blobs/uploads/acme/ada/01a1ddbc?expires=…&signature=…")]
    upload_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "PUT")]
    method: Option<&'static str>,
    /// Send these with the upload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, Value>>, example = json!({"content-type": "application/pdf"}))]
    headers: Option<serde_json::Map<String, serde_json::Value>>,
    /// For large files, instead of `uploadUrl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    multipart: Option<MultipartView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "2026-11-15T06:44:37.622Z")]
    expires_at: Option<String>,
}

/// PUT each part's bytes to its URL, in any order, in parallel, and again after an error. Then confirm.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MultipartView {
    /// The size of every part except the last, which has the remaining bytes.
    #[schema(example = 16_777_216)]
    part_size: u64,
    parts: Vec<PartView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartView {
    #[schema(example = 1)]
    number: u32,
    #[schema(example = "https://objects.example.com/uploads/acme/ada/01a1ddbc?partNumber=1&signature=…")]
    url: String,
    #[schema(example = 16_777_216)]
    size: u64,
    /// The store already has this part. It does not need to be sent again.
    uploaded: bool,
}

impl From<GrantedPart> for PartView {
    fn from(part: GrantedPart) -> Self {
        PartView { number: part.number, url: part.url, size: part.size, uploaded: part.uploaded }
    }
}

impl From<Grant> for GrantView {
    fn from(grant: Grant) -> Self {
        let mut view = GrantView {
            file_id: grant.file.id.to_string(),
            status: grant.file.status.as_str(),
            batch_id: grant.file.batch.map(|batch| batch.to_string()),
            upload_url: None,
            method: None,
            headers: None,
            multipart: None,
            expires_at: None,
        };
        let Some(upload) = grant.upload else { return view };
        view.expires_at = Some(rfc3339(upload.expires_at));
        match upload.method {
            UploadMethod::SinglePut(request) => {
                view.upload_url = Some(request.url);
                view.method = Some(request.method);
                view.headers = Some(request.headers.into_iter().map(|(n, v)| (n, v.into())).collect());
            }
            UploadMethod::Multipart { part_size, parts } => {
                view.method = Some("PUT");
                let parts = parts.into_iter().map(PartView::from).collect();
                view.multipart = Some(MultipartView { part_size, parts });
            }
        }
        view
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchView {
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: String,
    #[schema(example = "active")]
    status: &'static str,
    /// When the batch expires and its unconfirmed files are removed.
    #[schema(example = "2026-11-15T06:44:37.622Z")]
    expires_at: String,
    files: Vec<GrantView>,
}

impl From<BatchGrant> for BatchView {
    fn from(BatchGrant { batch, files }: BatchGrant) -> Self {
        BatchView {
            batch_id: batch.id.to_string(),
            status: batch.status.as_str(),
            expires_at: rfc3339(batch.expires_at),
            files: files.into_iter().map(GrantView::from).collect(),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BatchCompletionView {
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: String,
    #[schema(example = "completed")]
    status: &'static str,
    #[schema(example = "2026-11-15T06:44:37.622Z")]
    expires_at: String,
    files: Vec<OutcomeView>,
}

impl From<Completion> for BatchCompletionView {
    fn from(Completion { batch, files }: Completion) -> Self {
        BatchCompletionView {
            batch_id: batch.id.to_string(),
            status: batch.status.as_str(),
            expires_at: rfc3339(batch.expires_at),
            files: files.into_iter().map(OutcomeView::from).collect(),
        }
    }
}

/// The status of a file of a batch. `code` and `detail` say why it cannot be confirmed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "ready")]
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "object_missing")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "The object has not been uploaded.")]
    detail: Option<String>,
}

impl From<FileOutcome> for OutcomeView {
    fn from(file: FileOutcome) -> Self {
        let (code, detail) = file.problem.map(|problem| Problem::from(problem).brief()).unzip();
        OutcomeView { file_id: file.id.to_string(), status: file.status.as_str(), code, detail }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    pub file_id: String,
    #[schema(example = "ready")]
    pub status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = 52_417)]
    size: u64,
    #[schema(example = "application/pdf")]
    content_type: Option<String>,
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    checksum_sha256: Option<String>,
    #[schema(example = "ready")]
    status: &'static str,
    #[schema(example = 1)]
    retry_count: u32,
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: Option<String>,
    #[schema(example = "the file is encrypted")]
    error: Option<String>,
    /// `extracted`, or `none` if the file has no text to search. Null until the extract stage has finished, and for a file
    /// without that stage.
    #[schema(example = "extracted")]
    text_status: Option<&'static str>,
    /// The stages of the file. Null before the confirm, if none were chosen at init.
    #[schema(example = json!(["scan", "extract", "chunk", "embed"]))]
    stages: Option<Vec<&'static str>>,
    #[schema(value_type = Option<BTreeMap<String, Value>>, example = json!({"order": 4711}))]
    metadata: Option<Box<RawValue>>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    created_at: String,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    updated_at: String,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    confirmed_at: Option<String>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    ready_at: Option<String>,
    /// When a failed or quarantined file will be deleted, at the earliest. Its owner is warned before. Absent for other files,
    /// and if quarantined files are kept for ever (QUARANTINE_RETENTION_DAYS=0).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "2027-02-13T05:44:37.622Z")]
    deletion_date: Option<String>,
    /// `true` if the file's text was cut (DERIVED_MAX_FACTOR), otherwise absent. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = true)]
    pub(super) text_truncated: Option<bool>,
}

impl FileView {
    pub fn new(file: File, plan: &PipelinePlan) -> FileView {
        let deletion_date = deletion_at(&file, plan).map(rfc3339);
        FileView {
            file_id: file.id.to_string(),
            file_name: file.name,
            size: file.size,
            content_type: file.content_type,
            checksum_sha256: file.checksum_sha256,
            status: file.status.as_str(),
            retry_count: file.retry_count,
            batch_id: file.batch.map(|batch| batch.to_string()),
            error: file.error,
            text_status: file.text_status.map(TextStatus::as_str),
            stages: file.stages.map(|stages| stages.into_iter().map(Stage::as_str).collect()),
            metadata: file.metadata.and_then(|text| RawValue::from_string(text).ok()),
            created_at: rfc3339(file.created_at),
            updated_at: rfc3339(file.updated_at),
            confirmed_at: file.confirmed_at.map(rfc3339),
            ready_at: file.ready_at.map(rfc3339),
            deletion_date,
            text_truncated: None,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesView {
    pub files: Vec<FileView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryView {
    pub events: Vec<HistoryLineView>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryLineView {
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    at: String,
    #[schema(example = "uploaded")]
    from: Option<&'static str>,
    #[schema(example = "queued")]
    to: &'static str,
    #[schema(example = "confirmed")]
    reason: String,
    #[schema(example = "user:ada")]
    actor: String,
}

impl From<HistoryLine> for HistoryLineView {
    fn from(line: HistoryLine) -> Self {
        HistoryLineView {
            at: rfc3339(line.at),
            from: line.from.map(|status| status.as_str()),
            to: line.to.as_str(),
            reason: line.reason,
            actor: line.actor,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChunksView {
    pub chunks: Vec<ChunkView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkView {
    #[schema(example = 12)]
    pub ordinal: u64,
    #[schema(example = "The lighthouse owner signed for forty crates of coffee.")]
    pub text: String,
    #[schema(example = 1_024)]
    pub start: u64,
    #[schema(example = 1_081)]
    pub end: u64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    #[schema(example = "who signed for the coffee")]
    query: String,
    /// 1 to 1000. Default: 50.
    #[schema(example = 5)]
    limit: Option<usize>,
}

impl SearchRequest {
    pub fn into_checked(self) -> Result<(String, usize), Problem> {
        if self.query.trim().is_empty() {
            return Err(Problem::invalid("query", "must not be empty"));
        }
        let limit = page_limit(self.limit)?;
        Ok((self.query, limit))
    }
}

impl From<ChunkRow> for ChunkView {
    fn from(chunk: ChunkRow) -> Self {
        ChunkView { ordinal: chunk.ordinal, text: chunk.text, start: chunk.start, end: chunk.end }
    }
}

impl From<Hit> for HitView {
    fn from(hit: Hit) -> Self {
        HitView {
            file_id: hit.file.to_string(),
            file_name: hit.file_name,
            ordinal: hit.ordinal,
            text: hit.text,
            score: f64::from(hit.score),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct HitsView {
    pub hits: Vec<HitView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HitView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    pub file_id: String,
    #[schema(example = "report.pdf")]
    pub file_name: String,
    #[schema(example = 12)]
    pub ordinal: u64,
    #[schema(example = "The lighthouse owner signed for forty crates of coffee.")]
    pub text: String,
    #[schema(example = 0.71)]
    pub score: f64,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct QuotaView {
    #[schema(example = "acme")]
    tenant: String,
    /// All charged bytes.
    #[schema(example = 52_417)]
    used: u64,
    #[schema(example = 10_737_418_240_u64)]
    limit: u64,
    /// The part of `used` for unconfirmed files, and for deleted files whose upload URL is still valid.
    #[schema(example = 0)]
    reserved: u64,
}

impl QuotaView {
    pub fn new(tenant: &str, quota: Quota) -> QuotaView {
        QuotaView {
            tenant: tenant.to_owned(),
            used: quota.used_bytes,
            limit: quota.limit_bytes,
            reserved: quota.reserved_bytes,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantsView {
    pub tenants: Vec<QuotaView>,
    #[schema(example = "acme")]
    pub next_cursor: Option<String>,
}
