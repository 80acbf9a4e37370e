//! Listing in the order of keys, page by page. What the service lists out of order is an error, not a surprise
//! for whoever merges it with the catalog.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;

use super::super::{BlobError, Listed};
use super::AzureStore;
use super::call::{Call, Client};
use super::error::{from_xml, unreached};
use wharfinger_calls::http::from_http_date;

/// A wrong order would make a merge call a living object an orphan.
const OUT_OF_ORDER: &str = "the store does not list its keys in the order of their bytes";

/// What is listed of a container.
pub(super) struct Listing {
    pub(super) client: Arc<Client>,
    pub(super) under: String,
    /// A further set of blobs than those that are whole and current.
    pub(super) include: Option<&'static str>,
    /// The service begins here, the key itself included.
    pub(super) start_from: Option<String>,
    pub(super) page_max: Option<u32>,
}

enum Next {
    First,
    Page(String),
    Done,
}

impl Listing {
    pub(super) fn under(store: &AzureStore, prefix: &str) -> Listing {
        Listing {
            client: store.client.clone(),
            under: format!("{}{prefix}", store.prefix),
            include: None,
            start_from: None,
            page_max: None,
        }
    }

    /// Every entry as the service tells it, in its order.
    pub(super) fn entries(self) -> BoxStream<'static, Result<Entry, BlobError>> {
        stream::try_unfold((self, Next::First), |(listing, next)| async move {
            let marker = match next {
                Next::First => None,
                Next::Page(marker) => Some(marker),
                Next::Done => return Ok(None),
            };
            let page = listing.page(marker).await?;
            let next = match page.next_marker.filter(|marker| !marker.is_empty()) {
                Some(marker) => Next::Page(marker),
                None => Next::Done,
            };
            Ok::<_, BlobError>(Some((stream::iter(page.blobs.blob.into_iter().map(Ok)), (listing, next))))
        })
        .try_flatten()
        .boxed()
    }

    pub(super) async fn page(&self, marker: Option<String>) -> Result<Page, BlobError> {
        let mut call = Call::of_container().with("restype", "container").with("comp", "list");
        if !self.under.is_empty() {
            call = call.with("prefix", self.under.as_str());
        }
        if let Some(include) = self.include {
            call = call.with("include", include);
        }
        if let Some(max) = self.page_max {
            call = call.with("maxresults", max.to_string());
        }
        match (marker, &self.start_from) {
            (Some(marker), _) => call = call.with("marker", marker),
            (None, Some(from)) => call = call.with("startFrom", from.as_str()),
            (None, None) => {}
        }
        let answer = self.client.send(call).await?;
        Ok(from_xml(&answer.text().await.map_err(unreached)?)?)
    }
}

pub(super) fn objects(
    store: &AzureStore,
    prefix: &str,
    start_after: Option<&str>,
) -> BoxStream<'static, Result<Listed, BlobError>> {
    let after = start_after.filter(|after| !after.is_empty()).map(|after| format!("{}{after}", store.prefix));
    let mut listing = Listing::under(store, prefix);
    // Before what is listed anyway there is nothing to begin at.
    let begins = |after: &String| store.learned().starts_from && *after > listing.under;
    listing.start_from = after.clone().filter(begins);
    let own = store.prefix.clone();
    let mut last: Option<String> = None;
    listing
        .entries()
        .try_filter_map(move |entry| {
            let listed = in_order(entry, &mut last, &own, after.as_deref());
            async move { listed }
        })
        .boxed()
}

fn in_order(
    entry: Entry,
    last: &mut Option<String>,
    own: &str,
    after: Option<&str>,
) -> Result<Option<Listed>, BlobError> {
    let key = entry.key();
    if last.as_ref().is_some_and(|last| *last >= key) {
        return Err(BlobError::Refused(OUT_OF_ORDER.into()));
    }
    let wanted = !entry.is_folder() && after.is_none_or(|after| key.as_str() > after);
    let listed = key.strip_prefix(own).filter(|_| wanted).map(|short| Listed {
        key: short.to_owned(),
        size: entry.size(),
        modified_at: entry.modified_at().unwrap_or(0),
    });
    *last = Some(key);
    Ok(listed)
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

/// Names that XML cannot hold come percent-encoded.
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
    use super::*;

    /// As the service's documentation shows it, mark and all.
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
        let page: Page = from_xml(PAGE).expect("a page");
        assert_eq!(page.next_marker.as_deref(), Some("2!8!a"));
        let keys: Vec<String> = page.blobs.blob.iter().map(Entry::key).collect();
        assert_eq!(keys, ["u/a%2Eb", "u/b\u{fffe}%", "u/d"]);
        assert_eq!((page.blobs.blob[0].size(), page.blobs.blob[0].modified_at()), (7, Some(5_000)));
        assert_eq!(page.blobs.blob[1].version_id.as_deref(), Some("v"));
        assert_eq!(page.blobs.blob.iter().map(Entry::is_folder).collect::<Vec<_>>(), [false, false, true]);
        let empty = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
        assert!(from_xml::<Page>(empty).expect("a page").blobs.blob.is_empty());
    }

    #[test]
    fn what_is_no_listing_is_no_empty_one() {
        for other in ["", "<html></html>", "<EnumerationResults></EnumerationResults>", "{}"] {
            assert!(from_xml::<Page>(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_wrong_order_is_an_error() {
        let page: Page = from_xml(PAGE).expect("a page");
        let mut last = None;
        let mut entries = page.blobs.blob.into_iter();
        let first = in_order(entries.next().expect("one"), &mut last, "u/", None).expect("in order");
        assert_eq!(first.map(|listed| listed.key).as_deref(), Some("a%2Eb"));
        last = Some("u/c".into());
        assert!(in_order(entries.next().expect("two"), &mut last, "u/", None).is_err());
    }
}
