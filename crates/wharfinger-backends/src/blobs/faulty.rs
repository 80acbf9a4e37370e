//! A store whose calls go wrong where a plan says so.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use wharfinger_lifecycle::key::ObjectKey;

use super::{BlobError, BlobStore, Caps, GetGrant, Listed, ObjectMeta, PutGrant, SignedRequest};
use crate::faults::Faults;

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

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta, BlobError> {
        self.faults.around("head", self.inner.head(key)).await
    }

    async fn get(
        &self,
        key: &ObjectKey,
        etag: &str,
        start: u64,
        length: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        self.faults.around("get", self.inner.get(key, etag, start, length)).await
    }

    /// One key after the other, so that a plan can hit each of them.
    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        let mut outcomes = Vec::with_capacity(keys.len());
        for key in keys {
            let delete = async {
                let mut outcome = self.inner.delete_many(std::slice::from_ref(key)).await;
                outcome.pop().unwrap_or_else(|| Err(BlobError::Unavailable("no outcome".into())))
            };
            outcomes.push(self.faults.around("delete", delete).await);
        }
        outcomes
    }

    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>> {
        self.inner.list(prefix, start_after)
    }

    async fn make_durable(&self, key: &ObjectKey) -> Result<(), BlobError> {
        self.faults.around("make durable", self.inner.make_durable(key)).await
    }

    async fn check(&self) -> Result<(), BlobError> {
        self.inner.check().await
    }
}
