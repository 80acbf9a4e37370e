//! Listing in the order of keys, page by page.

use std::sync::Arc;

use futures::future::ready;
use futures::stream::{BoxStream, TryStreamExt as _};
use serde::Deserialize;
use wharfinger_calls::http::from_http_date;

use super::call::{Call, Client};
use crate::http::list::{check_order, full_key, pages};
use crate::{BlobError, ListedObject};

/// Which blobs of a container to list.
#[derive(Clone)]
pub(super) struct Listing {
    pub(super) client: Arc<Client>,
    pub(super) prefix: String,
    /// A set of blobs to list in addition to the committed and current ones.
    pub(super) include: Option<&'static str>,
    /// The first key, inclusive.
    pub(super) start_from: Option<String>,
    pub(super) page_max: Option<u32>,
}

impl Listing {
    pub(super) fn under(client: &Arc<Client>, prefix: &str) -> Listing {
        Listing {
            client: client.clone(),
            prefix: format!("{}{prefix}", client.prefix),
            include: None,
            start_from: None,
            page_max: None,
        }
    }

    /// Every entry, unchanged, in the service's order.
    pub(super) fn entries(self) -> BoxStream<'static, Result<Entry, BlobError>> {
        pages(None, move |marker| {
            let listing = self.clone();
            async move {
                let page = listing.page(marker).await?;
                let next = page.next_marker.filter(|marker| !marker.is_empty());
                Ok((page.blobs.blob, next.map(Some)))
            }
        })
    }

    pub(super) async fn page(&self, marker: Option<String>) -> Result<Page, BlobError> {
        let start_from = self.start_from.as_deref().filter(|_| marker.is_none());
        let call = Call::of_bucket()
            .with("restype", "container")
            .with("comp", "list")
            .with_some("prefix", Some(self.prefix.as_str()).filter(|prefix| !prefix.is_empty()))
            .with_some("include", self.include)
            .with_some("maxresults", self.page_max.map(|max| max.to_string()))
            .with_some("startFrom", start_from)
            .with_some("marker", marker);
        Ok(self.client.get_xml(call).await?)
    }
}

pub(super) fn objects(
    client: &Arc<Client>,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<ListedObject, BlobError>> {
    let after = full_key(&client.prefix, start_after);
    let mut listing = Listing::under(client, prefix);
    // A start before the prefix changes nothing.
    let is_useful = |after: &String| client.features.get().starts_from && *after > listing.prefix;
    listing.start_from = after.clone().filter(is_useful);
    let listed = listing.entries().try_filter(|entry| ready(!entry.is_folder())).map_ok(|entry| {
        ListedObject { key: entry.key(), size: entry.size(), modified_at: entry.modified_at().unwrap_or(0) }
    });
    check_order(listed, &client.prefix, after)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Page {
    blobs: Blobs,
    next_marker: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Blobs {
    #[serde(default, rename = "Blob")]
    blob: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Entry {
    name: Name,
    pub(super) version_id: Option<String>,
    properties: Properties,
}

#[derive(Debug, Deserialize)]
struct Name {
    #[serde(rename = "@Encoded")]
    encoded: Option<bool>,
    #[serde(default, rename = "$text")]
    text: String,
}

#[derive(Debug, Deserialize)]
struct Properties {
    #[serde(rename = "Content-Length")]
    content_length: Option<u64>,
    #[serde(rename = "Last-Modified")]
    last_modified: Option<String>,
    #[serde(rename = "ResourceType")]
    resource_type: Option<String>,
}

impl Entry {
    pub(super) fn key(&self) -> String {
        match self.name.encoded {
            Some(true) => decoded(&self.name.text),
            _ => self.name.text.clone(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.properties.content_length.unwrap_or(0)
    }

    pub(super) fn modified_at(&self) -> Option<i64> {
        self.properties.last_modified.as_deref().and_then(from_http_date)
    }

    fn is_folder(&self) -> bool {
        self.properties.resource_type.as_deref() == Some("directory")
    }
}

/// Azure percent-encodes names that XML cannot contain.
fn decoded(name: &str) -> String {
    let mut pieces = name.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        match piece.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&piece.as_bytes()[2..]);
            }
            None => bytes.extend(b"%".iter().chain(piece.as_bytes())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::call::Account;
    use super::*;
    use crate::http::{self, CallError};

    fn from_xml(xml: &str) -> Result<Page, CallError> {
        http::from_xml::<Account, Page>(xml)
    }

    /// The example in the service's documentation, with its byte order mark.
    const PAGE: &str = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults \
        ServiceEndpoint=\"https://a.blob.core.windows.net/\" ContainerName=\"c\"><Prefix>u</Prefix><Blobs>\
        <Blob><Name>u/a%2Eb</Name><Properties><Last-Modified>Thu, 01 Jan 1970 00:00:05 GMT</Last-Modified>\
        <Etag>0x1</Etag><Content-Length>7</Content-Length></Properties><OrMetadata /></Blob>\
        <Blob><Name Encoded=\"true\">u%2Fb%EF%BF%BE%</Name><VersionId>v</VersionId><Properties>\
        <Content-Length>0</Content-Length></Properties></Blob>\
        <Blob><Name>u/d</Name><Properties><ResourceType>directory</ResourceType></Properties></Blob>\
        </Blobs><NextMarker>2!8!a</NextMarker></EnumerationResults>";

    #[test]
    fn a_page_is_read() {
        let page = from_xml(PAGE).expect("a page");
        assert_eq!(page.next_marker.as_deref(), Some("2!8!a"));
        let keys: Vec<String> = page.blobs.blob.iter().map(Entry::key).collect();
        assert_eq!(keys, ["u/a%2Eb", "u/b\u{fffe}%", "u/d"]);
        assert_eq!((page.blobs.blob[0].size(), page.blobs.blob[0].modified_at()), (7, Some(5_000)));
        assert_eq!(page.blobs.blob[1].version_id.as_deref(), Some("v"));
        assert_eq!(page.blobs.blob.iter().map(Entry::is_folder).collect::<Vec<_>>(), [false, false, true]);
        let empty = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
        assert!(from_xml(empty).expect("a page").blobs.blob.is_empty());
    }

    #[test]
    fn an_answer_without_a_listing_is_an_error_and_no_empty_listing() {
        for other in ["", "<html></html>", "<EnumerationResults></EnumerationResults>", "{}"] {
            assert!(from_xml(other).is_err(), "{other}");
        }
    }
}
