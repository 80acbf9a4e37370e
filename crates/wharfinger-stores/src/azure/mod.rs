//! Objects in Azure Blob Storage. Clients upload and download through URLs with a SAS. The service enforces the key,
//! the deadline and create-only. Confirm checks size and checksum.

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
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use reqwest::Method;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use crate::http::{cannot, object};
use crate::{
    BlobError, BlobStore, Capabilities, Chunks, GetGrant, ListedObject, MultipartStore, ObjectMeta,
    ProbeReport, PutGrant, SignedRequest, WriteMode,
};
use call::{Account, Call, Client};
pub use connect::{AzureCredentials, AzureOptions, EntraOptions};
use list::Listing;
use sas::SasGrant;

/// The limit of the service's own bulk delete.
const DELETE_BATCH_MAX: usize = 256;
/// The service requires the kind of blob in each put.
const BLOCK_BLOB: (&str, &str) = ("x-ms-blob-type", "BlockBlob");
/// The condition that the blob does not exist.
const CREATE_ONLY: (&str, &str) = ("if-none-match", "*");

pub struct AzureStore {
    client: Arc<Client>,
}

impl AzureStore {
    /// Makes no request.
    pub fn connect(options: &AzureOptions) -> Result<AzureStore, BlobError> {
        Ok(AzureStore { client: Arc::new(connect::client(options)?) })
    }

    async fn sign_put_at(&self, endpoint: &str, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.client.full(&grant.key);
        // Create, and not write: the write permission would allow a client to overwrite a confirmed object.
        let sas = SasGrant { permissions: "c", ..self.client.sas(Some(&blob), grant.lifetime.duration()) };
        let url = self.client.url(endpoint, Some(&blob), &[], sas).await?;
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

    fn capabilities(&self) -> Capabilities {
        self.client.features.get().capabilities(DELETE_BATCH_MAX)
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_at(&self.client.public, grant).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.client.full(&grant.key);
        let sas = SasGrant {
            permissions: "r",
            version_id: grant.pin.version_id.as_deref(),
            content_disposition: Some(grant.content_disposition()),
            content_type: grant.content_type.clone(),
            ..self.client.sas(Some(&blob), grant.lifetime.duration())
        };
        let url = self.client.url(&self.client.public, Some(&blob), &[], sas).await?;
        Ok(SignedRequest { method: "GET", url, headers: Vec::new() })
    }

    /// With an identity, a URL lives no longer than the key that the service issues.
    fn url_life_max(&self) -> Duration {
        self.client.url_life_max()
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

    async fn delete_if_unchanged(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        self.delete_as_seen(seen, with_older).await
    }

    fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ListedObject, BlobError>> {
        list::objects(&self.client, prefix, start_after)
    }

    /// Older services and emulators list everything from the beginning.
    fn can_start_listing_at_key(&self) -> bool {
        self.client.features.get().starts_from
    }

    fn now(&self) -> UnixMs {
        self.client.skew.store_now()
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        let listing = Listing { page_max: Some(1), ..Listing::under(&self.client, "") };
        listing.page(None).await.map(drop).map_err(|error| cannot("list the container", error))
    }

    async fn probe(&self) -> Result<ProbeReport, BlobError> {
        self.run_probe().await
    }
}
