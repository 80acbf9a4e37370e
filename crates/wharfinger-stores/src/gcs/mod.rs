//! Objects in Google Cloud Storage, through its XML API. Clients use signed URLs and talk to the store directly. The
//! probe at the start detects what the store enforces.

mod call;
mod connect;
mod error;
mod list;
mod parts;
mod probe;
mod sign;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use reqwest::Method;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use crate::http::{cannot, object};
use crate::{
    BlobError, BlobStore, Capabilities, Chunks, GetGrant, ListedObject, MultipartStore, ObjectMeta,
    ProbeReport, PutGrant, SignedRequest, WriteMode,
};
use call::{Call, Client};
pub use connect::{GcsCredentials, GcsOptions};
use sign::{Signer, UnsignedRequest};

/// The XML API has no bulk delete. This is the batch size of the other stores.
const DELETE_BATCH_MAX: usize = 1_000;
const DELETE_CONCURRENCY: usize = 16;
/// If the object reappears more often than this during its delete, the delete fails and is retried later.
const DELETE_TRIES_MAX: u32 = 5;
/// The condition that the object does not exist.
const CREATE_ONLY: (&str, &str) = ("x-goog-if-generation-match", "0");

pub struct GcsStore {
    client: Arc<Client>,
}

impl GcsStore {
    /// Makes no request.
    pub fn connect(options: &GcsOptions) -> Result<GcsStore, BlobError> {
        Ok(GcsStore { client: Arc::new(connect::client(options)?) })
    }

    /// The signature covers size, type and create-only. It cannot cover the SHA-256.
    fn sign_put_at(&self, endpoint: &str, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.client.full(&grant.key)));
        let mut headers = vec![
            ("x-goog-content-length-range", format!("{},{}", grant.size, grant.size)),
            (CREATE_ONLY.0, CREATE_ONLY.1.to_owned()),
        ];
        headers.extend(grant.content_type.clone().map(|content_type| ("content-type", content_type)));
        let unsigned = self.client.unsigned_request("PUT", endpoint, &path, grant.lifetime.duration());
        let url = self.client.service.sign(&UnsignedRequest { headers: headers.clone(), ..unsigned })?;
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(SignedRequest { method: "PUT", url, headers })
    }
}

#[async_trait]
impl BlobStore for GcsStore {
    fn kind(&self) -> &'static str {
        "gcs"
    }

    fn capabilities(&self) -> Capabilities {
        // A delete removes the live generation only.
        Capabilities { versioned: false, ..self.client.features.get().capabilities(DELETE_BATCH_MAX) }
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_at(&self.client.public, grant)
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.client.full(&grant.key)));
        let mut query = vec![("response-content-disposition", grant.content_disposition())];
        query.extend(grant.content_type.clone().map(|content_type| ("response-content-type", content_type)));
        query.extend(grant.pin.version_id.clone().map(|generation| ("generation", generation)));
        let unsigned =
            self.client.unsigned_request("GET", &self.client.public, &path, grant.lifetime.duration());
        let url = self.client.service.sign(&UnsignedRequest { query, ..unsigned })?;
        Ok(SignedRequest { method: "GET", url, headers: Vec::new() })
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let object = self.client.full(key);
        let head = Call::of(Method::HEAD, &object).with_some("generation", version_id);
        match self.client.send(head).await {
            Ok(answer) => object::meta::<Signer>(answer.headers()),
            // The answer to a HEAD has no body, so the bucket may be missing. A GET shows which one it is.
            Err(error) if error.status == 404 => self.confirm_absence(&object, version_id).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError> {
        let object = self.client.full(key);
        // Without this header, Google decompresses objects that are stored as gzip.
        let get = Call::of(Method::GET, &object).header("accept-encoding", "gzip");
        let get = get.with_some("generation", pin.version_id.as_deref());
        object::get(self, &self.client, get, (key, pin), (start, length)).await
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError> {
        let object = self.client.full(key);
        let put = Call::of(Method::PUT, &object).body(bytes);
        let put = if mode == WriteMode::CreateOnly { put.create_only(CREATE_ONLY) } else { put };
        Ok(self.client.send(put).await.map(drop)?)
    }

    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        stream::iter(keys.to_vec()).map(|key| self.delete(key)).buffered(DELETE_CONCURRENCY).collect().await
    }

    async fn delete_if_unchanged(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        _with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        let delete = async |(key, meta): (ObjectKey, ObjectMeta)| {
            let object = self.client.full(&key);
            let delete =
                Call::of(Method::DELETE, &object).header_some("x-goog-if-generation-match", meta.version_id);
            object::delete_if_unchanged(self, &self.client, &key, delete).await
        };
        stream::iter(seen.to_vec()).map(delete).buffered(DELETE_CONCURRENCY).collect().await
    }

    fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ListedObject, BlobError>> {
        list::objects(&self.client, prefix, start_after)
    }

    fn now(&self) -> UnixMs {
        self.client.skew.store_now()
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        list::check(&self.client).await.map_err(|error| cannot("list the bucket", error))
    }

    async fn probe(&self) -> Result<ProbeReport, BlobError> {
        self.run_probe().await
    }
}

impl GcsStore {
    /// On a bucket that keeps versions, only a delete with a generation removes bytes.
    async fn delete(&self, key: ObjectKey) -> Result<(), BlobError> {
        let object = self.client.full(&key);
        let delete = Call::of(Method::DELETE, &object);
        if !self.client.features.get().versioned {
            return self.client.delete(delete).await;
        }
        for _ in 0..DELETE_TRIES_MAX {
            let generation = match self.head(&key, None).await {
                Ok(meta) => meta.version_id,
                Err(BlobError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.client.delete(delete.clone().with_some("generation", generation)).await?;
        }
        Err(BlobError::Unavailable("the object reappears after each delete".into()))
    }

    async fn confirm_absence(&self, object: &str, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let get =
            Call::of(Method::GET, object).with_some("generation", version_id).header("range", "bytes=0-0");
        match self.client.send(get).await {
            Err(error) if error.code != "InvalidRange" => Err(error.into()),
            _ => Err(BlobError::Unavailable("the object appeared just now".into())),
        }
    }
}
