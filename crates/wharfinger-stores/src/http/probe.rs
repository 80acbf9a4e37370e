//! What every probe of a store has in common: the bytes it tries with, and the trials that need nothing but the
//! traits. What a probe leaves behind is deleted, and what an earlier one left after a crash too.

use std::time::Duration;

use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::{OWN, ObjectKey};

use super::{Client, Failure, Service, doing};
use crate::{BlobError, BlobStore, Listed, PartStore, PutGrant, SignedRequest, Unfinished, UrlLife};

const BYTES: &[u8] = b"wharfinger tries";
const TYPE: &str = "text/plain";
const LIFE: UrlLife = UrlLife { signed_at: 0, expires_at: 600_000 };
const TIMEOUT: Duration = Duration::from_secs(20);
/// A probe that is older than this by the store's clock is not under way any more.
const LEFT_BEHIND_MS: i64 = 3_600_000;

/// What is sent with a signed URL.
pub(crate) struct Sent<'a> {
    bytes: &'a [u8],
    content_type: &'a str,
}

pub(crate) const RIGHT: Sent<'static> = Sent { bytes: BYTES, content_type: TYPE };
pub(crate) const SHORT: Sent<'static> = Sent { bytes: b"wharfinger trie", ..RIGHT };
pub(crate) const OTHER_TYPE: Sent<'static> = Sent { content_type: "text/html", ..RIGHT };
pub(crate) const OTHER_BYTES: Sent<'static> = Sent { bytes: b"wharfinger lies!", ..RIGHT };

/// For what is right, and nothing else.
pub(crate) fn grant(key: &ObjectKey) -> PutGrant {
    PutGrant {
        key: key.clone(),
        size: BYTES.len() as u64,
        content_type: Some(TYPE.into()),
        checksum_sha256: Some(to_hex(&Sha256::digest(BYTES))),
        life: LIFE,
    }
}

pub(crate) fn request(
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

/// Keys that no upload has used, each for one upload.
pub(crate) fn keys<const N: usize>() -> [ObjectKey; N] {
    let name = uuid::Uuid::new_v4();
    std::array::from_fn(|n| ObjectKey::probe(&format!("{name}-{n}")))
}

/// What the service does with uploads that are not what was signed. No object can be put twice, so each trial has a
/// key of its own.
pub(crate) async fn find_bindings<S: Service>(
    client: &Client<S>,
    signed: &[SignedRequest],
) -> Result<(), BlobError> {
    let [right, short, other_type, other_bytes] = signed else {
        return Err(BlobError::Refused("a probe needs four keys".into()));
    };
    if let Err(said) = try_upload(client, right, &RIGHT).await? {
        return Err(BlobError::Refused(format!("it will not let us write objects: {said}")));
    }
    // With what is right in place already, only a store that overwrites takes it again.
    let create_only = try_upload(client, right, &RIGHT).await?.is_err();
    let binds_size = try_upload(client, short, &SHORT).await?.is_err();
    let binds_content_type = try_upload(client, other_type, &OTHER_TYPE).await?.is_err();
    let binds_checksum = try_upload(client, other_bytes, &OTHER_BYTES).await?.is_err();
    client.learned.change(|learned| {
        learned.create_only = create_only;
        learned.binds_size = binds_size;
        learned.binds_content_type = binds_content_type;
        learned.binds_checksum = binds_checksum;
    });
    Ok(())
}

/// The inner error is the service's refusal.
async fn try_upload<S: Service>(
    client: &Client<S>,
    signed: &SignedRequest,
    sent: &Sent<'_>,
) -> Result<Result<(), String>, BlobError> {
    let answer = request(&client.http, signed, sent).send().await.map_err(Failure::from)?;
    match client.answered(answer).await {
        Ok(_) => Ok(Ok(())),
        Err(failure) if failure.is_passing() => Err(failure.into()),
        Err(failure) => Ok(Err(BlobError::from(failure).to_string())),
    }
}

/// Ends a probe of a store, whatever its trials found: deletes their objects, sees that they are gone, and tries uploads in
/// parts.
pub(crate) async fn finish<S: BlobStore + PartStore>(
    store: &S,
    keys: &[ObjectKey],
    found: Result<(), BlobError>,
) -> Result<(), BlobError> {
    let deleted: Result<Vec<()>, BlobError> = store.delete_many(keys).await.into_iter().collect();
    found?;
    deleted.map_err(|error| doing("delete objects", error))?;
    find_absence(store, &keys[0]).await?;
    find_parts(store, &keys[0]).await?;
    clear_left_behind(store).await
}

/// Those who may not list are told 403 of what is absent, and nothing could ever be known to be so.
async fn find_absence(store: &dyn BlobStore, deleted: &ObjectKey) -> Result<(), BlobError> {
    match store.head(deleted, None).await {
        Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(doing("tell what is absent", error)),
        Ok(_) => Err(BlobError::Refused("it still has what it said it had deleted".into())),
    }
}

async fn find_parts(parts: &dyn PartStore, key: &ObjectKey) -> Result<(), BlobError> {
    let upload_id = parts.begin(key, None).await.map_err(|error| doing("begin uploads in parts", error))?;
    let listed = parts.parts(key, &upload_id).await;
    let known: Result<Vec<_>, _> = parts.unfinished(key.as_str()).try_collect().await;
    parts.abandon(key).await.map_err(|error| doing("abort uploads in parts", error))?;
    listed.map_err(|error| doing("list the parts of uploads", error))?;
    known.map_err(|error| doing("list unfinished uploads", error))?;
    Ok(())
}

async fn clear_left_behind(store: &dyn BlobStore) -> Result<(), BlobError> {
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
