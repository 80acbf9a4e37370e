//! One object: its headers, its bytes or a range of them, and its delete.

use futures::stream::{self, StreamExt as _};
use reqwest::header::HeaderMap;
use wharfinger_calls::http::{from_http_date, header};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use super::{Call, CallError, Client, Service};
use crate::{BlobError, BlobStore, Chunks, ObjectMeta, effective_encoding};

pub(crate) fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    header(headers, "etag").map(|etag| unquoted(&etag)).filter(|etag| !etag.is_empty())
}

/// The metadata of an object from the headers of an answer.
pub(crate) fn meta<S: Service>(headers: &HeaderMap) -> Result<ObjectMeta, BlobError> {
    let first = |names: [&str; 2]| names.iter().find_map(|name| header(headers, name));
    // Google's own headers describe the stored object; the standard headers describe the response body.
    let size = first(["x-goog-stored-content-length", "content-length"]).and_then(|size| size.parse().ok());
    let (Some(size), Some(etag)) = (size, etag(headers)) else {
        return Err(BlobError::Unavailable(format!("the answer has no ETag: it is not from {}", S::NAME)));
    };
    Ok(ObjectMeta {
        size,
        etag,
        version_id: first(["x-goog-generation", "x-ms-version-id"]),
        modified_at: header(headers, "last-modified").and_then(|at| from_http_date(&at)),
        content_encoding: effective_encoding(
            first(["x-goog-stored-content-encoding", "content-encoding"]).as_deref(),
        ),
    })
}

/// The value of a `Range` header. None: the whole object.
pub(crate) fn range(start: u64, length: Option<u64>) -> Option<String> {
    match (start, length) {
        (0, None) => None,
        (start, None) => Some(format!("bytes={start}-")),
        (start, Some(length)) => {
            Some(format!("bytes={start}-{}", start.saturating_add(length.saturating_sub(1))))
        }
    }
}

/// HTTP has no empty range, so only the ETag of the object is checked.
pub(crate) async fn empty_range(
    store: &dyn BlobStore,
    key: &ObjectKey,
    pin: &Pin,
) -> Result<Chunks, BlobError> {
    match store.head(key, pin.version_id.as_deref()).await? {
        meta if meta.etag == pin.etag => Ok(stream::empty().boxed()),
        _ => Err(BlobError::Changed),
    }
}

/// Sends a call for an object's bytes, on the condition that it still has the pinned ETag.
pub(crate) async fn get<S: Service>(
    store: &dyn BlobStore,
    client: &Client<S>,
    call: Call<'_>,
    (key, pin): (&ObjectKey, &Pin),
    (start, length): (u64, Option<u64>),
) -> Result<Chunks, BlobError> {
    if length == Some(0) {
        return empty_range(store, key, pin).await;
    }
    // Services reject an empty ETag in the header. The check below compares it anyway.
    let wanted = (!pin.etag.is_empty()).then(|| format!("\"{}\"", pin.etag));
    let call = call.header_some("if-match", wanted).header_some("range", range(start, length));
    let answer = match client.send(call).await {
        Ok(answer) => answer,
        Err(error) if error.code == "InvalidRange" => return empty_range(store, key, pin).await,
        Err(error) => match error.into() {
            // A failed condition can also mean that the object is absent.
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
    Ok(answer.bytes_stream().map(|chunk| chunk.map_err(|error| CallError::from(error).into())).boxed())
}

/// Sends a delete whose condition is that the object has not changed.
pub(crate) async fn delete_if_unchanged<S: Service>(
    store: &dyn BlobStore,
    client: &Client<S>,
    key: &ObjectKey,
    call: Call<'_>,
) -> Result<(), BlobError> {
    match client.delete(call).await {
        // A failed condition can also mean that the object is absent.
        Err(BlobError::Changed) if matches!(store.head(key, None).await, Err(BlobError::NotFound)) => Ok(()),
        outcome => outcome,
    }
}
