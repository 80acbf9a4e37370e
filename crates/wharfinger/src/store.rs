//! Whether the store is the one this catalog's objects lie in. A mount point whose disk is away looks like an
//! empty store, and in an empty or another's store everything is absent and every delete is done. The store's
//! mark also counts with the catalog: a mark ahead of its catalog shows that the catalog came from a backup.

use std::path::Path;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use uuid::Uuid;
use wharfinger_catalog::{Catalog, CatalogError, fresh_id};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{DERIVED, ObjectKey, UPLOADS};
use wharfinger_stores::disk::{DiskStore, MARK};
use wharfinger_stores::{BlobError, StoreConfig, BlobStore, WriteMode};

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects: is its disk mounted? If it is meant to \
        begin empty, run `wharfinger doctor --accept-store`"
    )]
    UnmarkedFolder(String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects: is it the right bucket? If it is meant to \
        begin empty, run `wharfinger doctor --accept-store`"
    )]
    Unmarked(String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} is already in use: it holds {1} and no {MARK} of Wharfinger. Use an empty bucket or \
        folder, or another prefix. To use it as it is, run `wharfinger doctor --accept-store`: what is there now is \
        never deleted"
    )]
    InUse(String, String),
    #[error("WHARFINGER_BLOB_URL: {0} is the store of another catalog (its {MARK} says `{1}`, not `{2}`)")]
    Foreign(String, String, String),
    #[error(
        "WHARFINGER_BLOB_URL: the {MARK} of {0} is empty or damaged. If this is the right store, run \
        `wharfinger doctor --accept-store`"
    )]
    Damaged(String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} cannot be used ({1}): check that it is a folder that this user may write"
    )]
    Folder(String, BlobError),
    #[error("WHARFINGER_BLOB_URL: {0} cannot be used: {1}")]
    Blobs(String, BlobError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Whether a store is that of the catalog, and as old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// The catalog has no store yet.
    New,
    Ours,
    /// The mark counts further than the catalog, which is older than the store: objects that it does not know may
    /// be alive. Nothing is deleted for having no row until a person has said what is true.
    Restored {
        catalog: i64,
        store: i64,
    },
}

/// What the catalog knows of its store.
const STORE: &str = "store";
const COUNTER: &str = "store_counter";
const READ_TRIES_MAX: u32 = 5;

/// Where a mark lies. A folder is looked into without making anything there.
pub struct Place<'p> {
    shown: String,
    at: At<'p>,
}

enum At<'p> {
    Folder(&'p Path),
    Store(&'p dyn BlobStore),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// The catalog's id and the store's.
    identity: String,
    counter: i64,
    /// When the store was claimed, by the store's clock. Objects without a row that are older belong to others.
    marked_at: UnixMs,
}

impl Mark {
    /// None if it is empty or was cut off. `written_at` is when the marker was written: of one that has no time yet,
    /// that is when the store was claimed.
    fn parse(text: &str, written_at: UnixMs) -> Option<Mark> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (identity, rest) = words.split_at_checked(2)?;
        let is_whole = text.ends_with('\n') && identity.iter().all(|id| Uuid::try_parse(id).is_ok());
        let number = |n: usize| rest.get(n).map(|word| word.parse::<i64>());
        match (is_whole, number(0).unwrap_or(Ok(0)), number(1).unwrap_or(Ok(written_at))) {
            (true, Ok(counter), Ok(marked_at)) => {
                Some(Mark { identity: identity.join(" "), counter, marked_at })
            }
            _ => None,
        }
    }

    fn text(&self) -> String {
        format!("{} {} {}\n", self.identity, self.counter, self.marked_at)
    }
}

