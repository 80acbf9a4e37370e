//! Multipart uploads: clients put blocks through signed URLs, and we commit the blocks as one blob.
//!
//! A SAS cannot be limited to one block, and blocks need the write permission. So a client with a part's URL can
//! overwrite the whole blob until the URL expires, also after the upload was completed. The ETag that confirm pins then
//! differs (test `a_part_url_can_change_the_object_but_the_pinned_etag_shows_it`).

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use wharfinger_calls::http::header;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::limits::MIB;

use super::blocks::{self, BlockList};
use super::call::{Call, Client};
use super::list::Listing;
use super::sas::SasGrant;
use super::{AzureStore, CREATE_ONLY};
use crate::http::object;
use crate::{
    BlobError, BlobStore as _, MultipartStore, Part, PartGrant, PartLimits, SignedRequest, UnfinishedUpload,
};

const LIMITS: PartLimits = PartLimits {
    part_bytes_min: 1,
    part_bytes_max: 4_000 * MIB,
    // Azure allows 50,000, but our list of them would be too long.
    parts_max: 10_000,
    single_put_bytes_max: 5_000 * MIB,
};

/// Marks the empty blob that removes uncommitted blocks, so that a leftover of a crash is recognized.
const REMOVAL_BLOB: (&str, &str) = ("x-ms-meta-wharfinger", "abandoned");
/// How many block lists are requested concurrently.
const CONCURRENCY: usize = 8;

#[async_trait]
impl MultipartStore for AzureStore {
    fn limits(&self) -> PartLimits {
        LIMITS
    }

    async fn start(&self, key: &ObjectKey, _content_type: Option<&str>) -> Result<String, BlobError> {
        let upload_id = blocks::new_upload(self.now());
        self.put_marker(&self.client.full(key), blocks::start_marker(&upload_id)).await?;
        Ok(upload_id)
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.client.full(&grant.key);
        let sas = SasGrant { permissions: "w", ..self.client.sas(Some(&blob), grant.lifetime.duration()) };
        let block = blocks::block_id(&grant.upload_id, grant.number);
        let query = [("comp", "block".to_owned()), ("blockid", block)];
        let url = self.client.url(&self.client.public, Some(&blob), &query, sas).await?;
        Ok(SignedRequest { method: "PUT", url, headers: Vec::new() })
    }

