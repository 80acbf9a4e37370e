//! What every probe of a store has in common: the bytes it tries with, and the trials that need nothing but the
//! traits. What a probe leaves behind is deleted, and what an earlier one left after a crash too.

use std::time::Duration;

use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::{OWN, ObjectKey};

use super::answer::doing;
use super::{BlobError, BlobStore, Listed, PartStore, PutGrant, SignedRequest, Unfinished, UrlLife};

pub(super) const BYTES: &[u8] = b"wharfinger tries";
const TYPE: &str = "text/plain";
const LIFE: UrlLife = UrlLife { signed_at: 0, expires_at: 600_000 };
const TIMEOUT: Duration = Duration::from_secs(20);
/// A probe that is older than this by the store's clock is not under way any more.
const LEFT_BEHIND_MS: i64 = 3_600_000;

/// What is sent with a signed URL.
pub(super) struct Sent<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) content_type: &'a str,
}

pub(super) const RIGHT: Sent<'static> = Sent { bytes: BYTES, content_type: TYPE };
pub(super) const SHORT: Sent<'static> = Sent { bytes: b"wharfinger trie", ..RIGHT };
pub(super) const OTHER_TYPE: Sent<'static> = Sent { content_type: "text/html", ..RIGHT };
pub(super) const OTHER_BYTES: Sent<'static> = Sent { bytes: b"wharfinger lies!", ..RIGHT };

/// For what is right, and nothing else.
pub(super) fn grant(key: &ObjectKey) -> PutGrant {
    PutGrant {
        key: key.clone(),
        size: BYTES.len() as u64,
        content_type: Some(TYPE.into()),
        checksum_sha256: Some(to_hex(&Sha256::digest(BYTES))),
        life: LIFE,
    }
}

pub(super) fn request(
    http: &reqwest::Client,
    signed: &SignedRequest,
    sent: &Sent<'_>,
) -> reqwest::RequestBuilder {
    let mut request = http.put(&signed.url).timeout(TIMEOUT);
    for (name, value) in signed.headers.iter().filter(|(name, _)| name != "content-type") {
        request = request.header(name, value);
    }
    let request =
        request.header("content-type", sent.content_type).header("content-length", sent.bytes.len());
    request.body(sent.bytes.to_vec())
}

/// Those who may not list are told 403 of what is absent, and nothing could ever be known to be so.
pub(super) async fn find_absence(store: &dyn BlobStore, deleted: &ObjectKey) -> Result<(), BlobError> {
    match store.head(deleted, None).await {
        Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(doing("tell what is absent", error)),
        Ok(_) => Err(BlobError::Refused("it still has what it said it had deleted".into())),
    }
}

pub(super) async fn find_parts(parts: &dyn PartStore, key: &ObjectKey) -> Result<(), BlobError> {
    let upload_id = parts.begin(key, None).await.map_err(|error| doing("begin uploads in parts", error))?;
    let listed = parts.parts(key, &upload_id).await;
    let known: Result<Vec<_>, _> = parts.unfinished(key.as_str()).try_collect().await;
    parts.abandon(key).await.map_err(|error| doing("abort uploads in parts", error))?;
    listed.map_err(|error| doing("list the parts of uploads", error))?;
    known.map_err(|error| doing("list unfinished uploads", error))?;
    Ok(())
}

pub(super) async fn clear_left_behind(store: &dyn BlobStore) -> Result<(), BlobError> {
    let folder = format!("{OWN}probe/");
    let is_old = |at: i64| at < store.now().saturating_sub(LEFT_BEHIND_MS);
    let objects: Vec<Listed> = store.list(&folder, None).try_collect().await?;
    let keys: Vec<ObjectKey> = objects
        .iter()
        .filter(|listed| is_old(listed.modified_at))
        .filter_map(|listed| listed.key.strip_prefix(&folder).map(ObjectKey::probe))
        .collect();
    for outcome in store.delete_many(&keys).await {
        outcome?;
    }
    let Some(parts) = store.in_parts() else { return Ok(()) };
    let uploads: Vec<Unfinished> = parts.unfinished(&folder).try_collect().await?;
    for upload in uploads.iter().filter(|upload| upload.begun_at.is_some_and(is_old)) {
        if let Some(name) = upload.key.strip_prefix(&folder) {
            parts.abandon_one(&ObjectKey::probe(name), &upload.upload_id).await?;
        }
    }
    Ok(())
}
