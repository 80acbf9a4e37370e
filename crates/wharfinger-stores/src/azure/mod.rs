//! Blobs in Azure Blob Storage. Clients upload and download by URLs that carry a signed permit; the service
//! enforces key, deadline and create-only, but never a size, a type or a checksum: those confirm finds out.

mod blocks;
mod call;
mod connect;
mod delete;
mod entra;
mod error;
mod keys;
mod list;
mod parts;
mod probe;
mod sas;

use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
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
pub use connect::{AzureCredentials, AzureOptions, EntraOptions};
use error::unreached;
use list::Listing;
use sas::Permit;
use wharfinger_calls::http::from_http_date;

/// As many as the service's own bulk delete takes.
const DELETE_BATCH_MAX: usize = 256;
/// Without it, the service does not know what kind of blob is meant.
const BLOCK_BLOB: (&str, &str) = ("x-ms-blob-type", "BlockBlob");

pub struct AzureStore {
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
    binds_checksum: bool,
    create_only: bool,
    versioned: bool,
    /// The service can begin a listing at a key. Older ones list everything, and we pass over it.
    starts_from: bool,
}

impl AzureStore {
    /// Talks to nobody yet.
    pub fn connect(options: &AzureOptions) -> Result<AzureStore, BlobError> {
        Ok(AzureStore {
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

    async fn sign_put_at(&self, endpoint: &str, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.full(&grant.key);
        // To create and not to write: a writer could overwrite what is confirmed.
        let permit = Permit { permissions: "c", ..self.client.permit(Some(&blob), grant.life.duration()) };
        let url = self.client.url(endpoint, Some(&blob), &[], permit).await?;
        let mut headers = vec![(BLOCK_BLOB.0.to_owned(), BLOCK_BLOB.1.to_owned())];
        headers.extend(grant.content_type.clone().map(|content_type| ("content-type".into(), content_type)));
        Ok(SignedRequest { method: "PUT", url, headers })
    }
}

#[async_trait]
impl BlobStore for AzureStore {
    fn kind(&self) -> &'static str {
        "azure"
    }

    fn caps(&self) -> Caps {
        let learned = self.learned();
        Caps {
            binds_size: learned.binds_size,
            binds_content_type: learned.binds_content_type,
            binds_checksum: learned.binds_checksum,
            create_only: learned.create_only,
            refuses_ended: false,
            versioned: learned.versioned,
            delete_batch_max: DELETE_BATCH_MAX,
        }
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_at(&self.client.public, grant).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.full(&grant.key);
        let permit = Permit {
            permissions: "r",
            version_id: grant.pin.version_id.as_deref(),
            content_disposition: Some(format!(
                "attachment; filename*=UTF-8''{}",
                encode_part(&grant.file_name)
            )),
            content_type: grant.content_type.clone(),
            ..self.client.permit(Some(&blob), grant.life.duration())
        };
        let url = self.client.url(&self.client.public, Some(&blob), &[], permit).await?;
        Ok(SignedRequest { method: "GET", url, headers: Vec::new() })
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let blob = self.full(key);
        let answer = self.client.send(of_version(Call::head(&blob), version_id)).await?;
        let size = header(answer.headers(), "content-length").and_then(|size| size.parse().ok());
        match (size, etag(answer.headers())) {
            (Some(size), Some(etag)) => {
                let modified_at =
                    header(answer.headers(), "last-modified").and_then(|at| from_http_date(&at));
                Ok(ObjectMeta {
                    size,
                    etag,
                    version_id: header(answer.headers(), "x-ms-version-id"),
                    modified_at,
                    content_encoding: encoding(header(answer.headers(), "content-encoding").as_deref()),
                })
            }
            _ => Err(BlobError::Unavailable("the answer has no ETag: this is not Azure".into())),
        }
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        let blob = self.full(key);
        let mut call = of_version(Call::get(&blob), pin.version_id.as_deref());
        // An empty one is no ETag, and refused as such.
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
                // What is absent does not meet the condition either.
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
        let blob = self.full(key);
        let put = Call::put(&blob, bytes).header(BLOCK_BLOB.0, BLOCK_BLOB.1);
        let put = if over == Over::Nothing { put.create_only() } else { put };
        Ok(self.client.send(put).await.map(drop)?)
    }

    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        self.delete_keys(keys).await
    }

    async fn delete_seen(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        self.delete_as_seen(seen, with_older).await
    }

    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>> {
        list::objects(self, prefix, start_after)
    }

    /// An older service, or an emulator, lists all from the beginning.
    fn lists_from_anywhere(&self) -> bool {
        self.learned().starts_from
    }

    fn now(&self) -> UnixMs {
        self.client.skew.store_now()
    }

    fn in_parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        let listing = Listing { page_max: Some(1), ..Listing::under(self, "") };
        listing.page(None).await.map(drop).map_err(|error| doing("list the container", error))
    }

    async fn probe(&self) -> Result<Probed, BlobError> {
        self.find_out().await
    }
}

impl AzureStore {
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

fn of_version<'a>(call: Call<'a>, version_id: Option<&str>) -> Call<'a> {
    match version_id {
        Some(version_id) => call.with("versionid", version_id),
        None => call,
    }
}

fn etag(headers: &HeaderMap) -> Option<String> {
    header(headers, "etag").map(|etag| etag.trim_matches('"').to_owned()).filter(|etag| !etag.is_empty())
}
