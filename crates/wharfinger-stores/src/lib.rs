//! Object stores behind one trait, with what each store can enforce by itself.

pub mod azure;
pub mod disk;
mod faulty;
pub mod gcs;
mod http;
pub mod key_sources;
mod parts;
pub mod s3;
mod skew;
mod store_config;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{ObjectKey, encode_part};

pub use faulty::FaultyBlobs;
pub use parts::{MultipartStore, Part, PartGrant, PartLimits, UnfinishedUpload};
pub use store_config::StoreConfig;

use wharfinger_calls::faults::InjectedFault;

#[derive(Clone, Debug, thiserror::Error)]
pub enum BlobError {
    /// The store said clearly that the object is absent. Every doubt is another error.
    #[error("the store has no such object or multipart upload")]
    NotFound,
    /// The object has changed, or it exists although the call creates only.
    #[error("the object was changed")]
    Changed,
    /// The store was not reached, is overloaded, or its answer was lost. A retry may help.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store refused, or the request cannot be right. A retry does not help.
    #[error("the store refused: {0}")]
    Refused(String),
}

impl BlobError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, BlobError::Unavailable(_))
    }
}

impl From<InjectedFault> for BlobError {
    fn from(injected: InjectedFault) -> Self {
        BlobError::Unavailable(injected.to_string())
    }
}

/// What the store itself enforces on a signed upload. Confirm checks the size, and the checksum if the store does not.
/// Nothing checks the content type: downloads get the announced one. A later overwrite changes the pinned ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    pub enforces_size: bool,
    pub enforces_content_type: bool,
    pub enforces_checksum: bool,
    pub create_only: bool,
    /// After a file has ended, the store rejects uploads to it although their URL has not expired. After an upload in parts
    /// was aborted, it joins none of them.
    pub rejects_ended_files: bool,
    /// The store keeps older versions of overwritten and deleted objects. A delete removes those too.
    pub versioned: bool,
    pub delete_batch_max: usize,
}

impl Capabilities {
    fn named(&self) -> [(bool, &'static str); 5] {
        [
            (self.enforces_size, "size"),
            (self.enforces_content_type, "content type"),
            (self.enforces_checksum, "checksum"),
            (self.create_only, "create-only"),
            (self.rejects_ended_files, "no upload after a file has ended"),
        ]
    }

    /// The names of what the store enforces.
    pub fn enforced(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|(is_enforced, _)| *is_enforced).map(|(_, name)| name).collect()
    }

    /// The names of what the store does not enforce.
    pub fn not_enforced(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|(is_enforced, _)| !*is_enforced).map(|(_, name)| name).collect()
    }
}

/// Permission for one upload.
#[derive(Clone, Debug)]
pub struct PutGrant {
    pub key: ObjectKey,
    pub size: u64,
    pub content_type: Option<String>,
    pub checksum_sha256: Option<String>,
    pub lifetime: UrlLifetime,
}

/// When a URL is signed and when it expires, by the program's clock. A remote store signs for the same duration, from
/// its own clock's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlLifetime {
    pub signed_at: UnixMs,
    pub expires_at: UnixMs,
}

impl UrlLifetime {
    /// At least one second: no store signs for less.
    pub fn duration(self) -> Duration {
        let left_ms = u64::try_from(self.expires_at.saturating_sub(self.signed_at)).unwrap_or(0);
        Duration::from_secs(left_ms.div_ceil(1_000).max(1))
    }
}

/// Permission for one download.
#[derive(Clone, Debug)]
pub struct GetGrant {
    pub key: ObjectKey,
    /// The version to download. S3, Azure and GCS check it only where it has a version id.
    pub pin: Pin,
    pub content_type: Option<String>,
    pub file_name: String,
    pub disposition: Disposition,
    pub lifetime: UrlLifetime,
}

/// What a browser does with a download.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disposition {
    /// It saves the file.
    #[default]
    Attachment,
    /// It shows the file. Only for types that it cannot run.
    Inline,
}

impl Disposition {
    /// The `Content-Disposition` with the file's name (RFC 6266).
    pub fn header(self, file_name: &str) -> String {
        let word = match self {
            Disposition::Attachment => "attachment",
            Disposition::Inline => "inline",
        };
        format!("{word}; filename*=UTF-8''{}", encode_part(file_name))
    }
}

impl GetGrant {
    fn content_disposition(&self) -> String {
        self.disposition.header(&self.file_name)
    }
}

