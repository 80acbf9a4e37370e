//! A store whose calls go wrong where a plan says so.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{DERIVED, ObjectKey};

use super::{
    BlobError, BlobStore, Caps, Chunks, GetGrant, Listed, ObjectMeta, Part, PartGrant, PartLimits, PartStore,
    Probed, PutGrant, SignedRequest, Unfinished, WriteMode,
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

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.faults.around("sign put", self.inner.sign_put(grant)).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        self.faults.around("sign get", self.inner.sign_get(grant)).await
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

    /// One key after the other, so that a plan can hit each of them.
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

    async fn delete_seen(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        let mut outcomes = Vec::with_capacity(seen.len());
        for one in seen {
            let delete = async {
                let mut outcome = self.inner.delete_seen(std::slice::from_ref(one), with_older).await;
                outcome.pop().unwrap_or_else(no_outcome)
            };
            outcomes.push(self.faults.around("delete", delete).await);
        }
        outcomes
    }

    /// Goes wrong before its first object, and is named by where it looks.
    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>> {
        let call = if prefix.starts_with(DERIVED) { "list derived" } else { "list" };
        let (faults, inner) = (self.faults.clone(), self.inner.clone());
        let (prefix, start_after) = (prefix.to_owned(), start_after.map(str::to_owned));
        stream::once(async move {
            let begin = async { Ok::<_, BlobError>(inner.list(&prefix, start_after.as_deref())) };
            faults.around(call, begin).await
        })
        .try_flatten()
        .boxed()
    }

    fn lists_from_anywhere(&self) -> bool {
        self.inner.lists_from_anywhere()
    }

    async fn make_durable(&self, key: &ObjectKey) -> Result<(), BlobError> {
        self.faults.around("make durable", self.inner.make_durable(key)).await
    }

    fn now(&self) -> UnixMs {
        self.inner.now()
    }

    fn in_parts(&self) -> Option<&dyn PartStore> {
        self.inner.in_parts().map(|_| self as &dyn PartStore)
    }

    async fn check(&self) -> Result<(), BlobError> {
        self.inner.check().await
    }

    async fn is_ready(&self) -> Result<(), BlobError> {
        self.inner.is_ready().await
    }

    async fn probe(&self) -> Result<Probed, BlobError> {
        self.inner.probe().await
    }
}

fn no_outcome() -> Result<(), BlobError> {
    Err(BlobError::Unavailable("no outcome".into()))
}

impl FaultyBlobs {
    fn inner_parts(&self) -> Result<&dyn PartStore, BlobError> {
        self.inner.in_parts().ok_or_else(|| BlobError::Refused("no uploads in parts".into()))
    }
}

#[async_trait]
impl PartStore for FaultyBlobs {
    fn limits(&self) -> PartLimits {
        self.inner.in_parts().expect("asked only where the inner store has parts").limits()
    }

    async fn begin(&self, key: &ObjectKey, content_type: Option<&str>) -> Result<String, BlobError> {
        self.faults.around("begin parts", self.inner_parts()?.begin(key, content_type)).await
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        self.inner_parts()?.sign_part(grant).await
    }

    async fn parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        self.faults.around("list parts", self.inner_parts()?.parts(key, upload_id)).await
    }

    async fn join(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError> {
        self.faults.around("join parts", self.inner_parts()?.join(key, upload_id, content_type, parts)).await
    }

    async fn abandon(&self, key: &ObjectKey) -> Result<(), BlobError> {
        self.faults.around("abandon parts", self.inner_parts()?.abandon(key)).await
    }

    async fn abandon_one(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        self.faults.around("abandon parts", self.inner_parts()?.abandon_one(key, upload_id)).await
    }

    fn unfinished(&self, prefix: &str) -> BoxStream<'static, Result<Unfinished, BlobError>> {
        self.inner.in_parts().expect("asked only where the inner store has parts").unfinished(prefix)
    }
}