impl<'p> Place<'p> {
    pub fn folder(folder: &'p Path) -> Place<'p> {
        Place { shown: folder.display().to_string(), at: At::Folder(folder) }
    }

    pub fn store(place: &StoreConfig, blobs: &'p dyn BlobStore) -> Place<'p> {
        Place::named(&place.to_string(), blobs)
    }

    /// A store by the name that people know it by.
    pub fn named(name: &str, blobs: &'p dyn BlobStore) -> Place<'p> {
        Place { shown: name.to_owned(), at: At::Store(blobs) }
    }

    async fn mark(&self) -> Result<Option<Mark>, ClaimError> {
        let read = match self.at {
            At::Folder(folder) => DiskStore::mark(folder),
            At::Store(blobs) => read_mark(blobs).await,
        };
        match read.map_err(|error| self.unusable(error))? {
            None => Ok(None),
            Some((text, written_at)) => match Mark::parse(&text, written_at) {
                Some(mark) => Ok(Some(mark)),
                None => Err(ClaimError::Damaged(self.shown.clone())),
            },
        }
    }

    async fn set_mark(&self, text: String, mode: WriteMode) -> Result<(), ClaimError> {
        let set = match self.at {
            At::Folder(folder) => DiskStore::set_mark(folder, &text, mode),
            At::Store(blobs) => blobs.put(&ObjectKey::marker(), Bytes::from(text), mode).await,
        };
        set.map_err(|error| self.unusable(error))
    }

    /// What lies where our objects would, in words: an object, or an unfinished upload.
    async fn contents(&self) -> Result<Option<String>, ClaimError> {
        let found = match self.at {
            At::Folder(folder) if !folder.is_dir() => Ok(None),
            At::Folder(folder) => match DiskStore::open_foreign(folder) {
                Ok(disk) => first_of(&disk).await,
                Err(error) => Err(BlobError::Unavailable(error.to_string())),
            },
            At::Store(blobs) => first_of(blobs).await,
        };
        found.map_err(|error| self.unusable(error))
    }

    async fn remove_mark(&self) -> Result<(), ClaimError> {
        let removed = match self.at {
            At::Folder(folder) => DiskStore::remove_mark(folder),
            At::Store(blobs) => blobs.delete_many(&[ObjectKey::marker()]).await.pop().unwrap_or(Ok(())),
        };
        removed.map_err(|error| self.unusable(error))
    }

    fn unusable(&self, error: BlobError) -> ClaimError {
        match self.at {
            At::Folder(_) => ClaimError::Folder(self.shown.clone(), error),
            At::Store(_) => ClaimError::Blobs(self.shown.clone(), error),
        }
    }

    fn unmarked(&self) -> ClaimError {
        match self.at {
            At::Folder(_) => ClaimError::UnmarkedFolder(self.shown.clone()),
            At::Store(_) => ClaimError::Unmarked(self.shown.clone()),
        }
    }
}

/// The first thing found in our two folders.
async fn first_of(blobs: &dyn BlobStore) -> Result<Option<String>, BlobError> {
    for folder in [UPLOADS, DERIVED] {
        if let Some(object) = blobs.list(folder, None).next().await.transpose()? {
            return Ok(Some(format!("objects under {folder} (for example `{}`)", object.key)));
        }
        let Some(parts) = blobs.in_parts() else { continue };
        if let Some(upload) = parts.unfinished(folder).next().await.transpose()? {
            return Ok(Some(format!("unfinished uploads under {folder} (for example `{}`)", upload.key)));
        }
    }
    Ok(None)
}

/// Another process may write it at this moment.
async fn read_mark(blobs: &dyn BlobStore) -> Result<Option<(String, UnixMs)>, BlobError> {
    let mut tries_left = READ_TRIES_MAX;
    loop {
        match read_small(blobs, &ObjectKey::marker()).await {
            Err(BlobError::Changed) if tries_left > 1 => tries_left -= 1,
            read => return read,
        }
    }
}

async fn read_small(blobs: &dyn BlobStore, key: &ObjectKey) -> Result<Option<(String, UnixMs)>, BlobError> {
    let meta = match blobs.head(key, None).await {
        Ok(meta) => meta,
        Err(BlobError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    let written_at = meta.modified_at.unwrap_or_else(|| blobs.now());
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    let chunks: Vec<Bytes> = blobs.get(key, &pin, 0, Some(4_096)).await?.try_collect().await?;
    Ok(Some((String::from_utf8_lossy(&chunks.concat()).into_owned(), written_at)))
}

/// Makes a new store this catalog's, or checks that it is and counts on. The mark is written before the catalog
/// knows of it, so a crash in between finds it again; of two that begin at once, the catalog keeps one. A store
/// that others use already is not taken.
pub async fn claim(catalog: &Catalog, place: &Place<'_>, now: UnixMs) -> Result<StoreState, ClaimError> {
    match check(catalog, place).await? {
        StoreState::New => mark_new(catalog, place, now).await,
        StoreState::Ours => count_on(catalog, place).await,
        restored @ StoreState::Restored { .. } => Ok(restored),
    }
}

async fn mark_new(catalog: &Catalog, place: &Place<'_>, now: UnixMs) -> Result<StoreState, ClaimError> {
    let ours = match place.mark().await? {
        Some(mark) => mark.identity,
        None => {
            let id = catalog.fact("catalog_id").await?.unwrap_or_default();
            let identity = format!("{id} {}", fresh_id(now));
            // Without its time, which is the store's to tell: it is added when the mark counts for the first time.
            match place.set_mark(format!("{identity} 0\n"), WriteMode::CreateOnly).await {
                // Another process of the same catalog was faster.
                Err(ClaimError::Blobs(_, BlobError::Changed) | ClaimError::Folder(_, BlobError::Changed)) => {
                    place.mark().await?.map_or(identity, |mark| mark.identity)
                }
                set => set.map(|()| identity)?,
            }
        }
    };
    let known = catalog.get_or_set_fact(STORE, &ours).await?;
    if known == ours {
        return count_on(catalog, place).await;
    }
    match place.mark().await? {
        Some(mark) if mark.identity == known => count_on(catalog, place).await,
        _ => {
            place.remove_mark().await?;
            Err(place.unmarked())
        }
    }
}

/// How the store stands to the catalog. Changes nothing.
pub async fn check(catalog: &Catalog, place: &Place<'_>) -> Result<StoreState, ClaimError> {
    let id = catalog.fact("catalog_id").await?.unwrap_or_default();
    let known = catalog.fact(STORE).await?;
    match (known, place.mark().await?) {
        (Some(known), Some(mark)) if known == mark.identity => {
            let counter = counter(catalog).await?;
            Ok(match mark.counter > counter {
                true => StoreState::Restored { catalog: counter, store: mark.counter },
                false => StoreState::Ours,
            })
        }
        (Some(known), Some(mark)) => Err(ClaimError::Foreign(place.shown.clone(), mark.identity, known)),
        (Some(_), None) => Err(place.unmarked()),
        (None, Some(mark)) if !mark.identity.starts_with(&id) => {
            Err(ClaimError::Foreign(place.shown.clone(), mark.identity, id))
        }
        (None, Some(_)) => Ok(StoreState::New),
        (None, None) => match place.contents().await? {
            // Another process of this catalog may have claimed it meanwhile, and filled it.
            Some(found) if place.mark().await?.is_none() => {
                Err(ClaimError::InUse(place.shown.clone(), found))
            }
            _ => Ok(StoreState::New),
        },
    }
}

/// Since when the store has been ours, by its own clock.
pub async fn marked_at(place: &Place<'_>) -> Result<UnixMs, ClaimError> {
    place.mark().await?.map(|mark| mark.marked_at).ok_or_else(|| place.unmarked())
}

/// Both count, the catalog first: so a mark that is ahead can only mean that the catalog went back.
pub async fn count_on(catalog: &Catalog, place: &Place<'_>) -> Result<StoreState, ClaimError> {
    let counter = catalog.increment_fact(COUNTER).await?;
    if let (Some(identity), Some(mark)) = (catalog.fact(STORE).await?, place.mark().await?) {
        if mark.counter > counter {
            // Others count too: only the catalog as it is now can be behind.
            return check(catalog, place).await;
        }
        let counted = Mark { identity, counter, marked_at: mark.marked_at };
        place.set_mark(counted.text(), WriteMode::Overwrite).await?;
    }
    Ok(StoreState::Ours)
}

/// A person's word that the store is what this catalog says it is: one without a mark, or with a damaged one, is marked
/// now, so that everything older in it belongs to others; one that is ahead is caught up with. Another catalog's stays
/// refused.
pub async fn accept(catalog: &Catalog, place: &Place<'_>, now: UnixMs) -> Result<(), ClaimError> {
    let (restored, counter) = match check(catalog, place).await {
        Ok(StoreState::New | StoreState::Ours) => return Ok(()),
        Ok(StoreState::Restored { store, .. }) => (place.mark().await?, store + 1),
        Err(
            ClaimError::Unmarked(_)
            | ClaimError::UnmarkedFolder(_)
            | ClaimError::InUse(..)
            | ClaimError::Damaged(_),
        ) => (None, counter(catalog).await? + 1),
        Err(error) => return Err(error),
    };
    let identity = match catalog.fact(STORE).await? {
        Some(known) => known,
        None => {
            let id = catalog.fact("catalog_id").await?.unwrap_or_default();
            catalog.get_or_set_fact(STORE, &format!("{id} {}", fresh_id(now))).await?
        }
    };
    catalog.set_fact(COUNTER, &counter.to_string()).await?;
    let text = match restored {
        Some(mark) => Mark { identity, counter, marked_at: mark.marked_at }.text(),
        None => format!("{identity} {counter}\n"),
    };
    place.set_mark(text, WriteMode::Overwrite).await?;
    // Now that the store has told its time, the mark keeps it.
    count_on(catalog, place).await.map(drop)
}

async fn counter(catalog: &Catalog) -> Result<i64, CatalogError> {
    Ok(catalog.fact(COUNTER).await?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: &str = "018f4e6e-7f3a-7000-8000-000000000001 018f4e6e-7f3a-7000-8000-000000000002";

    #[test]
    fn a_mark_is_whole_or_damaged() {
        let mark = Mark { identity: IDS.into(), counter: 12, marked_at: 1_700_000_000_000 };
        let text = mark.text();
        assert_eq!(Mark::parse(&text, 5), Some(mark.clone()));
        let new = Mark { counter: 0, marked_at: 5, ..mark };
        assert_eq!(Mark::parse(&format!("{IDS} 0\n"), 5), Some(new.clone()));
        assert_eq!(Mark::parse(&format!("{IDS}\n"), 5), Some(new), "as a person would write it");
        for end in 0..text.len() {
            assert_eq!(Mark::parse(&text[..end], 5), None, "cut off after {end} bytes");
        }
        for damaged in ["\0\0\0\n", "another's mark 1\n", &format!("{IDS} many\n")] {
            assert_eq!(Mark::parse(damaged, 5), None, "{damaged:?}");
        }
    }
}
