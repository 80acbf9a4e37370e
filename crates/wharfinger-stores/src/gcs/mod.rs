//! Blobs in Google Cloud Storage, by its XML API. Clients upload and download by URLs that are signed here and go
//! straight to the store; how much of a grant the store enforces is tried out at the start.

mod call;
mod connect;
mod error;
mod list;
mod parts;
mod probe;
mod sign;

use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use reqwest::Method;
use reqwest::header::HeaderMap;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{ObjectKey, encode_part};

use super::answer::{doing, header};
use super::{
    BlobError, BlobStore, Caps, GetGrant, Listed, ObjectMeta, Over, PartStore, Probed, PutGrant,
    SignedRequest, encoding,
};
use call::{Call, Client};
pub use connect::{GcsCredentials, GcsOptions};
use error::{Failure, unreached};
use sign::Unsigned;
use wharfinger_calls::http::from_http_date;

/// There is no bulk delete in the XML API; as many are asked for in one go as elsewhere.
const DELETE_BATCH_MAX: usize = 1_000;
const DELETES_AT_ONCE: usize = 16;
/// A key whose object comes back more often while it is being deleted is left for another time.
const DELETE_TURNS_MAX: u32 = 5;

pub struct GcsStore {
    /// Empty, or what every key begins with, its slash included.
    prefix: String,
    client: Arc<Client>,
    learned: RwLock<Learned>,
}

/// What the probe found out. Before it, nothing is taken for granted.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    binds_size: bool,
    binds_content_type: bool,
    create_only: bool,
    versioned: bool,
}

impl GcsStore {
    /// Talks to nobody yet.
    pub fn connect(options: &GcsOptions) -> Result<GcsStore, BlobError> {
        Ok(GcsStore {
            prefix: options.prefix.clone(),
            client: Arc::new(connect::client(options)?),
            learned: RwLock::default(),
        })
    }

    fn learned(&self) -> Learned {
        *self.learned.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn learn(&self, change: impl FnOnce(&mut Learned)) {
        change(&mut self.learned.write().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn full(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A PUT of as many bytes of this type, where nothing is. The SHA-256 cannot be bound.
    fn sign_put_at(&self, endpoint: &str, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.full(&grant.key)));
        let mut headers = vec![
            ("x-goog-content-length-range", format!("{},{}", grant.size, grant.size)),
            ("x-goog-if-generation-match", "0".to_owned()),
        ];
        headers.extend(grant.content_type.clone().map(|content_type| ("content-type", content_type)));
        let unsigned = self.client.unsigned("PUT", endpoint, &path, grant.life.duration());
        let url = self.client.signer.sign(&Unsigned { headers: headers.clone(), ..unsigned })?;
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
        let learned = self.learned();
        Caps {
            binds_size: learned.binds_size,
            binds_content_type: learned.binds_content_type,
            binds_checksum: false,
            create_only: learned.create_only,
            refuses_ended: false,
            // Only the live generation is deleted.
            versioned: false,
            delete_batch_max: DELETE_BATCH_MAX,
        }
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_at(&self.client.public, grant)
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.full(&grant.key)));
        let disposition = format!("attachment; filename*=UTF-8''{}", encode_part(&grant.file_name));
        let mut query = vec![("response-content-disposition", disposition)];
        query.extend(grant.content_type.clone().map(|content_type| ("response-content-type", content_type)));
        query.extend(grant.pin.version_id.clone().map(|generation| ("generation", generation)));
        let unsigned = self.client.unsigned("GET", &self.client.public, &path, grant.life.duration());
        let url = self.client.signer.sign(&Unsigned { query, ..unsigned })?;
        Ok(SignedRequest { method: "GET", url, headers: Vec::new() })
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let object = self.full(key);
        let answer = match self.client.send(of_version(Call::of(Method::HEAD, &object), version_id)).await {
            Ok(answer) => answer,
            // Without a body it may as well be the bucket that is missing: asked again in a way that tells.
            Err(Failure::Answered { status: 404, .. }) => return self.tell_absent(&object, version_id).await,
            Err(failure) => return Err(failure.into()),
        };
        let size = header(answer.headers(), "x-goog-stored-content-length")
            .or_else(|| header(answer.headers(), "content-length"))
            .and_then(|size| size.parse().ok());
        match (size, etag(answer.headers())) {
            (Some(size), Some(etag)) => {
                let modified_at =
                    header(answer.headers(), "last-modified").and_then(|at| from_http_date(&at));
                let said = header(answer.headers(), "x-goog-stored-content-encoding")
                    .or_else(|| header(answer.headers(), "content-encoding"));
                Ok(ObjectMeta {
                    size,
                    etag,
                    version_id: header(answer.headers(), "x-goog-generation"),
                    modified_at,
                    content_encoding: encoding(said.as_deref()),
                })
            }
            _ => Err(BlobError::Unavailable("the answer has no ETag: this is not Google's".into())),
        }
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        let object = self.full(key);
        // Without this, Google unpacks what was stored as gzip.
        let call = Call::of(Method::GET, &object).header("accept-encoding", "gzip");
        let mut call = of_version(call, pin.version_id.as_deref());
        if !pin.etag.is_empty() {
            call = call.header("if-match", format!("\"{}\"", pin.etag));
        }
        call = match (start, length) {
            (0, None) => call,
            (start, None) => call.header("range", format!("bytes={start}-")),
            (_, Some(0)) => return self.nothing_of(key, pin).await,
            (start, Some(length)) => {
                call.header("range", format!("bytes={start}-{}", start.saturating_add(length - 1)))
            }
        };
        let answer = match self.client.send(call).await {
            Ok(answer) => answer,
            Err(failure) if failure.code() == "InvalidRange" => return self.nothing_of(key, pin).await,
            Err(failure) => match failure.into() {
                // What is absent may be said not to meet the condition either.
                BlobError::Changed => {
                    self.head(key, pin.version_id.as_deref()).await?;
                    return Err(BlobError::Changed);
                }
                other => return Err(other),
            },
        };
        if etag(answer.headers()).as_deref() != Some(pin.etag.as_str()) {
            return Err(BlobError::Changed);
        }
        Ok(answer.bytes_stream().map(|chunk| chunk.map_err(|error| unreached(error).into())).boxed())
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, over: Over) -> Result<(), BlobError> {
        let object = self.full(key);
        let put = Call::of(Method::PUT, &object).body(bytes);
        let put = if over == Over::Nothing { put.create_only() } else { put };
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
            let object = self.full(&key);
            let mut delete = Call::of(Method::DELETE, &object);
            if let Some(generation) = meta.version_id {
                delete = delete.header("x-goog-if-generation-match", generation);
            }
            match absent_is_gone(self.client.send(delete).await) {
                // What is absent does not meet the condition either.
                Err(BlobError::Changed)
                    if matches!(self.head(&key, None).await, Err(BlobError::NotFound)) =>
                {
                    Ok(())
                }
                outcome => outcome,
            }
        };
        stream::iter(seen.to_vec()).map(delete).buffered(DELETES_AT_ONCE).collect().await
    }

    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>> {
        list::objects(self, prefix, start_after)
    }

    fn now(&self) -> UnixMs {
        self.client.skew.store_now()
    }

    fn in_parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        list::first(&self.client, &self.prefix).await.map_err(|error| doing("list the bucket", error))
    }

    async fn probe(&self) -> Result<Probed, BlobError> {
        self.find_out().await
    }
}

