//! Where the bytes lie. One trait for every store, with an honest account of what each can enforce.

pub mod azure;
pub mod disk;
mod faulty;
pub mod gcs;
mod http;
pub mod key_sources;
mod parts;
mod place;
pub mod s3;
mod skew;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{ObjectKey, encode_part};

pub use faulty::FaultyBlobs;
pub use parts::{Part, PartGrant, PartLimits, PartStore, Unfinished};
pub use place::BlobPlace;

use wharfinger_calls::faults::InjectedFault;

#[derive(Clone, Debug, thiserror::Error)]
pub enum BlobError {
    /// A clear "absent", never a guess.
    #[error("no such object")]
    NotFound,
    /// The object is not the one that was asked for.
    #[error("the object was changed")]
    Changed,
    /// The store could not be asked, or its answer was lost. Trying again may help.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store answered, and its answer is no.
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

/// What the store itself enforces on a signed upload. What it does not, confirm has to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    pub binds_size: bool,
    pub binds_content_type: bool,
    pub binds_checksum: bool,
    pub create_only: bool,
    /// An upload for a file that has ended is refused although its URL has not expired.
    pub refuses_ended: bool,
    /// What is overwritten or deleted is kept as an older version, and deleting takes those too.
    pub versioned: bool,
    pub delete_batch_max: usize,
}

impl Caps {
    fn of_uploads(&self) -> [(bool, &'static str); 5] {
        [
            (self.binds_size, "size"),
            (self.binds_content_type, "content type"),
            (self.binds_checksum, "checksum"),
            (self.create_only, "create-only"),
            (self.refuses_ended, "the end of a file"),
        ]
    }

    /// What the store itself refuses, in words.
    pub fn enforced(&self) -> Vec<&'static str> {
        self.of_uploads().into_iter().filter(|(held, _)| *held).map(|(_, name)| name).collect()
    }

    /// What it lets pass, and somebody has to find out later.
    pub fn left_to_confirm(&self) -> Vec<&'static str> {
        self.of_uploads().into_iter().filter(|(held, _)| !*held).map(|(_, name)| name).collect()
    }
}

/// One upload that may happen.
#[derive(Clone, Debug)]
pub struct PutGrant {
    pub key: ObjectKey,
    pub size: u64,
    pub content_type: Option<String>,
    pub checksum_sha256: Option<String>,
    pub life: UrlLife,
}

/// When a URL is signed and when it dies, by the program's clock. A store with a clock of its own signs for as
/// long by that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlLife {
    pub signed_at: UnixMs,
    pub expires_at: UnixMs,
}

impl UrlLife {
    /// At least a second: no store signs for less.
    pub fn duration(self) -> Duration {
        let left_ms = u64::try_from(self.expires_at.saturating_sub(self.signed_at)).unwrap_or(0);
        Duration::from_secs(left_ms.div_ceil(1_000).max(1))
    }
}

/// One download that may happen.
#[derive(Clone, Debug)]
pub struct GetGrant {
    pub key: ObjectKey,
    /// The download is of these very bytes or fails.
    pub pin: Pin,
    pub content_type: Option<String>,
    pub file_name: String,
    pub life: UrlLife,
}

impl GetGrant {
    /// The header with which a browser saves the file under its name.
    fn disposition(&self) -> String {
        format!("attachment; filename*=UTF-8''{}", encode_part(&self.file_name))
    }
}

/// A request that its holder can make without further rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRequest {
    pub method: &'static str,
    pub url: String,
    /// What the holder must send with it.
    pub headers: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    pub size: u64,
    pub etag: String,
    pub version_id: Option<String>,
    /// By the store's own clock, in whole seconds where it tells no more; none where it does not say.
    pub modified_at: Option<UnixMs>,
    /// How the bytes are encoded, by what their uploader said. A client that downloads them may get other bytes than are stored.
    pub content_encoding: Option<String>,
}

/// An encoding that changes what a client makes of the bytes. `aws-chunked` is about how they were sent.
pub(crate) fn encoding(said: Option<&str>) -> Option<String> {
    let words = said.unwrap_or_default().split(',').map(str::trim);
    let others: Vec<&str> = words
        .filter(|word| !["", "identity", "aws-chunked"].contains(&word.to_ascii_lowercase().as_str()))
        .collect();
    (!others.is_empty()).then(|| others.join(", "))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub size: u64,
    /// By the store's own clock.
    pub modified_at: UnixMs,
}

/// An object's bytes as they come.
pub type Chunks = BoxStream<'static, Result<Bytes, BlobError>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    Overwrite,
    CreateOnly,
}

/// What a probe has to say beside the capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// How far this machine's clock is ahead of the store's.
    pub clock_ahead_ms: i64,
    /// What works but should be known.
    pub notes: Vec<String>,
}

impl Probed {
    /// All of it in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.notes.clone();
        if self.clock_ahead_ms != 0 {
            let off = self.clock_ahead_ms.unsigned_abs().div_ceil(1_000);
            let word = if self.clock_ahead_ms > 0 { "ahead of" } else { "behind" };
            all.push(format!("this machine's clock is {off} s {word} the store's: set it by NTP"));
        }
        all
    }
}

#[async_trait]
pub trait BlobStore: Send + Sync {
    /// A word for the kind of store, as it stands in `pending_cleanups.storage_type`.
    fn kind(&self) -> &'static str;

    fn caps(&self) -> Caps;

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError>;

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError>;

    /// The newest version, or the one that is asked for.
    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError>;

    /// The object's bytes from `start`, at most `length` of them, if it still has this ETag.
    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError>;

    /// Puts a small object of the program's own, over whatever is there or only where nothing is: `Changed` says
    /// that something was. That may be this very object, where the answer was lost and the call repeated.
    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError>;

    /// Deletes each key with all its versions and answers for each, in order. An absent object counts as deleted.
    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>>;

    /// Deletes objects that were seen, as any client does: older versions and what else the store keeps of them stay, or
    /// go too (S3's versions, Azure's snapshots). Where the store takes a condition, only what is still as it was seen
    /// goes: `Changed` says that it is not.
    async fn delete_seen(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>>;

    /// All objects under a prefix, in the order of their keys' bytes, after a key.
    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>>;

    /// Whether a listing that starts after a key costs nothing for what comes before it.
    fn lists_from_anywhere(&self) -> bool {
        true
    }

    /// Makes sure that an object which was seen survives a power cut, where seeing it is not enough for that.
    async fn make_durable(&self, _key: &ObjectKey) -> Result<(), BlobError> {
        Ok(())
    }

    /// The store's own clock, as far as it is known: what ages of objects are compared with.
    fn now(&self) -> UnixMs {
        skew::machine_time()
    }

    /// Uploads in parts, where the store can do that.
    fn in_parts(&self) -> Option<&dyn PartStore> {
        None
    }

    /// Whether the store can be used now; the error says why not.
    async fn check(&self) -> Result<(), BlobError>;

    /// The same without writing anything, for those who ask often.
    async fn is_ready(&self) -> Result<(), BlobError> {
        self.check().await
    }

    /// Tries everything that will be asked of the store and learns what it enforces; the error says which right
    /// or setting is wrong. Leaves nothing behind.
    async fn probe(&self) -> Result<Probed, BlobError> {
        self.check().await?;
        Ok(Probed::default())
    }
}
