//! Multipart uploads of large files: clients send the parts, and the server completes the upload.

use async_trait::async_trait;
use futures::stream::{BoxStream, TryStreamExt as _};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;
pub use wharfinger_lifecycle::parts::PartLimits;

use super::{BlobError, SignedRequest, UrlLifetime};

/// Permission to upload one part.
#[derive(Clone, Debug)]
pub struct PartGrant {
    pub key: ObjectKey,
    pub upload_id: String,
    /// From 1.
    pub number: u32,
    /// Where the part starts in the object. Only local disk needs it.
    pub offset: u64,
    pub size: u64,
    pub lifetime: UrlLifetime,
}

/// A part that the store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub number: u32,
    pub size: u64,
    /// Identifies the part when the upload is completed.
    pub etag: String,
}

/// An upload that was started, and neither completed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedUpload {
    pub key: String,
    pub upload_id: String,
    /// By the store's clock. None: the store does not report it.
    pub started_at: Option<UnixMs>,
}

#[async_trait]
pub trait MultipartStore: Send + Sync {
    fn limits(&self) -> PartLimits;

    /// Starts an upload and returns its id.
    async fn start(&self, key: &ObjectKey, content_type: Option<&str>) -> Result<String, BlobError>;

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError>;

    /// The parts that have arrived, in the order of their numbers. `NotFound`: the upload does not exist any more.
    async fn list_parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError>;

    /// Creates the object from exactly these parts. `NotFound`: the upload or one of its parts does not exist any more.
    ///
    /// After a lost answer the object may exist. After a retry, `NotFound` can mean the same.
    async fn complete(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError>;

    /// Aborts every unfinished upload of this key and frees the parts. It is no error if there is none.
    async fn abort_all(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let uploads: Vec<UnfinishedUpload> = self.list_unfinished(key.as_str()).try_collect().await?;
        for upload in uploads.iter().filter(|upload| upload.key == key.as_str()) {
            self.abort(key, &upload.upload_id).await?;
        }
        Ok(())
    }

    /// Aborts one upload and keeps other uploads of the same key.
    async fn abort(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError>;

    /// Every unfinished upload under a prefix, once each. The order depends on the store: Ceph lists `a-` before `a`.
    fn list_unfinished(&self, prefix: &str) -> BoxStream<'static, Result<UnfinishedUpload, BlobError>>;
}
