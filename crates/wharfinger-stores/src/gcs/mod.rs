//! Blobs in Google Cloud Storage, by its XML API. Clients upload and download by URLs that are signed here and go
//! straight to the store; how much of a grant the store enforces is tried out at the start.

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

use crate::http::{doing, object};
use crate::{
    BlobError, BlobStore, Caps, Chunks, GetGrant, Listed, ObjectMeta, PartStore, Probed, PutGrant,
    SignedRequest, WriteMode,
};
use call::{Call, Client};
pub use connect::{GcsCredentials, GcsOptions};
use sign::{Signer, Unsigned};

/// There is no bulk delete in the XML API; as many are asked for in one go as elsewhere.
const DELETE_BATCH_MAX: usize = 1_000;
const DELETES_AT_ONCE: usize = 16;
/// A key whose object comes back more often while it is being deleted is left for another time.
const DELETE_TURNS_MAX: u32 = 5;
/// An object is put only where there is none: no generation of it.
const CREATE_ONLY: (&str, &str) = ("x-goog-if-generation-match", "0");

pub struct GcsStore {
    client: Arc<Client>,
}

impl GcsStore {
    /// Talks to nobody yet.
    pub fn connect(options: &GcsOptions) -> Result<GcsStore, BlobError> {
        Ok(GcsStore { client: Arc::new(connect::client(options)?) })
    }

    /// A PUT of as many bytes of this type, where nothing is. The SHA-256 cannot be bound.
    fn sign_put_at(&self, endpoint: &str, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.client.full(&grant.key)));
        let mut headers = vec![
            ("x-goog-content-length-range", format!("{},{}", grant.size, grant.size)),
            (CREATE_ONLY.0, CREATE_ONLY.1.to_owned()),
        ];
        headers.extend(grant.content_type.clone().map(|content_type| ("content-type", content_type)));
        let unsigned = self.client.unsigned("PUT", endpoint, &path, grant.life.duration());
        let url = self.client.service.sign(&Unsigned { headers: headers.clone(), ..unsigned })?;
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(SignedRequest { method: "PUT", url, headers })
    }
}

#[async_trait]
impl BlobStore for GcsStore {
    fn kind(&self) -> &'static str {
        "gcs"
    }

    fn caps(&self) -> Caps {
        // Only the live generation is deleted.
        Caps { versioned: false, ..self.client.learned.get().caps(DELETE_BATCH_MAX) }
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_at(&self.client.public, grant)
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.client.full(&grant.key)));
        let mut query = vec![("response-content-disposition", grant.disposition())];
        query.extend(grant.content_type.clone().map(|content_type| ("response-content-type", content_type)));
        query.extend(grant.pin.version_id.clone().map(|generation| ("generation", generation)));
        let unsigned = self.client.unsigned("GET", &self.client.public, &path, grant.life.duration());
        let url = self.client.service.sign(&Unsigned { query, ..unsigned })?;
        Ok(SignedRequest { method: "GET", url, headers: Vec::new() })
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let object = self.client.full(key);
        let head = Call::of(Method::HEAD, &object).with_some("generation", version_id);
        match self.client.send(head).await {
            Ok(answer) => object::meta::<Signer>(answer.headers()),
            // Without a body it may as well be the bucket that is missing: asked again in a way that tells.
            Err(failure) if failure.status == 404 => self.tell_absent(&object, version_id).await,
            Err(failure) => Err(failure.into()),
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
        // Without this, Google unpacks what was stored as gzip.
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
        stream::iter(keys.to_vec()).map(|key| self.delete(key)).buffered(DELETES_AT_ONCE).collect().await
    }

    async fn delete_seen(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        _with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        let delete = async |(key, meta): (ObjectKey, ObjectMeta)| {
            let object = self.client.full(&key);
            let delete =
                Call::of(Method::DELETE, &object).header_some("x-goog-if-generation-match", meta.version_id);
            object::delete_seen(self, &self.client, &key, delete).await
        };
        stream::iter(seen.to_vec()).map(delete).buffered(DELETES_AT_ONCE).collect().await
    }

    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>> {
        list::objects(&self.client, prefix, start_after)
    }

    fn now(&self) -> UnixMs {
        self.client.skew.store_now()
    }

    fn in_parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        list::first(&self.client).await.map_err(|error| doing("list the bucket", error))
    }

    async fn probe(&self) -> Result<Probed, BlobError> {
        self.find_out().await
    }
}

impl GcsStore {
    /// On a bucket that keeps versions, only a delete that names the generation takes the bytes.
    async fn delete(&self, key: ObjectKey) -> Result<(), BlobError> {
        let object = self.client.full(&key);
        let delete = Call::of(Method::DELETE, &object);
        if !self.client.learned.get().versioned {
            return self.client.delete(delete).await;
        }
        for _ in 0..DELETE_TURNS_MAX {
            let generation = match self.head(&key, None).await {
                Ok(meta) => meta.version_id,
                Err(BlobError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.client.delete(delete.clone().with_some("generation", generation)).await?;
        }
        Err(BlobError::Unavailable("the object comes back each time it is deleted".into()))
    }

    async fn tell_absent(&self, object: &str, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let get =
            Call::of(Method::GET, object).with_some("generation", version_id).header("range", "bytes=0-0");
        match self.client.send(get).await {
            Err(failure) if failure.code != "InvalidRange" => Err(failure.into()),
            _ => Err(BlobError::Unavailable("the object appeared at this moment".into())),
        }
    }
}
