//! The objects in the order of their keys: from the bucket, fetched some pages ahead, or from a sorted inventory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::retry::Backoff;
use wharfinger_reconcile::{Entries, Entry, Sorter};
use wharfinger_stores::{BlobError, BlobStore};

use super::super::{Failure, failed};
use super::bucket::Bucket;
use super::keys::read_inventory;
use super::progress::Progress;
use super::state::State;
use crate::config::Flags;

/// The source of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Listing {
    Bucket,
    Inventory { created_at: Option<UnixMs> },
}

pub(super) type Page = Result<Vec<Entry>, Failure>;

const PAGE_OBJECTS: usize = 1_000;
/// Pages that are fetched ahead of the comparison.
const PAGES_AHEAD: usize = 8;
const TRIES_MAX: u32 = 6;
const RETRY_PAUSE: Backoff = Backoff { base_ms: 500, cap_ms: 15_000 };

impl Listing {
    /// Sorts an inventory of the bucket.
    pub(super) async fn from_inventory(
        flags: &Flags,
        bucket: &Bucket,
        manifest: &str,
        state: &State,
        progress: &mut Progress,
        stop: &CancellationToken,
    ) -> Result<Listing, Failure> {
        progress.phase("reading the inventory", "objects");
        let mut sorter = Sorter::new(&state.sorting()).map_err(failed)?;
        let (mut read, mut has_all_fields) = (0u64, true);
        let mut sink = |entry: Entry| {
            read += 1;
            if read.is_multiple_of(1_000) {
                progress.update(read, None);
            }
            has_all_fields &= entry.size.is_some() && entry.modified_at.is_some();
            if stop.is_cancelled() || !has_all_fields {
                return Err(io::Error::from(io::ErrorKind::Interrupted));
            }
            if entry.key.starts_with(&bucket.prefix) { sorter.push(entry) } else { Ok(()) }
        };
        let (created_at, stats) = read_inventory(flags, manifest, bucket.name(), state, &mut sink).await?;
        if !has_all_fields {
            return Err(Failure::Failed(format!(
                "{manifest} has objects without a size or a time: --listing needs an inventory with Size and \
                 LastModifiedDate"
            )));
        }
        if stop.is_cancelled() {
            return Err(Failure::Failed("interrupted while reading the inventory".into()));
        }
        stats.map_err(failed)?;
        tokio::task::block_in_place(|| sorter.finish(&state.objects())).map_err(failed)?;
        Ok(Listing::Inventory { created_at })
    }

    /// The time of the inventory, if it has one.
    pub(super) fn created_at(self) -> Option<UnixMs> {
        if let Listing::Inventory { created_at } = self { created_at } else { None }
    }

    /// All objects after a key.
    pub(super) fn pages(self, bucket: &Bucket, state: &State, after: Option<String>) -> mpsc::Receiver<Page> {
        let (out, pages) = mpsc::channel(PAGES_AHEAD);
        match self {
            Listing::Bucket => {
                let (store, prefix) = (bucket.store.clone(), bucket.prefix.clone());
                tokio::spawn(async move { list(store, &prefix, after, out).await });
            }
            Listing::Inventory { .. } => {
                let path = state.objects();
                tokio::task::spawn_blocking(move || read(&path, after.as_deref(), &out));
            }
        }
        pages
    }
}

/// Lists the objects after a key. If the store does not answer, the listing is retried from the last object some times.
async fn list(store: Arc<dyn BlobStore>, prefix: &str, mut after: Option<String>, out: mpsc::Sender<Page>) {
    let mut attempt = 0;
    loop {
        let mut objects = store.list(prefix, after.as_deref());
        let mut page = Vec::with_capacity(PAGE_OBJECTS);
        let error = loop {
            match objects.next().await {
                Some(Ok(object)) => {
                    page.push(Entry::object(object.key, object.size, Some(object.modified_at)));
                    if page.len() < PAGE_OBJECTS {
                        continue;
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
            after = page.last().map(|last| last.key.clone());
            attempt = 0;
            // An error means that the comparison has ended.
            if out.send(Ok(std::mem::replace(&mut page, Vec::with_capacity(PAGE_OBJECTS)))).await.is_err() {
                return;
            }
        };
        if let Some(last) = page.last() {
            after = Some(last.key.clone());
            attempt = 0;
            if out.send(Ok(page)).await.is_err() {
                return;
            }
        }
        match error {
            None => return,
            Some(BlobError::Unavailable(_)) if attempt + 1 < TRIES_MAX => {
                attempt += 1;
                tokio::time::sleep(Duration::from_millis(RETRY_PAUSE.delay_ms(attempt, rand::random())))
                    .await;
            }
            Some(error) => {
                drop(out.send(Err(Failure::Failed(format!("cannot list the bucket: {error}")))).await);
                return;
            }
        }
    }
}

fn read(path: &std::path::Path, after: Option<&str>, out: &mpsc::Sender<Page>) {
    let entries = match Entries::open(path) {
        Ok(entries) => entries,
        Err(error) => return drop(out.blocking_send(Err(failed(error)))),
    };
    let is_compared = |entry: &Entry| after.is_some_and(|after| entry.key.as_str() <= after);
    let mut entries = entries.skip_while(|entry| entry.as_ref().is_ok_and(is_compared)).peekable();
    while entries.peek().is_some() {
        let page: io::Result<Vec<Entry>> = entries.by_ref().take(PAGE_OBJECTS).collect();
        if out.blocking_send(page.map_err(failed)).is_err() {
            return;
        }
    }
}
