//! Listing in the order of keys, page by page.

use std::sync::Arc;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use futures::stream::{BoxStream, TryStreamExt as _};
use serde::Deserialize;
use wharfinger_lifecycle::UnixMs;

use super::call::{Call, Client};
use crate::http::list::{check_order, full_key, next_page, pages};
use crate::{BlobError, ListedObject};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    /// Required, so that an answer that is not a listing is not taken for an empty one.
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

impl From<Entry> for ListedObject {
    /// With the full key.
    fn from(entry: Entry) -> ListedObject {
        let modified_at = entry.last_modified.as_deref().and_then(to_unix_ms).unwrap_or(0);
        ListedObject { key: entry.key, size: entry.size, modified_at }
    }
}

pub(super) fn objects(
    client: &Arc<Client>,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<ListedObject, BlobError>> {
    let after = full_key(&client.prefix, start_after);
    let (shared, full_prefix, start_after) =
        (client.clone(), format!("{}{prefix}", client.prefix), after.clone());
    let listed = pages(None::<String>, move |token| {
        let start_after = start_after.clone().filter(|_| token.is_none());
        let call = Call::of_bucket()
            .with("list-type", "2")
            .with("prefix", full_prefix.as_str())
            .with_some("continuation-token", token)
            .with_some("start-after", start_after);
        let client = shared.clone();
        async move {
            let page: Page = client.get_xml(call).await?;
            let next = next_page(page.is_truncated, page.next_continuation_token)?;
            Ok((page.contents, next.map(Some)))
        }
    });
    check_order(listed.map_ok(ListedObject::from), &client.prefix, after)
}

/// Checks that the bucket can be listed.
pub(super) async fn check(client: &Client) -> Result<(), BlobError> {
    let call = Call::of_bucket().with("list-type", "2").with("max-keys", "1");
    Ok(client.get_xml::<Page>(call.with("prefix", client.prefix.as_str())).await.map(drop)?)
}

pub(super) fn to_unix_ms(at: &str) -> Option<UnixMs> {
    DateTime::from_str(at, Format::DateTime).ok()?.to_millis().ok()
}

#[cfg(test)]
mod tests {
    use super::super::sign::Signer;
    use super::*;
    use crate::http::{self, CallError};

    /// An answer to a listing of version 2, as in Google's documentation.
    const PAGE: &str = "<?xml version='1.0' encoding='UTF-8'?>\
        <ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'><Name>box</Name><Prefix>w/</Prefix>\
        <KeyCount>2</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>Cgh3L2I=</NextContinuationToken>\
        <Contents><Key>w/a%2Eb</Key><Generation>1360887697105000</Generation><MetaGeneration>1</MetaGeneration>\
        <LastModified>1970-01-01T00:00:05.250Z</LastModified><ETag>\"0f\"</ETag><Size>7</Size></Contents>\
        <Contents><Key>w/b</Key><LastModified>1970-01-01T00:00:06Z</LastModified><Size>0</Size></Contents>\
        </ListBucketResult>";

    fn from_xml(xml: &str) -> Result<Page, CallError> {
        http::from_xml::<Signer, Page>(xml)
    }

    #[test]
    fn a_page_is_read() {
        let page = from_xml(PAGE).expect("a page");
        let wanted = [
            ListedObject { key: "w/a%2Eb".into(), size: 7, modified_at: 5_250 },
            ListedObject { key: "w/b".into(), size: 0, modified_at: 6_000 },
        ];
        assert_eq!(page.contents.into_iter().map(ListedObject::from).collect::<Vec<_>>(), wanted);
        let next = next_page(page.is_truncated, page.next_continuation_token).expect("a marker");
        assert_eq!(next.as_deref(), Some("Cgh3L2I="));
    }

    #[test]
    fn an_answer_without_a_listing_is_an_error_and_no_empty_listing() {
        for other in ["", "<html></html>", "<ListBucketResult></ListBucketResult>", "{}"] {
            assert!(from_xml(other).is_err(), "{other}");
        }
        assert!(from_xml("<ListBucketResult><Name>box</Name></ListBucketResult>").is_ok());
    }
}
