//! Compares a page of the store with the rows of the same keys. The page is read first. A row is written before its
//! object, so a listed object without a row is really without one. The other direction is not certain: if a row seems
//! to have no object, the store is asked again.

use std::collections::BTreeSet;
use std::iter::Peekable;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use wharfinger_catalog::{ObjectState, OrphanBlob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::{BlobError, ListedObject};

use super::scan_store::SAMPLES_MAX;
use crate::core::Core;
use crate::core::VerbError;

/// Rows read by one query. There may be many more rows of ended files than objects.
const ROWS_PER_READ: usize = 1_000;
const HEADS_AT_ONCE: usize = 16;

/// The objects of a range in key order.
pub(super) struct Listing {
    objects: BoxStream<'static, Result<ListedObject, BlobError>>,
    upto: String,
}

/// Some objects, and the key up to which the page is complete.
pub(super) struct Page {
    objects: Peekable<std::vec::IntoIter<ListedObject>>,
    upto: String,
    pub(super) is_last: bool,
}

impl Page {
    fn new(listed: Vec<ListedObject>, upto: String, is_last: bool) -> Page {
        Page { objects: listed.into_iter().peekable(), upto, is_last }
    }
}

impl Listing {
    pub(super) fn new(objects: BoxStream<'static, Result<ListedObject, BlobError>>, upto: &str) -> Listing {
        Listing { objects, upto: upto.to_owned() }
    }

    pub(super) async fn page(&mut self, objects_max: usize) -> Result<Page, VerbError> {
        let mut listed: Vec<ListedObject> = Vec::with_capacity(objects_max);
        while listed.len() < objects_max {
            match self.objects.next().await.transpose()? {
                Some(object) if object.key <= self.upto => listed.push(object),
                _ => return Ok(Page::new(listed, self.upto.clone(), true)),
            }
        }
        let upto = listed.last().map_or_else(|| self.upto.clone(), |last| last.key.clone());
        Ok(Page::new(listed, upto, false))
    }
}

/// Where the store and the catalog differ.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) listed: u64,
    pub(super) orphans: Vec<OrphanBlob>,
    /// The number of foreign objects without a row, and some of their keys.
    pub(super) foreign: u64,
    pub(super) foreign_samples: Vec<String>,
    /// Keys of rows without their object.
    pub(super) missing: Vec<String>,
}

/// The result of comparing a page, or a part of it.
pub(super) struct Step {
    pub(super) found: Findings,
    /// Everything up to this key was compared.
    pub(super) upto: String,
    pub(super) is_page_done: bool,
}

/// Compares a page with the rows after `after`, for at most `ROWS_PER_READ` rows. A store that has lost its objects has many
/// rows between two objects.
pub(super) async fn compare(
    core: &Core,
    page: &mut Page,
    after: &str,
    marked_at: UnixMs,
) -> Result<Step, VerbError> {
    let rows = core.catalog.object_rows(after, &page.upto, ROWS_PER_READ).await?;
    let is_page_done = rows.len() < ROWS_PER_READ;
    let upto = match rows.last() {
        Some(last) if !is_page_done => last.key.clone(),
        _ => page.upto.clone(),
    };
    let now = core.blobs.now();
    // An object without a time is not treated as old.
    let is_old = |listed: &ListedObject| {
        listed.modified_at > 0
            && listed.modified_at.saturating_add(core.settings.sweeps.orphan_grace_ms) <= now
    };
    let is_ours =
        |listed: &ListedObject| ObjectKey::has_own_format(&listed.key) && listed.modified_at >= marked_at;
    let mut found = Findings::default();
    let (mut suspects, mut orphans): (Vec<String>, Vec<ListedObject>) = (Vec::new(), Vec::new());
    let without_row = |object: ListedObject, found: &mut Findings, orphans: &mut Vec<ListedObject>| {
        found.listed += 1;
        if !is_ours(&object) {
            found.foreign(object);
        } else if is_old(&object) {
            orphans.push(object);
        }
    };
    for row in rows {
        while let Some(object) = page.objects.next_if(|object| object.key < row.key) {
            without_row(object, &mut found, &mut orphans);
        }
        let object = page.objects.next_if(|object| object.key == row.key);
        found.listed += u64::from(object.is_some());
        match (object, row.state) {
            // An object of an ended file is an orphan at any age.
            (Some(object), ObjectState::Ended) => orphans.push(object),
            (None, ObjectState::Required) => suspects.push(row.key),
            (Some(_), ObjectState::Required | ObjectState::Pending) => {}
            (None, ObjectState::Pending | ObjectState::Ended) => {}
        }
    }
    while let Some(object) = page.objects.next_if(|object| object.key <= upto) {
        without_row(object, &mut found, &mut orphans);
    }
    skip_queued(core, orphans, &mut found).await?;
    found.missing = confirm_missing(core, suspects).await;
    Ok(Step { found, upto, is_page_done })
}

impl Findings {
    fn foreign(&mut self, object: ListedObject) {
        // Store consoles create empty objects as folders. They have no bytes.
        if object.key.ends_with('/') && object.size == 0 {
            return;
        }
        self.foreign += 1;
        if self.foreign_samples.len() < SAMPLES_MAX {
            self.foreign_samples.push(object.key);
        }
    }
}

/// Skips objects that already have a cleanup.
async fn skip_queued(core: &Core, orphans: Vec<ListedObject>, found: &mut Findings) -> Result<(), VerbError> {
    if orphans.is_empty() {
        return Ok(());
    }
    let keys: Vec<&str> = orphans.iter().map(|object| object.key.as_str()).collect();
    let queued: BTreeSet<String> = core.catalog.keys_with_cleanup(&keys).await?.into_iter().collect();
    let orphans = orphans.into_iter().filter(|object| !queued.contains(&object.key));
    found.orphans = orphans
        .map(|object| OrphanBlob { key: object.key, size: object.size, modified_at: object.modified_at })
        .collect();
    Ok(())
}

/// Keeps only keys for which the store clearly answers "not found". The catalog checks the row again when it stores them.
async fn confirm_missing(core: &Core, suspects: Vec<String>) -> Vec<String> {
    let heads =
        suspects.into_iter().filter_map(|key| ObjectKey::parse(&key).ok()).map(async |key| {
            match core.blobs.head(&key, None).await {
                Err(BlobError::NotFound) => Some(key.to_string()),
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(error = %error, "cannot check whether an object exists");
                    None
                }
            }
        });
    futures::stream::iter(heads).buffered(HEADS_AT_ONCE).filter_map(std::future::ready).collect().await
}
