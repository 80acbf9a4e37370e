//! What the probes of all stores share: the test uploads, and the checks that need only the traits. A probe deletes its
//! objects, and also those of an earlier probe that crashed.

use std::time::Duration;

use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::{INTERNAL, ObjectKey};

use super::{CallError, Client, Service, cannot};
use crate::{
    BlobError, BlobStore, ListedObject, MultipartStore, PutGrant, SignedRequest, UnfinishedUpload,
    UrlLifetime,
};

const BYTES: &[u8] = b"wharfinger probe";
const TYPE: &str = "text/plain";
const LIFETIME: UrlLifetime = UrlLifetime { signed_at: 0, expires_at: 600_000 };
const TIMEOUT: Duration = Duration::from_secs(20);
/// An object of a probe that is older than this, by the store's clock, belongs to a probe that crashed.
const LEFTOVER_AGE_MS: i64 = 3_600_000;

/// The body and the type that are sent to a signed URL.
pub(crate) struct TestUpload<'a> {
    bytes: &'a [u8],
    content_type: &'a str,
}

pub(crate) const VALID: TestUpload<'static> = TestUpload { bytes: BYTES, content_type: TYPE };
pub(crate) const TOO_SHORT: TestUpload<'static> = TestUpload { bytes: b"wharfinger prob", ..VALID };
pub(crate) const WRONG_TYPE: TestUpload<'static> = TestUpload { content_type: "text/html", ..VALID };
pub(crate) const WRONG_BYTES: TestUpload<'static> = TestUpload { bytes: b"wharfinger wrong", ..VALID };

/// Permits [`VALID`] only.
pub(crate) fn grant(key: &ObjectKey) -> PutGrant {
    PutGrant {
        key: key.clone(),
        size: BYTES.len() as u64,
        content_type: Some(TYPE.into()),
        checksum_sha256: Some(to_hex(&Sha256::digest(BYTES))),
        lifetime: LIFETIME,
    }
}

pub(crate) fn request(
    http: &reqwest::Client,
    signed: &SignedRequest,
    upload: &TestUpload<'_>,
) -> reqwest::RequestBuilder {
    let mut request = http.put(&signed.url).timeout(TIMEOUT);
    for (name, value) in signed.headers.iter().filter(|(name, _)| name != "content-type") {
        request = request.header(name, value);
    }
    let request =
        request.header("content-type", upload.content_type).header("content-length", upload.bytes.len());
    request.body(upload.bytes.to_vec())
}

/// New keys, one for each test upload.
pub(crate) fn keys<const N: usize>() -> [ObjectKey; N] {
    let name = uuid::Uuid::new_v4();
    std::array::from_fn(|n| ObjectKey::probe(&format!("{name}-{n}")))
}

/// Detects which uploads the service refuses when they differ from the signed grant. Where objects can be created only
/// once, a key serves for one upload, so each test has its own key.
pub(crate) async fn detect_enforcement<S: Service>(
    client: &Client<S>,
    signed: &[SignedRequest],
) -> Result<(), BlobError> {
    let [valid, too_short, wrong_type, wrong_bytes] = signed else {
        return Err(BlobError::Refused("a probe needs four keys".into()));
    };
    if let Err(refusal) = try_upload(client, valid, &VALID).await? {
        return Err(BlobError::Refused(format!("cannot write objects: {refusal}")));
    }
    // The object exists now, so only a store that overwrites accepts it again.
    let create_only = try_upload(client, valid, &VALID).await?.is_err();
    let enforces_size = try_upload(client, too_short, &TOO_SHORT).await?.is_err();
    let enforces_content_type = try_upload(client, wrong_type, &WRONG_TYPE).await?.is_err();
    let enforces_checksum = try_upload(client, wrong_bytes, &WRONG_BYTES).await?.is_err();
    client.features.change(|features| {
        features.create_only = create_only;
        features.enforces_size = enforces_size;
        features.enforces_content_type = enforces_content_type;
        features.enforces_checksum = enforces_checksum;
    });
    Ok(())
}

/// The inner error is the service's refusal.
async fn try_upload<S: Service>(
    client: &Client<S>,
    signed: &SignedRequest,
    upload: &TestUpload<'_>,
) -> Result<Result<(), String>, BlobError> {
    let answer = request(&client.http, signed, upload).send().await.map_err(CallError::from)?;
    match client.check_answer(answer).await {
        Ok(_) => Ok(Ok(())),
        Err(error) if error.is_retryable() => Err(error.into()),
        Err(error) => Ok(Err(BlobError::from(error).to_string())),
    }
}

/// Deletes the objects of the test uploads, also after a failed test. Then it tests deletes and multipart uploads.
pub(crate) async fn finish<S: BlobStore + MultipartStore>(
    store: &S,
    keys: &[ObjectKey],
    tested: Result<(), BlobError>,
) -> Result<(), BlobError> {
    let deleted: Result<Vec<()>, BlobError> = store.delete_many(keys).await.into_iter().collect();
    tested?;
    deleted.map_err(|error| cannot("delete objects", error))?;
    check_absence(store, &keys[0]).await?;
    check_multipart(store, &keys[0]).await?;
    remove_leftovers(store).await
}

/// S3 answers 403 for an absent object to clients that may not list. Then no object could be known to be absent.
async fn check_absence(store: &dyn BlobStore, deleted: &ObjectKey) -> Result<(), BlobError> {
    match store.head(deleted, None).await {
        Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(cannot("find out whether an object is absent", error)),
        Ok(_) => Err(BlobError::Refused("the store still has an object whose delete it confirmed".into())),
    }
}

async fn check_multipart(store: &dyn MultipartStore, key: &ObjectKey) -> Result<(), BlobError> {
    let upload_id = store.start(key, None).await.map_err(|error| cannot("start multipart uploads", error))?;
    let listed = store.list_parts(key, &upload_id).await;
    let unfinished: Result<Vec<_>, _> = store.list_unfinished(key.as_str()).try_collect().await;
    store.abort_all(key).await.map_err(|error| cannot("abort multipart uploads", error))?;
    listed.map_err(|error| cannot("list the parts of multipart uploads", error))?;
    unfinished.map_err(|error| cannot("list multipart uploads", error))?;
    Ok(())
}

async fn remove_leftovers(store: &dyn BlobStore) -> Result<(), BlobError> {
    let folder = format!("{INTERNAL}probe/");
    let is_old = |at: i64| at < store.now().saturating_sub(LEFTOVER_AGE_MS);
    let objects: Vec<ListedObject> = store.list(&folder, None).try_collect().await?;
    let keys: Vec<ObjectKey> = objects
        .iter()
        .filter(|listed| is_old(listed.modified_at))
        .filter_map(|listed| listed.key.strip_prefix(&folder).map(ObjectKey::probe))
        .collect();
    for outcome in store.delete_many(&keys).await {
        outcome?;
    }
    let Some(multipart) = store.multipart() else { return Ok(()) };
    let uploads: Vec<UnfinishedUpload> = multipart.list_unfinished(&folder).try_collect().await?;
    for upload in uploads.iter().filter(|upload| upload.started_at.is_some_and(is_old)) {
        if let Some(name) = upload.key.strip_prefix(&folder) {
            multipart.abort(&ObjectKey::probe(name), &upload.upload_id).await?;
        }
    }
    Ok(())
}
