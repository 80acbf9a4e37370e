//! Blobs in Azure Blob Storage. Clients upload and download by URLs that carry a signed permit; the service
//! enforces key, deadline and create-only, but never a size, a type or a checksum: those confirm finds out.

mod blocks;
mod call;
mod connect;
mod delete;
mod entra;
mod error;
mod list;
mod parts;
mod probe;
mod sas;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use reqwest::Method;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use crate::http::{doing, object};
use crate::{
    BlobError, BlobStore, Caps, Chunks, GetGrant, Listed, ObjectMeta, PartStore, Probed, PutGrant,
    SignedRequest, WriteMode,
};
use call::{Account, Call, Client};
pub use connect::{AzureCredentials, AzureOptions, EntraOptions};
use list::Listing;
use sas::Permit;

/// As many as the service's own bulk delete takes.
const DELETE_BATCH_MAX: usize = 256;
/// Without it, the service does not know what kind of blob is meant.
const BLOCK_BLOB: (&str, &str) = ("x-ms-blob-type", "BlockBlob");
/// A blob is put only where there is none.
const CREATE_ONLY: (&str, &str) = ("if-none-match", "*");

pub struct AzureStore {
    client: Arc<Client>,
}

impl AzureStore {
    /// Talks to nobody yet.
    pub fn connect(options: &AzureOptions) -> Result<AzureStore, BlobError> {
        Ok(AzureStore { client: Arc::new(connect::client(options)?) })
    }

    async fn sign_put_at(&self, endpoint: &str, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.client.full(&grant.key);
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
        self.client.learned.get().caps(DELETE_BATCH_MAX)
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_at(&self.client.public, grant).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.client.full(&grant.key);
        let permit = Permit {
            permissions: "r",
            version_id: grant.pin.version_id.as_deref(),
            content_disposition: Some(grant.disposition()),
            content_type: grant.content_type.clone(),
            ..self.client.permit(Some(&blob), grant.life.duration())
        };
        let url = self.client.url(&self.client.public, Some(&blob), &[], permit).await?;
        Ok(SignedRequest { method: "GET", url, headers: Vec::new() })
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let blob = self.client.full(key);
        let head = Call::of(Method::HEAD, &blob).with_some("versionid", version_id);
        object::meta::<Account>(self.client.send(head).await?.headers())
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError> {
        let blob = self.client.full(key);
        let get = Call::of(Method::GET, &blob).with_some("versionid", pin.version_id.as_deref());
        object::get(self, &self.client, get, (key, pin), (start, length)).await
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError> {
        let blob = self.client.full(key);
        let put = Call::of(Method::PUT, &blob).body(bytes).header(BLOCK_BLOB.0, BLOCK_BLOB.1);
        let put = if mode == WriteMode::CreateOnly { put.create_only(CREATE_ONLY) } else { put };
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
        list::objects(&self.client, prefix, start_after)
    }

    /// An older service, or an emulator, lists all from the beginning.
    fn lists_from_anywhere(&self) -> bool {
        self.client.learned.get().starts_from
    }

    fn now(&self) -> UnixMs {
        self.client.skew.store_now()
    }

    fn in_parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        let listing = Listing { page_max: Some(1), ..Listing::under(&self.client, "") };
        listing.page(None).await.map(drop).map_err(|error| doing("list the container", error))
    }

    async fn probe(&self) -> Result<Probed, BlobError> {
        self.find_out().await
    }
}
