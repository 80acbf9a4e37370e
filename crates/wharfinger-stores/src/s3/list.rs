//! Listing in the order of keys, page by page.

use aws_sdk_s3::types::{EncodingType, Object};
use futures::stream::BoxStream;
use wharfinger_lifecycle::UnixMs;

use super::S3Store;
use super::error::{NOT_S3, from_sdk};
use crate::http::list::{check_order, full_key, next_page, pages};
use crate::{BlobError, ListedObject};

pub(super) fn objects(
    store: &S3Store,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<ListedObject, BlobError>> {
    let after = full_key(&store.prefix, start_after);
    let list =
        store.client.list_objects_v2().bucket(&store.bucket).prefix(format!("{}{prefix}", store.prefix));
    let list = list.encoding_type(EncodingType::Url);
    let start_after = after.clone();
    let listed = pages(None, move |token: Option<String>| {
        let start_after = start_after.clone().filter(|_| token.is_none());
        let list = list.clone().set_start_after(start_after).set_continuation_token(token);
        async move {
            let answer = list.send().await.map_err(|error| from_sdk(&error))?;
            if answer.name().is_none() {
                return Err(BlobError::Unavailable(NOT_S3.into()));
            }
            let is_encoded = answer.encoding_type() == Some(&EncodingType::Url);
            let next = next_page(answer.is_truncated(), answer.next_continuation_token)?;
            let objects = answer.contents.unwrap_or_default().into_iter();
            let objects: Result<Vec<_>, _> = objects.map(|object| listed(&object, is_encoded)).collect();
            Ok((objects?, next.map(Some)))
        }
    });
    check_order(listed, &store.prefix, after)
}

fn listed(object: &Object, is_encoded: bool) -> Result<ListedObject, BlobError> {
    let key = object.key().map(|key| if is_encoded { decoded(key) } else { key.to_owned() });
    Ok(ListedObject {
        key: key.ok_or_else(|| BlobError::Unavailable("a listed object has no key".into()))?,
        size: object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
        modified_at: object.last_modified().map_or(0, to_unix_ms),
    })
}

pub(super) fn to_unix_ms(at: &aws_sdk_s3::primitives::DateTime) -> UnixMs {
    at.to_millis().unwrap_or(0)
}

/// Stores encode listed keys like form data.
fn decoded(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (b'+', _) => {
                out.push(b' ');
                at += 1;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn keys_are_decoded_like_forms() {
        assert_eq!(decoded("a%252E/b+c%2B%C3%BC%"), "a%2E/b c+ü%");
    }
}
