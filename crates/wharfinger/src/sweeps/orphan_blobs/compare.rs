//! A page of the store next to the rows of the same keys. The page is read first: a row is written before its object
//! can be, so that an object which was listed has its row by then, unless it has none at all. The other way round
//! nothing is sure, and a row that seems to lack its object is looked at once more.

use std::collections::BTreeSet;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use wharfinger_backends::blobs::{BlobError, Listed};
use wharfinger_backends::catalog::{ObjectState, OrphanBlob};
use wharfinger_lifecycle::key::ObjectKey;

use crate::app::App;
use crate::uploads::VerbError;

/// Rows that are read at once: those of ended files may be many more than the objects between them.
const ROWS_PER_READ: usize = 1_000;
const HEADS_AT_ONCE: usize = 16;

/// Objects in the order of their keys, up to the end of a range.
pub(super) struct Listing {
    objects: BoxStream<'static, Result<Listed, BlobError>>,
    upto: String,
}

/// Some objects, and up to which key they are all that there are.
pub(super) struct Page {
    listed: Vec<Listed>,
    pub(super) upto: String,
    pub(super) is_last: bool,
}

impl Listing {
    pub(super) fn new(objects: BoxStream<'static, Result<Listed, BlobError>>, upto: &str) -> Listing {
        Listing { objects, upto: upto.to_owned() }
    }

    pub(super) async fn page(&mut self, objects_max: usize) -> Result<Page, VerbError> {
        let mut listed: Vec<Listed> = Vec::with_capacity(objects_max);
        while listed.len() < objects_max {
            match self.objects.next().await.transpose()? {
                Some(object) if object.key <= self.upto => listed.push(object),
                _ => return Ok(Page { listed, upto: self.upto.clone(), is_last: true }),
            }
        }
        let upto = listed.last().map_or_else(|| self.upto.clone(), |last| last.key.clone());
        Ok(Page { listed, upto, is_last: false })
    }
}

/// What the store and the catalog do not agree on.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) listed: u64,
    pub(super) orphans: Vec<OrphanBlob>,
    /// Orphans whose names no store can be asked to delete.
    pub(super) undeletable: Vec<String>,
    /// Keys of rows without their object.
    pub(super) missing: Vec<String>,
}

/// Compares a page with the rows behind `after`.
pub(super) async fn compare(app: &App, page: Page, after: &str) -> Result<Differences, VerbError> {
    let mut found = Differences { listed: page.listed.len() as u64, ..Differences::default() };
    let now = app.blobs.now();
    let is_old = |listed: &Listed| {
        // Without a time there is no telling.
        listed.modified_at > 0
            && listed.modified_at.saturating_add(app.settings.sweeps.orphan_grace_ms) <= now
    };
    let mut suspects = Vec::new();
    let mut objects = page.listed.into_iter().peekable();
    let mut orphans: Vec<Listed> = Vec::new();
    let mut after = after.to_owned();
    loop {
        let rows = app.catalog.object_rows(&after, &page.upto, ROWS_PER_READ).await?;
        for row in &rows {
            while let Some(object) = objects.next_if(|object| object.key < row.key) {
                orphans.extend(is_old(&object).then_some(object));
            }
            match (objects.next_if(|object| object.key == row.key), row.state) {
                // What came after its file had ended is nobody's, however young it is.
                (Some(object), ObjectState::Ended) => orphans.push(object),
                (None, ObjectState::Kept) => suspects.push(row.key.clone()),
                (Some(_), ObjectState::Kept | ObjectState::Awaited) => {}
                (None, ObjectState::Awaited | ObjectState::Ended) => {}
            }
        }
        let is_full = rows.len() == ROWS_PER_READ;
        match rows.into_iter().next_back() {
            Some(last) if is_full => after = last.key,
            _ => break,
        }
    }
    orphans.extend(objects.filter(is_old));
    sort_out(app, orphans, &mut found).await?;
    found.missing = surely_missing(app, suspects).await;
    Ok(found)
}

/// Leaves aside what is under orders already, and what only looks like an object.
async fn sort_out(app: &App, orphans: Vec<Listed>, found: &mut Differences) -> Result<(), VerbError> {
    // Consoles make folders of empty objects: there are no bytes in them.
    let orphans = orphans.into_iter().filter(|object| !(object.key.ends_with('/') && object.size == 0));
    let (deletable, others): (Vec<Listed>, Vec<Listed>) =
        orphans.partition(|object| ObjectKey::stray(&object.key).is_ok());
    found.undeletable = others.into_iter().map(|object| object.key).collect();
    if deletable.is_empty() {
        return Ok(());
    }
    let keys: Vec<&str> = deletable.iter().map(|object| object.key.as_str()).collect();
    let ordered: BTreeSet<String> = app.catalog.under_orders(&keys).await?.into_iter().collect();
    let orphans = deletable.into_iter().filter(|object| !ordered.contains(&object.key));
    found.orphans = orphans
        .map(|object| OrphanBlob { key: object.key, size: object.size, modified_at: object.modified_at })
        .collect();
    Ok(())
}

/// Only a clear "no" counts. That the row is still so is looked at when it is written down.
async fn surely_missing(app: &App, suspects: Vec<String>) -> Vec<String> {
    let heads =
        suspects.into_iter().filter_map(|key| ObjectKey::parse(&key).ok()).map(async |key| {
            match app.blobs.head(&key, None).await {
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
