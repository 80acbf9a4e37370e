//! One object: the headers that describe it, its bytes or a range of them, and its delete.

use futures::stream::{self, StreamExt as _};
use reqwest::header::HeaderMap;
use wharfinger_calls::http::{from_http_date, header};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use super::{Call, Client, Failure, Service};
use crate::{BlobError, BlobStore, Chunks, ObjectMeta, encoding};

pub(crate) fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    header(headers, "etag").map(|etag| unquoted(&etag)).filter(|etag| !etag.is_empty())
}

/// What the headers of an answer say about its object.
pub(crate) fn meta<S: Service>(headers: &HeaderMap) -> Result<ObjectMeta, BlobError> {
    let first = |names: [&str; 2]| names.iter().find_map(|name| header(headers, name));
    // Google's own headers speak of what is stored, the usual ones of what is sent.
    let size = first(["x-goog-stored-content-length", "content-length"]).and_then(|size| size.parse().ok());
    let (Some(size), Some(etag)) = (size, etag(headers)) else {
        return Err(BlobError::Unavailable(format!("the answer has no ETag: this is not {}'s", S::NAME)));
    };
    Ok(ObjectMeta {
        size,
        etag,
        version_id: first(["x-goog-generation", "x-ms-version-id"]),
        modified_at: header(headers, "last-modified").and_then(|at| from_http_date(&at)),
        content_encoding: encoding(first(["x-goog-stored-content-encoding", "content-encoding"]).as_deref()),
    })
}

/// The value of a `Range` header, where not the whole object is meant.
pub(crate) fn range(start: u64, length: Option<u64>) -> Option<String> {
    match (start, length) {
        (0, None) => None,
        (start, None) => Some(format!("bytes={start}-")),
        (start, Some(length)) => {
            Some(format!("bytes={start}-{}", start.saturating_add(length.saturating_sub(1))))
        }
    }
}

/// A range of no bytes cannot be asked for. Whether the object is still the right one can.
pub(crate) async fn nothing(store: &dyn BlobStore, key: &ObjectKey, pin: &Pin) -> Result<Chunks, BlobError> {
    match store.head(key, pin.version_id.as_deref()).await? {
        meta if meta.etag == pin.etag => Ok(stream::empty().boxed()),
        _ => Err(BlobError::Changed),
    }
}

/// Sends a call for an object's bytes, if it still has this ETag.
pub(crate) async fn get<S: Service>(
    store: &dyn BlobStore,
    client: &Client<S>,
    call: Call<'_>,
    (key, pin): (&ObjectKey, &Pin),
    (start, length): (u64, Option<u64>),
) -> Result<Chunks, BlobError> {
    if length == Some(0) {
        return nothing(store, key, pin).await;
    }
    // An empty one is no ETag, and refused as such.
    let wanted = (!pin.etag.is_empty()).then(|| format!("\"{}\"", pin.etag));
    let call = call.header_some("if-match", wanted).header_some("range", range(start, length));
    let answer = match client.send(call).await {
        Ok(answer) => answer,
        Err(failure) if failure.code == "InvalidRange" => return nothing(store, key, pin).await,
        Err(failure) => match failure.into() {
            // An absent object may be said not to meet the condition either.
            BlobError::Changed => {
                store.head(key, pin.version_id.as_deref()).await?;
                return Err(BlobError::Changed);
            }
            other => return Err(other),
        },
    };
    if etag(answer.headers()).as_deref() != Some(pin.etag.as_str()) {
        return Err(BlobError::Changed);
    }
    Ok(answer.bytes_stream().map(|chunk| chunk.map_err(|error| Failure::from(error).into())).boxed())
}

/// Sends a delete under a condition that the object is still as it was seen.
pub(crate) async fn delete_seen<S: Service>(
    store: &dyn BlobStore,
    client: &Client<S>,
    key: &ObjectKey,
    call: Call<'_>,
) -> Result<(), BlobError> {
    match client.delete(call).await {
        // An absent object does not meet the condition either.
        Err(BlobError::Changed) if matches!(store.head(key, None).await, Err(BlobError::NotFound)) => Ok(()),
        outcome => outcome,
    }
}
