//! Orphans: objects without rows, rows without objects, and abandoned uploads.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{FoundOrphan, MissingBlob, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;

use super::Shared;
use super::auth::{OperatorAuth, UserAuth};
use super::extract::{QueryParams, TenantQuery};
use super::problem::Problem;
use super::sweeps::{SweepRunView, run_by_hand};
use crate::app::App;
use crate::clock::rfc3339;
use crate::core::VerbError;
use crate::sweeps::Sweep;
use crate::sweeps::abandoned_uploads::abandoned;

const SAMPLES_MAX: usize = 20;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphansView {
    /// When the store was last compared with the catalog. Null before the first scan.
    #[schema(example = "2026-11-15T03:00:09.112Z")]
    last_scan_time: Option<String>,
    orphan_blobs: OrphanBlobsView,
    abandoned_uploads: AbandonedUploadsView,
    missing_blobs: MissingBlobsView,
}

/// Objects without a live file that the last scan found and that are not deleted yet.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanBlobsView {
    /// 100,000 means 100,000 or more.
    #[schema(example = 2)]
    count: u64,
    /// Bytes.
    #[schema(example = 1_048_583)]
    total_size: u64,
    /// The first 20 keys in their order.
    #[schema(example = json!(["uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368"]))]
    samples: Vec<String>,
    /// More about each of the samples.
    details: Vec<OrphanBlobView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanBlobView {
    #[schema(example = "uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    key: String,
    /// Null: the key names no file.
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: Option<String>,
    /// The name of the deleted file that the object belonged to. Null: no file is known.
    #[schema(example = "report.pdf")]
    file_name: Option<String>,
    #[schema(example = 52_417)]
    size: u64,
    /// Milliseconds since the object was written, by the clock of the store.
    #[schema(example = 93_600_000)]
    age: i64,
}

/// Uploads that are still not confirmed after ABANDONED_UPLOAD_THRESHOLD_MS.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbandonedUploadsView {
    #[schema(example = 1)]
    count: u64,
    /// Milliseconds since the start of the oldest. 0 if there is none.
    #[schema(example = 93_600_000)]
    oldest_age: i64,
}

/// Live files whose objects the last scan did not find in the store.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissingBlobsView {
    #[schema(example = 1)]
    count: u64,
    /// The first 20 keys in their order.
    #[schema(example = json!(["uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368"]))]
    samples: Vec<String>,
    /// More about each of the samples.
    details: Vec<MissingBlobView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissingBlobView {
    #[schema(example = "uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    key: String,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = 52_417)]
    size: u64,
    /// Milliseconds since the object was announced.
    #[schema(example = 93_600_000)]
    age: i64,
}

impl OrphanBlobView {
    fn new(FoundOrphan { blob, file_name }: FoundOrphan, store_now: UnixMs) -> OrphanBlobView {
        let file = ObjectKey::from_listing(&blob.key).ok().and_then(|key| key.file());
        OrphanBlobView {
            key: blob.key,
            file_id: file.map(|file| file.to_string()),
            file_name,
            size: blob.size,
            age: store_now.saturating_sub(blob.modified_at).max(0),
        }
    }
}

impl MissingBlobView {
    fn new(blob: MissingBlob, now: UnixMs) -> MissingBlobView {
        MissingBlobView {
            key: blob.key,
            file_id: blob.file_id,
            file_name: blob.file_name,
            size: blob.size,
            age: now.saturating_sub(blob.created_at).max(0),
        }
    }
}

/// Show orphans
#[utoipa::path(
    get, path = "/api/v2/uploads/orphans", tag = "maintenance", operation_id = "orphans",
    params(TenantQuery),
    responses(
        (status = 200, body = OrphansView,
            description = "What the last scan found in the caller's scope and is still so. The scan may have been a dry run"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Json<OrphansView>, Problem> {
    Ok(Json(orphans_in(&app, &query.scope(&caller)?).await?))
}

/// Scan for orphans now
#[utoipa::path(
    post, path = "/api/v2/uploads/orphans/scan", tag = "maintenance", operation_id = "scanOrphans",
    responses(
        (status = 200, body = SweepRunView,
            description = "A dry run of `orphan-cleanup` has ended. Nothing was deleted. `GET /api/v2/uploads/orphans` shows \
                what it found. `error` says what it could not compare"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
        (status = 409, body = Problem,
            description = "`sweep_running`: another process is scanning, or deleting orphans"),
    ),
)]
pub(super) async fn scan(
    State(app): State<Shared>,
    OperatorAuth(caller): OperatorAuth,
) -> Result<Json<SweepRunView>, Problem> {
    Ok(Json(run_by_hand(&app, Sweep::OrphanCleanup, &caller, true).await?))
}

async fn orphans_in(app: &App, scope: &Scope) -> Result<OrphansView, VerbError> {
    let (now, store_now) = (app.core.clock.now(), app.core.blobs.now());
    let last_scan_at = app.core.catalog.last_scan_at().await?;
    let orphans = app.core.catalog.orphans(scope, SAMPLES_MAX).await?;
    let missing = app.core.catalog.missing_blobs(scope, SAMPLES_MAX).await?;
    let (abandoned, oldest_at) = app.core.catalog.count_abandoned(scope, abandoned(&app.core)).await?;
    let orphan = |found| OrphanBlobView::new(found, store_now);
    let missing_blob = |found| MissingBlobView::new(found, now);
    Ok(OrphansView {
        last_scan_time: last_scan_at.map(rfc3339),
        orphan_blobs: OrphanBlobsView {
            count: orphans.count,
            total_size: orphans.bytes,
            samples: orphans.samples.iter().map(|found| found.blob.key.clone()).collect(),
            details: orphans.samples.into_iter().map(orphan).collect(),
        },
        abandoned_uploads: AbandonedUploadsView {
            count: abandoned,
            oldest_age: oldest_at.map_or(0, |at| now.saturating_sub(at).max(0)),
        },
        missing_blobs: MissingBlobsView {
            count: missing.count,
            samples: missing.samples.iter().map(|found| found.key.clone()).collect(),
            details: missing.samples.into_iter().map(missing_blob).collect(),
        },
    })
}
