//! Listing in the order of keys, page by page. What the store lists out of order is an error, not a surprise for
//! whoever merges it with the catalog.

use std::sync::Arc;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use wharfinger_lifecycle::UnixMs;

use super::super::{BlobError, Listed};
use super::GcsStore;
use super::call::{Call, Client};
use super::error::{from_xml, unreached};

/// A wrong order would make a merge call a living object an orphan.
const OUT_OF_ORDER: &str = "the store does not list its keys in the order of their bytes";

struct Listing {
    client: Arc<Client>,
    prefix: String,
    under: String,
    start_after: Option<String>,
    next: Next,
    last: Option<String>,
}

enum Next {
    First,
    Page(String),
    Done,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    /// What is no listing may still look like an empty one.
    #[serde(rename = "Name")]
    _name: String,
    #[serde(default)]
    contents: Vec<Entry>,
    is_truncated: Option<bool>,
    next_continuation_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    key: String,
    #[serde(default)]
    size: u64,
    last_modified: Option<String>,
}

pub(super) fn objects(
    store: &GcsStore,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<Listed, BlobError>> {
    let listing = Listing {
        client: store.client.clone(),
        prefix: store.prefix.clone(),
        under: format!("{}{prefix}", store.prefix),
        start_after: start_after
            .filter(|after| !after.is_empty())
            .map(|after| format!("{}{after}", store.prefix)),
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

/// One page of at most one: whether the bucket can be listed at all.
pub(super) async fn first(client: &Client, under: &str) -> Result<(), BlobError> {
    let call = Call::of_bucket().with("list-type", "2").with("max-keys", "1").with("prefix", under);
    let answer = client.send(call).await?;
    Ok(from_xml::<Page>(&answer.text().await.map_err(unreached)?).map(drop)?)
}

impl Listing {
    async fn page(&mut self) -> Result<Option<Vec<Listed>>, BlobError> {
        let mut call = Call::of_bucket().with("list-type", "2").with("prefix", self.under.as_str());
        match (&self.next, &self.start_after) {
            (Next::Done, _) => return Ok(None),
            (Next::Page(token), _) => call = call.with("continuation-token", token.as_str()),
            (Next::First, Some(after)) => call = call.with("start-after", after.as_str()),
            (Next::First, None) => {}
        }
        let answer = self.client.send(call).await?;
        let page: Page = from_xml(&answer.text().await.map_err(unreached)?)?;
        self.take(page).map(Some)
    }

    fn take(&mut self, page: Page) -> Result<Vec<Listed>, BlobError> {
        self.next = match (page.is_truncated.unwrap_or(false), page.next_continuation_token) {
            (true, Some(token)) => Next::Page(token),
            (true, None) => {
                return Err(BlobError::Unavailable("a listing breaks off without saying where".into()));
            }
            (false, _) => Next::Done,
        };
        let mut listed = Vec::with_capacity(page.contents.len());
        for entry in page.contents {
            if self.last.as_ref().is_some_and(|last| *last >= entry.key) {
                return Err(BlobError::Refused(OUT_OF_ORDER.into()));
            }
            let wanted = self.start_after.as_ref().is_none_or(|after| entry.key > *after);
            if let (true, Some(short)) = (wanted, entry.key.strip_prefix(&self.prefix)) {
                listed.push(Listed {
                    key: short.to_owned(),
                    size: entry.size,
                    modified_at: entry.last_modified.as_deref().and_then(to_unix_ms).unwrap_or(0),
                });
            }
            self.last = Some(entry.key);
        }
        Ok(listed)
    }
}

pub(super) fn to_unix_ms(at: &str) -> Option<UnixMs> {
    DateTime::from_str(at, Format::DateTime).ok()?.to_millis().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Google's documentation shows a listing of the second kind.
    const PAGE: &str = "<?xml version='1.0' encoding='UTF-8'?>\
        <ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'><Name>box</Name><Prefix>w/</Prefix>\
        <KeyCount>2</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>Cgh3L2I=</NextContinuationToken>\
        <Contents><Key>w/a%2Eb</Key><Generation>1360887697105000</Generation><MetaGeneration>1</MetaGeneration>\
        <LastModified>1970-01-01T00:00:05.250Z</LastModified><ETag>\"0f\"</ETag><Size>7</Size></Contents>\
        <Contents><Key>w/b</Key><LastModified>1970-01-01T00:00:06Z</LastModified><Size>0</Size></Contents>\
        </ListBucketResult>";

    fn listing() -> Listing {
        let key = include_str!("testdata/key.pem");
        let file = serde_json::json!({"type": "service_account", "client_email": "a@b", "private_key": key});
        let options = super::super::GcsOptions {
            bucket: "box".into(),
            credentials: Some(super::super::GcsCredentials::Json(file.to_string())),
            ..super::super::GcsOptions::default()
        };
        Listing {
            client: Arc::new(super::super::connect::client(&options).expect("a client")),
            prefix: "w/".into(),
            under: "w/".into(),
            start_after: None,
            next: Next::First,
            last: None,
        }
    }

    #[test]
    fn a_page_is_read() {
        let mut listing = listing();
        let listed = listing.take(from_xml(PAGE).expect("a page")).expect("in order");
        let wanted = [
            Listed { key: "a%2Eb".into(), size: 7, modified_at: 5_250 },
            Listed { key: "b".into(), size: 0, modified_at: 6_000 },
        ];
        assert_eq!(listed, wanted);
        assert!(matches!(&listing.next, Next::Page(token) if token == "Cgh3L2I="));
        let again = listing.take(from_xml(PAGE).expect("a page")).expect_err("not behind what was listed");
        assert!(matches!(again, BlobError::Refused(_)), "{again}");
    }

    #[test]
    fn what_is_no_listing_is_no_empty_one() {
        for other in ["", "<html></html>", "<ListBucketResult></ListBucketResult>", "{}"] {
            assert!(from_xml::<Page>(other).is_err(), "{other}");
        }
        assert!(from_xml::<Page>("<ListBucketResult><Name>box</Name></ListBucketResult>").is_ok());
    }

    #[test]
    fn what_comes_before_is_passed_over() {
        let mut listing = Listing { start_after: Some("w/a%2Eb".into()), ..listing() };
        let listed = listing.take(from_xml(PAGE).expect("a page")).expect("in order");
        assert_eq!(listed.iter().map(|listed| listed.key.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
