//! A page of the store next to the rows of the same keys. The page is read first: a row is written before its object
//! can be, so that an object which was listed has its row by then, unless it has none at all. The other way round
//! nothing is sure, and a row that seems to lack its object is looked at once more.

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

/// Rows that are read at once: those of ended files may be many more than the objects between them.
const ROWS_PER_READ: usize = 1_000;
const HEADS_AT_ONCE: usize = 16;

/// Objects in the order of their keys, up to the end of a range.
pub(super) struct Listing {
    objects: BoxStream<'static, Result<ListedObject, BlobError>>,
    upto: String,
}

/// Some objects, and up to which key they are all that there are.
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

/// What the store and the catalog do not agree on.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) listed: u64,
    pub(super) orphans: Vec<OrphanBlob>,
    /// Objects without a row that are not ours, and the names of some.
    pub(super) foreign: u64,
    pub(super) foreign_samples: Vec<String>,
    /// Keys of rows without their object.
    pub(super) missing: Vec<String>,
}

/// How far a page was compared.
pub(super) struct Step {
    pub(super) found: Differences,
    /// Everything up to this key.
    pub(super) upto: String,
    pub(super) is_page_done: bool,
}

/// Compares a page with the rows behind `after`, and no more of them than are read at once: of a store that has lost
/// its objects the rows are many.
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
    // Without a time there is no telling.
    let is_old = |listed: &ListedObject| {
        listed.modified_at > 0
            && listed.modified_at.saturating_add(core.settings.sweeps.orphan_grace_ms) <= now
    };
    let is_ours = |listed: &ListedObject| ObjectKey::has_own_format(&listed.key) && listed.modified_at >= marked_at;
    let mut found = Differences::default();
    let (mut suspects, mut orphans): (Vec<String>, Vec<ListedObject>) = (Vec::new(), Vec::new());
    let without_row = |object: ListedObject, found: &mut Differences, orphans: &mut Vec<ListedObject>| {
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
            // What came after its file had ended is nobody's, however young it is.
            (Some(object), ObjectState::Ended) => orphans.push(object),
            (None, ObjectState::Required) => suspects.push(row.key),
            (Some(_), ObjectState::Required | ObjectState::Pending) => {}
            (None, ObjectState::Pending | ObjectState::Ended) => {}
        }
    }
    while let Some(object) = page.objects.next_if(|object| object.key <= upto) {
        without_row(object, &mut found, &mut orphans);
    }
    sort_out(core, orphans, &mut found).await?;
    found.missing = surely_missing(core, suspects).await;
    Ok(Step { found, upto, is_page_done })
}

impl Differences {
    fn foreign(&mut self, object: ListedObject) {
        // Consoles make folders of empty objects: there are no bytes in them.
        if object.key.ends_with('/') && object.size == 0 {
            return;
        }
        self.foreign += 1;
        if self.foreign_samples.len() < SAMPLES_MAX {
            self.foreign_samples.push(object.key);
        }
    }
}

/// Leaves aside what has a cleanup already.
async fn sort_out(core: &Core, orphans: Vec<ListedObject>, found: &mut Differences) -> Result<(), VerbError> {
    if orphans.is_empty() {
        return Ok(());
    }
    let keys: Vec<&str> = orphans.iter().map(|object| object.key.as_str()).collect();
    let ordered: BTreeSet<String> = core.catalog.keys_with_cleanup(&keys).await?.into_iter().collect();
    let orphans = orphans.into_iter().filter(|object| !ordered.contains(&object.key));
    found.orphans = orphans
        .map(|object| OrphanBlob { key: object.key, size: object.size, modified_at: object.modified_at })
        .collect();
    Ok(())
}

/// Only a clear "no" counts. That the row is still so is looked at when it is written down.
async fn surely_missing(core: &Core, suspects: Vec<String>) -> Vec<String> {
    let heads =
        suspects.into_iter().filter_map(|key| ObjectKey::parse(&key).ok()).map(async |key| {
            match core.blobs.head(&key, None).await {
                Err(BlobError::NotFound) => Some(key.to_string()),
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(error = %error, "whether an object is there is not known");
                    None
                }
            }
        });
    futures::stream::iter(heads).buffered(HEADS_AT_ONCE).filter_map(std::future::ready).collect().await
}