impl GcsStore {
    /// On a bucket that keeps versions, only a delete that names the generation takes the bytes.
    async fn delete(&self, key: ObjectKey) -> Result<(), BlobError> {
        let object = self.full(&key);
        if !self.learned().versioned {
            return absent_is_gone(self.client.send(Call::of(Method::DELETE, &object)).await);
        }
        for _ in 0..DELETE_TURNS_MAX {
            let generation = match self.head(&key, None).await {
                Ok(meta) => meta.version_id,
                Err(BlobError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            let delete = of_version(Call::of(Method::DELETE, &object), generation.as_deref());
            absent_is_gone(self.client.send(delete).await)?;
        }
        Err(BlobError::Unavailable("the object comes back each time it is deleted".into()))
    }

    async fn tell_absent(&self, object: &str, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let get = of_version(Call::of(Method::GET, object), version_id).header("range", "bytes=0-0");
        match self.client.send(get).await {
            Err(failure) if failure.code() != "InvalidRange" => Err(failure.into()),
            _ => Err(BlobError::Unavailable("the object appeared at this moment".into())),
        }
    }

    /// No bytes cannot be asked for; whether they are the right none can.
    async fn nothing_of(
        &self,
        key: &ObjectKey,
        pin: &Pin,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        match self.head(key, pin.version_id.as_deref()).await? {
            meta if meta.etag == pin.etag => Ok(stream::empty().boxed()),
            _ => Err(BlobError::Changed),
        }
    }
}

fn absent_is_gone(answer: Result<reqwest::Response, Failure>) -> Result<(), BlobError> {
    match answer.map_err(BlobError::from) {
        Ok(_) | Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

fn of_version<'a>(call: Call<'a>, version_id: Option<&str>) -> Call<'a> {
    match version_id {
        Some(generation) => call.with("generation", generation),
        None => call,
    }
}

fn etag(headers: &HeaderMap) -> Option<String> {
    header(headers, "etag").map(|etag| etag.trim_matches('"').to_owned()).filter(|etag| !etag.is_empty())
}
