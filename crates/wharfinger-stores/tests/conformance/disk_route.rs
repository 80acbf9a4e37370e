//! Answers requests to signed URLs of local disk like the program, without HTTP. Only parts can be uploaded.

use futures::TryStreamExt as _;
use reqwest::header::HeaderMap;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::{DiskStore, IncomingError, ROUTE, SignedQuery};
use wharfinger_stores::{BlobError, BlobStore as _, Part};

use super::fixture::{PUBLIC_URL, pin};
use super::sending::Answer;

fn parsed(url: &str) -> Option<(ObjectKey, SignedQuery)> {
    let (path, query) = url.strip_prefix(PUBLIC_URL)?.strip_prefix(ROUTE)?.split_once('?')?;
    let query = serde_urlencoded::from_str(query).ok()?;
    Some((ObjectKey::parse(&path.replace("%25", "%")).ok()?, query))
}

pub(super) async fn answer(disk: &DiskStore, method: &str, url: &str, body: &[u8]) -> Answer {
    let signed = parsed(url).filter(|(key, query)| disk.signing_key().verify(method, key, query));
    let (status, body) = match (method, signed) {
        ("PUT", Some((key, query))) => match put(disk, &key, &query, body).await {
            Ok(_) => (200, Vec::new()),
            Err(IncomingError::TooLong | IncomingError::TooShort(_)) => (400, Vec::new()),
            Err(IncomingError::Exists) => (412, Vec::new()),
            Err(IncomingError::Store(BlobError::NotFound)) => (404, Vec::new()),
            Err(error) => panic!("{error}"),
        },
        ("GET", Some((key, query))) => {
            let pin = pin(&query.etag.expect("a signed download has an ETag"));
            let chunks = disk.get(&key, &pin, 0, None).await.expect("the object");
            (200, chunks.try_collect::<Vec<_>>().await.expect("all bytes").concat())
        }
        _ => (403, Vec::new()),
    };
    Answer { status, headers: HeaderMap::new(), body }
}

async fn put(
    disk: &DiskStore,
    key: &ObjectKey,
    query: &SignedQuery,
    body: &[u8],
) -> Result<Part, IncomingError> {
    let place = query.part().expect("a URL of a part");
    let mut part = disk.receive_part(key, &place, query.size.expect("a signed size")).await?;
    part.bytes.write(body).await?;
    disk.place_part(part).await
}
