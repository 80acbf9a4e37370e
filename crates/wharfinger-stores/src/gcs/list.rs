//! Listing in the order of keys, page by page.

use std::sync::Arc;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use futures::stream::{BoxStream, TryStreamExt as _};
use serde::Deserialize;
use wharfinger_lifecycle::UnixMs;

use super::call::{Call, Client};
use crate::http::list::{full_after, in_order, next, pages};
use crate::{BlobError, Listed};

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

impl From<Entry> for Listed {
    /// With the full key.
    fn from(entry: Entry) -> Listed {
        let modified_at = entry.last_modified.as_deref().and_then(to_unix_ms).unwrap_or(0);
        Listed { key: entry.key, size: entry.size, modified_at }
    }
}

pub(super) fn objects(
    client: &Arc<Client>,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<Listed, BlobError>> {
    let after = full_after(&client.prefix, start_after);
    let (asked, under, start_after) = (client.clone(), format!("{}{prefix}", client.prefix), after.clone());
    let listed = pages(None::<String>, move |token| {
        let start_after = start_after.clone().filter(|_| token.is_none());
        let call = Call::of_bucket()
            .with("list-type", "2")
            .with("prefix", under.as_str())
            .with_some("continuation-token", token)
            .with_some("start-after", start_after);
        let client = asked.clone();
        async move {
            let page: Page = client.ask(call).await?;
            let next = next(page.is_truncated, page.next_continuation_token)?;
            Ok((page.contents, next.map(Some)))
        }
    });
    in_order(listed.map_ok(Listed::from), &client.prefix, after)
}

/// One page of at most one: whether the bucket can be listed at all.
pub(super) async fn first(client: &Client) -> Result<(), BlobError> {
    let call = Call::of_bucket().with("list-type", "2").with("max-keys", "1");
    Ok(client.ask::<Page>(call.with("prefix", client.prefix.as_str())).await.map(drop)?)
}

pub(super) fn to_unix_ms(at: &str) -> Option<UnixMs> {
    DateTime::from_str(at, Format::DateTime).ok()?.to_millis().ok()
}

#[cfg(test)]
mod tests {
    use super::super::sign::Signer;
    use super::*;
    use crate::http::{self, Failure};

    /// As Google's documentation shows a listing of the second kind.
    const PAGE: &str = "<?xml version='1.0' encoding='UTF-8'?>\
        <ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'><Name>box</Name><Prefix>w/</Prefix>\
        <KeyCount>2</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>Cgh3L2I=</NextContinuationToken>\
        <Contents><Key>w/a%2Eb</Key><Generation>1360887697105000</Generation><MetaGeneration>1</MetaGeneration>\
        <LastModified>1970-01-01T00:00:05.250Z</LastModified><ETag>\"0f\"</ETag><Size>7</Size></Contents>\
        <Contents><Key>w/b</Key><LastModified>1970-01-01T00:00:06Z</LastModified><Size>0</Size></Contents>\
        </ListBucketResult>";

    fn from_xml(xml: &str) -> Result<Page, Failure> {
        http::from_xml::<Signer, Page>(xml)
    }

    #[test]
    fn a_page_is_read() {
        let page = from_xml(PAGE).expect("a page");
        let wanted = [
            Listed { key: "w/a%2Eb".into(), size: 7, modified_at: 5_250 },
            Listed { key: "w/b".into(), size: 0, modified_at: 6_000 },
        ];
        assert_eq!(page.contents.into_iter().map(Listed::from).collect::<Vec<_>>(), wanted);
        let next = next(page.is_truncated, page.next_continuation_token).expect("whole");
        assert_eq!(next.as_deref(), Some("Cgh3L2I="));
    }

    #[test]
    fn what_is_no_listing_is_no_empty_one() {
        for other in ["", "<html></html>", "<ListBucketResult></ListBucketResult>", "{}"] {
            assert!(from_xml(other).is_err(), "{other}");
        }
        assert!(from_xml("<ListBucketResult><Name>box</Name></ListBucketResult>").is_ok());
    }
}
