//! Wraps a store and makes its calls fail as a fault plan says.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{DERIVED, ObjectKey};

use super::{
    BlobError, BlobStore, Capabilities, Chunks, GetGrant, ListedObject, MultipartStore, ObjectMeta, Part,
    PartGrant, PartLimits, ProbeReport, PutGrant, SignedRequest, UnfinishedUpload, WriteMode,
};
use wharfinger_calls::faults::Faults;

pub struct FaultyBlobs {
    inner: Arc<dyn BlobStore>,
    faults: Faults,
}

impl FaultyBlobs {
    pub fn new(inner: Arc<dyn BlobStore>, faults: Faults) -> FaultyBlobs {
        FaultyBlobs { inner, faults }
    }
}

#[async_trait]
impl BlobStore for FaultyBlobs {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.faults.around("sign put", self.inner.sign_put(grant)).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        self.faults.around("sign get", self.inner.sign_get(grant)).await
    }

    fn url_life_max(&self) -> Duration {
        self.inner.url_life_max()
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        self.faults.around("head", self.inner.head(key, version_id)).await
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError> {
        self.faults.around("get", self.inner.get(key, pin, start, length)).await
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError> {
        self.faults.around("put", self.inner.put(key, bytes, mode)).await
    }

    /// Deletes one key at a time, so that a plan can make each of them fail.
    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        let mut outcomes = Vec::with_capacity(keys.len());
        for key in keys {
            let delete = async {
                let mut outcome = self.inner.delete_many(std::slice::from_ref(key)).await;
                outcome.pop().unwrap_or_else(no_outcome)
            };
            outcomes.push(self.faults.around("delete", delete).await);
        }
        outcomes
    }

    async fn delete_if_unchanged(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        let mut outcomes = Vec::with_capacity(seen.len());
        for one in seen {
            let delete = async {
                let mut outcome = self.inner.delete_if_unchanged(std::slice::from_ref(one), with_older).await;
                outcome.pop().unwrap_or_else(no_outcome)
            };
            outcomes.push(self.faults.around("delete", delete).await);
        }
        outcomes
    }

    /// A fault ends the listing before its first object. The call's name depends on the prefix.
    fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ListedObject, BlobError>> {
        let call = if prefix.starts_with(DERIVED) { "list derived" } else { "list" };
        let (faults, inner) = (self.faults.clone(), self.inner.clone());
        let (prefix, start_after) = (prefix.to_owned(), start_after.map(str::to_owned));
        stream::once(async move {
            let start = async { Ok::<_, BlobError>(inner.list(&prefix, start_after.as_deref())) };
            faults.around(call, start).await
        })
        .try_flatten()
        .boxed()
    }

    fn can_start_listing_at_key(&self) -> bool {
        self.inner.can_start_listing_at_key()
    }

    async fn make_durable(&self, key: &ObjectKey) -> Result<(), BlobError> {
        self.faults.around("make durable", self.inner.make_durable(key)).await
    }

    fn now(&self) -> UnixMs {
        self.inner.now()
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.inner.multipart().map(|_| self as &dyn MultipartStore)
    }

    async fn check(&self) -> Result<(), BlobError> {
        self.inner.check().await
    }

    async fn is_ready(&self) -> Result<(), BlobError> {
        self.inner.is_ready().await
    }

    async fn probe(&self) -> Result<ProbeReport, BlobError> {
        self.inner.probe().await
    }
}

fn no_outcome() -> Result<(), BlobError> {
    Err(BlobError::Unavailable("the store returned no outcome for the key".into()))
}

impl FaultyBlobs {
    fn inner_multipart(&self) -> Result<&dyn MultipartStore, BlobError> {
        self.inner.multipart().ok_or_else(|| BlobError::Refused("the store has no multipart uploads".into()))
    }
}

#[async_trait]
impl MultipartStore for FaultyBlobs {
    fn limits(&self) -> PartLimits {
        self.inner.multipart().expect("`multipart` returned this wrapper").limits()
    }

    async fn start(&self, key: &ObjectKey, content_type: Option<&str>) -> Result<String, BlobError> {
        self.faults.around("start multipart", self.inner_multipart()?.start(key, content_type)).await
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        self.inner_multipart()?.sign_part(grant).await
    }

    async fn list_parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        self.faults.around("list parts", self.inner_multipart()?.list_parts(key, upload_id)).await
    }

    async fn complete(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError> {
        let complete = self.inner_multipart()?.complete(key, upload_id, content_type, parts);
        self.faults.around("complete multipart", complete).await
    }

    async fn abort_all(&self, key: &ObjectKey) -> Result<(), BlobError> {
        self.faults.around("abort multipart", self.inner_multipart()?.abort_all(key)).await
    }

    async fn abort(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        self.faults.around("abort multipart", self.inner_multipart()?.abort(key, upload_id)).await
    }

    fn list_unfinished(&self, prefix: &str) -> BoxStream<'static, Result<UnfinishedUpload, BlobError>> {
        self.inner.multipart().expect("`multipart` returned this wrapper").list_unfinished(prefix)
    }
}
