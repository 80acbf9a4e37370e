//! Uploads in parts: blocks that clients put through signed URLs, and that we commit as one blob.
//!
//! A permit cannot name a block, nor be one to create: whoever may put a part may write the whole blob while the
//! URL lives, also after it was joined. The ETag that confirm pins shows it.

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
use super::sas::Permit;
use super::{AzureStore, CREATE_ONLY};
use crate::http::object;
use crate::{BlobError, BlobStore as _, Part, PartGrant, PartLimits, PartStore, SignedRequest, Unfinished};

const LIMITS: PartLimits = PartLimits {
    part_bytes_min: 1,
    part_bytes_max: 4_000 * MIB,
    // It takes 50,000; an answer that names them all would be too long.
    parts_max: 10_000,
    whole_bytes_max: 5_000 * MIB,
};

/// Marks the empty blob with which blocks are swept away, should it be left behind.
const SWEEPER: (&str, &str) = ("x-ms-meta-wharfinger", "abandoned");
/// The block lists of how many blobs are asked for at once.
const AT_ONCE: usize = 8;

#[async_trait]
impl PartStore for AzureStore {
    fn limits(&self) -> PartLimits {
        LIMITS
    }

    async fn begin(&self, key: &ObjectKey, _content_type: Option<&str>) -> Result<String, BlobError> {
        let upload_id = blocks::new_upload(self.now());
        self.put_word(&self.client.full(key), blocks::begun(&upload_id)).await?;
        Ok(upload_id)
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        let blob = self.client.full(&grant.key);
        let permit = Permit { permissions: "w", ..self.client.permit(Some(&blob), grant.life.duration()) };
        let block = blocks::block_id(&grant.upload_id, grant.number);
        let query = [("comp", "block".to_owned()), ("blockid", block)];
        let url = self.client.url(&self.client.public, Some(&blob), &query, permit).await?;
        Ok(SignedRequest { method: "PUT", url, headers: Vec::new() })
    }

    async fn parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        block_list(&self.client, &self.client.full(key)).await?.parts(upload_id).ok_or(BlobError::NotFound)
    }

    async fn join(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError> {
        if parts.is_empty() {
            return Err(BlobError::Refused("an upload of no parts cannot be joined".into()));
        }
        // A block has no ETag: that its size is still the one that was seen is all that can be known of it.
        let there = self.parts(key, upload_id).await?;
        if !parts.iter().all(|part| there.contains(part)) {
            return Err(BlobError::NotFound);
        }
        let blob = self.client.full(key);
        let commit = Call::of(Method::PUT, &blob)
            .body(commit_list(parts))
            .with("comp", "blocklist")
            .create_only(CREATE_ONLY)
            .header_some("x-ms-blob-content-type", content_type);
        match self.client.send(commit).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.code == "InvalidBlockList" => Err(BlobError::NotFound),
            Err(failure) => match failure.into() {
                // What is there has ended the upload.
                BlobError::Changed => Err(BlobError::NotFound),
                other => Err(other),
            },
        }
    }

    async fn abandon(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let blob = self.client.full(key);
        match block_list(&self.client, &blob).await {
            Ok(list) => self.end_uploads(&blob, &list.uploads()).await,
            Err(BlobError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn abandon_one(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        let blob = self.client.full(key);
        let uploads = blocks_if_any(&self.client, &blob).await?.uploads();
        if !uploads.iter().any(|known| known == upload_id) {
            return Ok(());
        }
        if uploads.len() == 1 {
            return self.end_uploads(&blob, &uploads).await;
        }
        self.put_word(&blob, blocks::abandoned(upload_id)).await
    }

    fn unfinished(&self, prefix: &str) -> BoxStream<'static, Result<Unfinished, BlobError>> {
        let mut listing = Listing::under(&self.client, prefix);
        listing.include = Some("uncommittedblobs");
        let client = self.client.clone();
        listing
            .entries()
            // What is not committed has no size; a blob of no bytes looks the same until its blocks are asked for.
            .try_filter(|entry| futures::future::ready(entry.size() == 0))
            .map_ok(move |entry| {
                let (client, blob) = (client.clone(), entry.key());
                async move {
                    let list = blocks_if_any(&client, &blob).await?;
                    let key = blob.strip_prefix(&client.prefix).unwrap_or(&blob).to_owned();
                    let uploads = list.uploads().into_iter().map(move |upload_id| {
                        let begun_at = blocks::begun_at(&upload_id).or(entry.modified_at());
                        Ok(Unfinished { key: key.clone(), upload_id, begun_at })
                    });
                    Ok::<_, BlobError>(stream::iter(uploads.collect::<Vec<_>>()))
                }
            })
            .try_buffered(AT_ONCE)
            .try_flatten()
            .boxed()
    }
}

fn commit_list(parts: &[Part]) -> String {
    let ids = parts.iter().map(|part| format!("<Uncommitted>{}</Uncommitted>", part.etag));
    let ids: String = ids.collect();
    format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{ids}</BlockList>")
}

async fn block_list(client: &Client, blob: &str) -> Result<BlockList, BlobError> {
    let call = Call::of(Method::GET, blob).with("comp", "blocklist").with("blocklisttype", "uncommitted");
    Ok(client.ask(call).await?)
}

async fn blocks_if_any(client: &Client, blob: &str) -> Result<BlockList, BlobError> {
    match block_list(client, blob).await {
        Err(BlobError::NotFound) => Ok(BlockList::default()),
        list => list,
    }
}

impl AzureStore {
    /// A block that is no part.
    async fn put_word(&self, blob: &str, block_id: String) -> Result<(), BlobError> {
        let put = Call::of(Method::PUT, blob).body(Bytes::from_static(b"."));
        let put = put.with("comp", "block").with("blockid", block_id);
        Ok(self.client.send(put).await.map(drop)?)
    }

    /// With their blocks where that can be. Over a blob they cannot go, and are only said to have ended.
    async fn end_uploads(&self, blob: &str, uploads: &[String]) -> Result<(), BlobError> {
        if !self.sweep_blocks(blob).await? {
            for upload_id in uploads.iter().filter(|upload_id| *upload_id != blocks::STRAY) {
                self.put_word(blob, blocks::abandoned(upload_id)).await?;
            }
        }
        Ok(())
    }

    /// Blocks cannot be deleted, but go when others are committed, or none: that makes an empty blob, where there
    /// was none, which is deleted again if it is still the same. False: there was one.
    async fn sweep_blocks(&self, blob: &str) -> Result<bool, BlobError> {
        let put = Call::of(Method::PUT, blob).body(commit_list(&[])).with("comp", "blocklist");
        let put = put.header(SWEEPER.0, SWEEPER.1).create_only(CREATE_ONLY);
        let answer = match self.client.send(put).await.map_err(BlobError::from) {
            Err(BlobError::Changed) => self.client.send(Call::of(Method::HEAD, blob)).await,
            answer => Ok(answer?),
        };
        let answer = match answer.map_err(BlobError::from) {
            Err(BlobError::NotFound) => return Ok(true),
            answer => answer?,
        };
        let put_now = answer.status() == reqwest::StatusCode::CREATED;
        let left_behind = header(answer.headers(), SWEEPER.0).as_deref() == Some(SWEEPER.1)
            && header(answer.headers(), "content-length").as_deref() == Some("0");
        if !(put_now || left_behind) {
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