/// The longest lifetime of a signed URL: the limit of S3 and Google.
pub const URL_LIFE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A request that anyone who has it can send, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRequest {
    pub method: &'static str,
    pub url: String,
    /// Headers that the client must send.
    pub headers: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    pub size: u64,
    pub etag: String,
    pub version_id: Option<String>,
    /// By the store's clock; some stores report whole seconds only. None: the store did not report it.
    pub modified_at: Option<UnixMs>,
    /// The `Content-Encoding` that the uploader set. With it, a download can differ from the stored bytes.
    pub content_encoding: Option<String>,
}

/// The encodings that make a client decode the bytes. `aws-chunked` describes only how they were sent.
pub(crate) fn effective_encoding(header: Option<&str>) -> Option<String> {
    let words = header.unwrap_or_default().split(',').map(str::trim);
    let others: Vec<&str> = words
        .filter(|word| !["", "identity", "aws-chunked"].contains(&word.to_ascii_lowercase().as_str()))
        .collect();
    (!others.is_empty()).then(|| others.join(", "))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    pub key: String,
    pub size: u64,
    /// By the store's clock.
    pub modified_at: UnixMs,
}

/// An object's bytes as they arrive.
pub type Chunks = BoxStream<'static, Result<Bytes, BlobError>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    Overwrite,
    CreateOnly,
}

/// What a probe found besides the capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// How far this machine's clock is ahead of the store's. Negative: it is behind.
    pub clock_ahead_ms: i64,
    /// Facts that the operator should know although the store works.
    pub notes: Vec<String>,
}

impl ProbeReport {
    /// The notes, and a warning about the clock as the last one.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.notes.clone();
        if self.clock_ahead_ms != 0 {
            let seconds = self.clock_ahead_ms.unsigned_abs().div_ceil(1_000);
            let word = if self.clock_ahead_ms > 0 { "ahead of" } else { "behind" };
            all.push(format!(
                "this machine's clock is {seconds} s {word} the store's clock: synchronize it with NTP"
            ));
        }
        all
    }
}

#[async_trait]
pub trait BlobStore: Send + Sync {
    /// The kind of store, as stored in `pending_cleanups.storage_type`.
    fn kind(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError>;

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError>;

    /// How long a URL can live that is signed now.
    fn url_life_max(&self) -> Duration {
        URL_LIFE_MAX
    }

    /// The newest version if no version is given.
    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError>;

    /// At most `length` bytes of the object from `start`, if it still has the pinned ETag.
    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError>;

    /// Puts a small object of the program itself. `Changed`: the mode is `CreateOnly` and the object exists. It can be
    /// our own object, after a lost answer and a retry.
    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError>;

    /// Deletes each key, with all its versions if the capabilities say `versioned`. Returns one outcome per key, in
    /// order. An absent object counts as deleted.
    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>>;

    /// Deletes objects as an ordinary client does: S3 versions and Azure snapshots are deleted only `with_older`. Where
    /// the store supports conditional deletes, an object that differs from its `ObjectMeta` is kept: `Changed`.
    async fn delete_if_unchanged(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>>;

    /// All objects under a prefix that sort after `start_after`, in the byte order of their keys.
    fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ListedObject, BlobError>>;

    /// Whether a listing can start at a key. If not, the store lists from the beginning each time, which costs time.
    fn can_start_listing_at_key(&self) -> bool {
        true
    }

    /// Makes sure that an object survives a power cut. On local disk, an object that exists may not be durable yet.
    async fn make_durable(&self, _key: &ObjectKey) -> Result<(), BlobError> {
        Ok(())
    }

    /// The store's clock, as far as it is known. Compare ages of objects with it.
    fn now(&self) -> UnixMs {
        skew::machine_time()
    }

    /// Multipart uploads, if the store supports them.
    fn multipart(&self) -> Option<&dyn MultipartStore> {
        None
    }

    /// Checks that the store can be used now; the error says why not.
    async fn check(&self) -> Result<(), BlobError>;

    /// Like [`Self::check`], but writes nothing, so that it can be called often.
    async fn is_ready(&self) -> Result<(), BlobError> {
        self.check().await
    }

    /// Tries every kind of call that the program needs, and detects what the store enforces. The error says which
    /// permission or setting is wrong. It removes its objects again.
    async fn probe(&self) -> Result<ProbeReport, BlobError> {
        self.check().await?;
        Ok(ProbeReport::default())
    }
}