    async fn list_parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        block_list(&self.client, &self.client.full(key)).await?.parts(upload_id).ok_or(BlobError::NotFound)
    }

    async fn complete(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError> {
        if parts.is_empty() {
            return Err(BlobError::Refused("an upload without parts cannot be completed".into()));
        }
        // A block has no ETag, so only its size can be checked.
        let present = self.list_parts(key, upload_id).await?;
        if !parts.iter().all(|part| present.contains(part)) {
            return Err(BlobError::NotFound);
        }
        let blob = self.client.full(key);
        let commit = Call::of(Method::PUT, &blob)
            .body(block_list_xml(parts))
            .with("comp", "blocklist")
            .create_only(CREATE_ONLY)
            .header_some("x-ms-blob-content-type", content_type);
        match self.client.send(commit).await {
            Ok(_) => Ok(()),
            Err(error) if error.code == "InvalidBlockList" => Err(BlobError::NotFound),
            Err(error) => match error.into() {
                // The blob exists, so the upload has ended.
                BlobError::Changed => Err(BlobError::NotFound),
                other => Err(other),
            },
        }
    }

    async fn abort_all(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let blob = self.client.full(key);
        match block_list(&self.client, &blob).await {
            Ok(list) => self.abort_uploads(&blob, &list.uploads()).await,
            Err(BlobError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn abort(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        let blob = self.client.full(key);
        let uploads = blocks_if_any(&self.client, &blob).await?.uploads();
        if !uploads.iter().any(|known| known == upload_id) {
            return Ok(());
        }
        if uploads.len() == 1 {
            return self.abort_uploads(&blob, &uploads).await;
        }
        self.put_marker(&blob, blocks::abort_marker(upload_id)).await
    }

    fn list_unfinished(&self, prefix: &str) -> BoxStream<'static, Result<UnfinishedUpload, BlobError>> {
        let mut listing = Listing::under(&self.client, prefix);
        listing.include = Some("uncommittedblobs");
        let client = self.client.clone();
        listing
            .entries()
            // Blobs with only uncommitted blocks have no size. An empty blob looks the same until its blocks are
            // listed.
            .try_filter(|entry| futures::future::ready(entry.size() == 0))
            .map_ok(move |entry| {
                let (client, blob) = (client.clone(), entry.key());
                async move {
                    let list = blocks_if_any(&client, &blob).await?;
                    let key = blob.strip_prefix(&client.prefix).unwrap_or(&blob).to_owned();
                    let uploads = list.uploads().into_iter().map(move |upload_id| {
                        let started_at = blocks::started_at(&upload_id).or(entry.modified_at());
                        Ok(UnfinishedUpload { key: key.clone(), upload_id, started_at })
                    });
                    Ok::<_, BlobError>(stream::iter(uploads.collect::<Vec<_>>()))
                }
            })
            .try_buffered(CONCURRENCY)
            .try_flatten()
            .boxed()
    }
}

fn block_list_xml(parts: &[Part]) -> String {
    let ids = parts.iter().map(|part| format!("<Uncommitted>{}</Uncommitted>", part.etag));
    let ids: String = ids.collect();
    format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{ids}</BlockList>")
}

async fn block_list(client: &Client, blob: &str) -> Result<BlockList, BlobError> {
    let call = Call::of(Method::GET, blob).with("comp", "blocklist").with("blocklisttype", "uncommitted");
    Ok(client.get_xml(call).await?)
}

async fn blocks_if_any(client: &Client, blob: &str) -> Result<BlockList, BlobError> {
    match block_list(client, blob).await {
        Err(BlobError::NotFound) => Ok(BlockList::default()),
        list => list,
    }
}

impl AzureStore {
    /// Puts a block that is not a part.
    async fn put_marker(&self, blob: &str, block_id: String) -> Result<(), BlobError> {
        let put = Call::of(Method::PUT, blob).body(Bytes::from_static(b"."));
        let put = put.with("comp", "block").with("blockid", block_id);
        Ok(self.client.send(put).await.map(drop)?)
    }

    /// Removes the blocks if there is no blob. Over an existing blob they cannot be removed, so the uploads are only
    /// marked as aborted.
    async fn abort_uploads(&self, blob: &str, uploads: &[String]) -> Result<(), BlobError> {
        if !self.remove_blocks(blob).await? {
            for upload_id in uploads.iter().filter(|upload_id| *upload_id != blocks::WITHOUT_UPLOAD) {
                self.put_marker(blob, blocks::abort_marker(upload_id)).await?;
            }
        }
        Ok(())
    }

    /// Blocks cannot be deleted, but a commit of an empty list removes them. It creates an empty blob, which is deleted
    /// again if it has not changed. False: a blob exists already.
    async fn remove_blocks(&self, blob: &str) -> Result<bool, BlobError> {
        let put = Call::of(Method::PUT, blob).body(block_list_xml(&[])).with("comp", "blocklist");
        let put = put.header(REMOVAL_BLOB.0, REMOVAL_BLOB.1).create_only(CREATE_ONLY);
        let answer = match self.client.send(put).await.map_err(BlobError::from) {
            Err(BlobError::Changed) => self.client.send(Call::of(Method::HEAD, blob)).await,
            answer => Ok(answer?),
        };
        let answer = match answer.map_err(BlobError::from) {
            Err(BlobError::NotFound) => return Ok(true),
            answer => answer?,
        };
        let was_created = answer.status() == reqwest::StatusCode::CREATED;
        let is_leftover = header(answer.headers(), REMOVAL_BLOB.0).as_deref() == Some(REMOVAL_BLOB.1)
            && header(answer.headers(), "content-length").as_deref() == Some("0");
        if !(was_created || is_leftover) {
            return Ok(false);
        }
        let etag = object::etag(answer.headers()).unwrap_or_default();
        let delete = Call::of(Method::DELETE, blob).header("if-match", format!("\"{etag}\""));
        match self.client.delete(delete).await {
            Ok(()) | Err(BlobError::Changed) => {}
            Err(error) => return Err(error),
        }
        if let Some(version_id) = header(answer.headers(), "x-ms-version-id") {
            self.delete_version(blob, &version_id).await?;
        }
        Ok(true)
    }
}
