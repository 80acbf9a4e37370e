//! Listing in the order of keys, page by page. What a store lists out of order is an error, not a surprise for
//! whoever merges it with the catalog.

use aws_sdk_s3::Client;
use aws_sdk_s3::types::EncodingType;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use wharfinger_lifecycle::UnixMs;

use super::super::{BlobError, Listed};
use super::S3Store;
use super::error::{NOT_S3, from_sdk};

struct Listing {
    client: Client,
    bucket: String,
    prefix: String,
    start_after: Option<String>,
    under: String,
    next: Next,
    last: Option<String>,
}

enum Next {
    First,
    Page(String),
    Done,
}

/// A wrong order would make a merge call a living object an orphan.
const OUT_OF_ORDER: &str = "the store does not list its keys in the order of their bytes";

pub(super) fn objects(
    store: &S3Store,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<Listed, BlobError>> {
    let listing = Listing {
        client: store.client.clone(),
        bucket: store.bucket.clone(),
        prefix: store.prefix.clone(),
        start_after: start_after
            .filter(|after| !after.is_empty())
            .map(|after| format!("{}{after}", store.prefix)),
        under: format!("{}{prefix}", store.prefix),
        next: Next::First,
        last: None,
    };
    stream::try_unfold(listing, |mut listing| async move {
        let page = listing.page().await?;
        Ok::<_, BlobError>(page.map(|page| (stream::iter(page.into_iter().map(Ok)), listing)))
    })
    .try_flatten()
    .boxed()
}

impl Listing {
    async fn page(&mut self) -> Result<Option<Vec<Listed>>, BlobError> {
        let list = self.client.list_objects_v2().bucket(&self.bucket).prefix(&self.under);
        let list = list.encoding_type(EncodingType::Url);
        let list = match &self.next {
            Next::First => list.set_start_after(self.start_after.clone()),
            Next::Page(token) => list.continuation_token(token),
            Next::Done => return Ok(None),
        };
        let answer = list.send().await.map_err(|error| from_sdk(&error))?;
        if answer.name().is_none() {
            return Err(BlobError::Unavailable(NOT_S3.into()));
        }
        let encoded = answer.encoding_type() == Some(&EncodingType::Url);
        let mut page = Vec::with_capacity(answer.contents().len());
        for object in answer.contents() {
            let key = object.key().map(|key| if encoded { decoded(key) } else { key.to_owned() });
            let key = key.ok_or_else(|| BlobError::Unavailable("a listed object has no key".into()))?;
            if self.last.as_ref().is_some_and(|last| *last >= key) {
                return Err(BlobError::Refused(OUT_OF_ORDER.into()));
            }
            // Belt and braces for stores that know no start-after.
            let wanted = self.start_after.as_ref().is_none_or(|after| key > *after);
            if let (true, Some(short)) = (wanted, key.strip_prefix(&self.prefix)) {
                page.push(Listed {
                    key: short.to_owned(),
                    size: object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
                    modified_at: object.last_modified().map_or(0, to_unix_ms),
                });
            }
            self.last = Some(key);
        }
        self.next = match (answer.is_truncated().unwrap_or(false), answer.next_continuation_token()) {
            (true, Some(token)) => Next::Page(token.to_owned()),
            (true, None) => return Err(broken_off()),
            (false, _) => Next::Done,
        };
        Ok(Some(page))
    }
}

/// What is left out would be taken for absent.
pub(super) fn broken_off() -> BlobError {
    BlobError::Unavailable("a listing breaks off without saying where".into())
}

pub(super) fn to_unix_ms(at: &aws_sdk_s3::primitives::DateTime) -> UnixMs {
    at.to_millis().unwrap_or(0)
}

/// As stores encode keys that XML cannot hold: like a form.
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
