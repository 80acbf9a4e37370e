//! Large files: uploaded in parts that can be sent side by side and again, and joined by the server itself.

use async_trait::async_trait;
use futures::stream::{BoxStream, TryStreamExt as _};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;
pub use wharfinger_lifecycle::parts::PartLimits;

use super::{BlobError, SignedRequest, UrlLife};

/// One part of an upload that may come.
#[derive(Clone, Debug)]
pub struct PartGrant {
    pub key: ObjectKey,
    pub upload_id: String,
    /// From 1.
    pub number: u32,
    pub size: u64,
    pub life: UrlLife,
}

/// A part that the store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub number: u32,
    pub size: u64,
    /// How the store knows it when the parts are joined.
    pub etag: String,
}

/// An upload that was begun and neither joined nor abandoned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    pub key: String,
    pub upload_id: String,
    /// By the store's own clock, where it says.
    pub begun_at: Option<UnixMs>,
}

#[async_trait]
pub trait PartStore: Send + Sync {
    fn limits(&self) -> PartLimits;

    /// The upload's id, by which the store knows its parts.
    async fn begin(&self, key: &ObjectKey, content_type: Option<&str>) -> Result<String, BlobError>;

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError>;

    /// The parts that have come, in order of their numbers. `NotFound`: there is no such upload any more.
    async fn parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError>;

    /// Makes the object of exactly these parts. `NotFound`: there is no such upload any more, or one of its parts
    /// is gone. An answer that is lost may mean that the object is there; so may `NotFound`, where the call was
    /// repeated after that.
    async fn join(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError>;

    /// Ends every unfinished upload of this key and frees its parts. None is as good as ended.
    async fn abandon(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let uploads: Vec<Unfinished> = self.unfinished(key.as_str()).try_collect().await?;
        for upload in uploads.iter().filter(|upload| upload.key == key.as_str()) {
            self.abandon_one(key, &upload.upload_id).await?;
        }
        Ok(())
    }

    /// Ends one unfinished upload, as another one of the same key may still be wanted.
    async fn abandon_one(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError>;

    /// Every unfinished upload under a prefix, each once, in an order of the store's own: Ceph puts `a-` before
    /// `a`.
    fn unfinished(&self, prefix: &str) -> BoxStream<'static, Result<Unfinished, BlobError>>;
}
