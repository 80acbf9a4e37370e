//! Checks by a marker object that the store belongs to this catalog. An unmounted disk looks like an empty store, and in a
//! wrong store every object would count as missing and every delete as done. The marker and the catalog share a counter:
//! a marker ahead of its catalog shows that the catalog was restored from a backup.

use std::path::Path;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use uuid::Uuid;
use wharfinger_catalog::{Catalog, CatalogError, fresh_id};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{DERIVED, ObjectKey, UPLOADS};
use wharfinger_stores::disk::{DiskStore, MARK};
use wharfinger_stores::{BlobError, BlobStore, StoreConfig, WriteMode};

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects. Is its disk mounted? To start with an \
        empty folder, run `wharfinger doctor --accept-store`"
    )]
    UnmarkedFolder(String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects. Is it the right bucket? To start with an \
        empty bucket, run `wharfinger doctor --accept-store`"
    )]
    Unmarked(String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} is already in use: it has {1}, but no {MARK} of Wharfinger. Use an empty bucket or \
        folder, or another prefix. To use it as it is, run `wharfinger doctor --accept-store`. Objects that are there \
        now are never deleted"
    )]
    InUse(String, String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} is the store of another catalog: its {MARK} has `{1}`, this catalog expects `{2}`. Correct \
        the URL or WHARFINGER_DATABASE_URL"
    )]
    Foreign(String, String, String),
    #[error(
        "WHARFINGER_BLOB_URL: the {MARK} of {0} is empty or damaged. If this is the right store, run \
        `wharfinger doctor --accept-store`"
    )]
    Damaged(String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} cannot be used ({1}). Check that it is a folder and that this user may write to it"
    )]
    Folder(String, BlobError),
    #[error("WHARFINGER_BLOB_URL: {0} cannot be used: {1}")]
    Blobs(String, BlobError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// How the store and the catalog belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// The catalog has no store yet.
    New,
    Ours,
    /// The marker's counter is ahead of the catalog's, so the catalog was restored from a backup. Objects without a row may
    /// still be needed: they are not deleted until an operator runs `doctor --accept-store`.
    Restored {
        catalog: i64,
        store: i64,
    },
}

impl StoreState {
    pub fn as_str(self) -> &'static str {
        match self {
            StoreState::New => "new",
            StoreState::Ours => "ours",
            StoreState::Restored { .. } => "restored",
        }
    }
}

/// Facts in the catalog: the marker's identity and the counter.
const STORE: &str = "store";
const COUNTER: &str = "store_counter";
const READ_TRIES_MAX: u32 = 5;

/// A store whose marker is read or written. Reading creates nothing in a local folder.
pub struct StoreRef<'p> {
    shown: String,
    location: Location<'p>,
}

enum Location<'p> {
    Folder(&'p Path),
    Store(&'p dyn BlobStore),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Marker {
    /// The catalog's id and the store's.
    identity: String,
    counter: i64,
    /// When the store was claimed, by the store's clock. Older objects without a row are foreign.
    marked_at: UnixMs,
}

impl Marker {
    /// None if the text is empty or cut off. A new marker has no time yet: then `written_at` is when the store was claimed.
    fn parse(text: &str, written_at: UnixMs) -> Option<Marker> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (identity, rest) = words.split_at_checked(2)?;
        let is_whole = text.ends_with('\n') && identity.iter().all(|id| Uuid::try_parse(id).is_ok());
        let number = |n: usize| rest.get(n).map(|word| word.parse::<i64>());
        match (is_whole, number(0).unwrap_or(Ok(0)), number(1).unwrap_or(Ok(written_at))) {
            (true, Ok(counter), Ok(marked_at)) => {
                Some(Marker { identity: identity.join(" "), counter, marked_at })
            }
            _ => None,
        }
    }

    fn text(&self) -> String {
        format!("{} {} {}\n", self.identity, self.counter, self.marked_at)
    }
}

impl<'p> StoreRef<'p> {
    pub fn folder(folder: &'p Path) -> StoreRef<'p> {
        StoreRef { shown: folder.display().to_string(), location: Location::Folder(folder) }
    }

    pub fn store(place: &StoreConfig, blobs: &'p dyn BlobStore) -> StoreRef<'p> {
        StoreRef::named(&place.to_string(), blobs)
    }

    /// `name` is shown in messages.
    pub fn named(name: &str, blobs: &'p dyn BlobStore) -> StoreRef<'p> {
        StoreRef { shown: name.to_owned(), location: Location::Store(blobs) }
    }

    async fn marker(&self) -> Result<Option<Marker>, ClaimError> {
        let read = match self.location {
            Location::Folder(folder) => DiskStore::mark(folder),
            Location::Store(blobs) => read_marker(blobs).await,
        };
        match read.map_err(|error| self.unusable(error))? {
            None => Ok(None),
            Some((text, written_at)) => match Marker::parse(&text, written_at) {
                Some(marker) => Ok(Some(marker)),
                None => Err(ClaimError::Damaged(self.shown.clone())),
            },
        }
    }

    async fn set_marker(&self, text: String, mode: WriteMode) -> Result<(), ClaimError> {
        let set = match self.location {
            Location::Folder(folder) => DiskStore::set_mark(folder, &text, mode),
            Location::Store(blobs) => blobs.put(&ObjectKey::marker(), Bytes::from(text), mode).await,
        };
        set.map_err(|error| self.unusable(error))
    }

    /// Describes the first object or unfinished upload below our folders.
    async fn contents(&self) -> Result<Option<String>, ClaimError> {
        let found = match self.location {
            Location::Folder(folder) if !folder.is_dir() => Ok(None),
            Location::Folder(folder) => match DiskStore::open_foreign(folder) {
                Ok(disk) => first_of(&disk).await,
                Err(error) => Err(BlobError::Unavailable(error.to_string())),
            },
            Location::Store(blobs) => first_of(blobs).await,
        };
        found.map_err(|error| self.unusable(error))
    }

    async fn remove_marker(&self) -> Result<(), ClaimError> {
        let removed = match self.location {
            Location::Folder(folder) => DiskStore::remove_mark(folder),
            Location::Store(blobs) => blobs.delete_many(&[ObjectKey::marker()]).await.pop().unwrap_or(Ok(())),
        };
        removed.map_err(|error| self.unusable(error))
    }

    fn unusable(&self, error: BlobError) -> ClaimError {
        match self.location {
            Location::Folder(_) => ClaimError::Folder(self.shown.clone(), error),
            Location::Store(_) => ClaimError::Blobs(self.shown.clone(), error),
        }
    }

    fn unmarked(&self) -> ClaimError {
        match self.location {
            Location::Folder(_) => ClaimError::UnmarkedFolder(self.shown.clone()),
            Location::Store(_) => ClaimError::Unmarked(self.shown.clone()),
        }
    }
}

/// Describes the first object or unfinished upload.
async fn first_of(blobs: &dyn BlobStore) -> Result<Option<String>, BlobError> {
    for folder in [UPLOADS, DERIVED] {
        if let Some(object) = blobs.list(folder, None).next().await.transpose()? {
            return Ok(Some(format!("objects under {folder} (for example `{}`)", object.key)));
        }
        let Some(parts) = blobs.multipart() else { continue };
        if let Some(upload) = parts.list_unfinished(folder).next().await.transpose()? {
            return Ok(Some(format!("unfinished uploads under {folder} (for example `{}`)", upload.key)));
        }
    }
    Ok(None)
}

/// Tries again if another process writes the marker at this moment.
async fn read_marker(blobs: &dyn BlobStore) -> Result<Option<(String, UnixMs)>, BlobError> {
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

/// Claims a new store for this catalog, or checks that it is this catalog's and raises the counter. The marker is written
/// first and then recorded in the catalog: after a crash in between, the next start finds it. If two processes claim at
/// once, the catalog keeps one claim. A store that is in use by others is refused.
pub async fn claim(catalog: &Catalog, place: &StoreRef<'_>, now: UnixMs) -> Result<StoreState, ClaimError> {
    match check(catalog, place).await? {
        StoreState::New => claim_new(catalog, place, now).await,
        StoreState::Ours => raise_counter(catalog, place).await,
        restored @ StoreState::Restored { .. } => Ok(restored),
    }
}

async fn claim_new(catalog: &Catalog, place: &StoreRef<'_>, now: UnixMs) -> Result<StoreState, ClaimError> {
    let ours = match place.marker().await? {
        Some(marker) => marker.identity,
        None => {
            let id = catalog.fact("catalog_id").await?.unwrap_or_default();
            let identity = format!("{id} {}", fresh_id(now));
            // Without the claim time, because only the store's clock knows it. `raise_counter` adds it.
            match place.set_marker(format!("{identity} 0\n"), WriteMode::CreateOnly).await {
                // Another process of the same catalog was faster.
                Err(ClaimError::Blobs(_, BlobError::Changed) | ClaimError::Folder(_, BlobError::Changed)) => {
                    place.marker().await?.map_or(identity, |marker| marker.identity)
                }
                set => set.map(|()| identity)?,
            }
        }
    };
    let known = catalog.get_or_set_fact(STORE, &ours).await?;
    if known == ours {
        return raise_counter(catalog, place).await;
    }
    match place.marker().await? {
        Some(marker) if marker.identity == known => raise_counter(catalog, place).await,
        _ => {
            place.remove_marker().await?;
            Err(place.unmarked())
        }
    }
}

/// Checks how the store and the catalog belong together. Changes nothing.
pub async fn check(catalog: &Catalog, place: &StoreRef<'_>) -> Result<StoreState, ClaimError> {
    let id = catalog.fact("catalog_id").await?.unwrap_or_default();
    let known = catalog.fact(STORE).await?;
    match (known, place.marker().await?) {
        (Some(known), Some(marker)) if known == marker.identity => {
            let counter = counter(catalog).await?;
            Ok(match marker.counter > counter {
                true => StoreState::Restored { catalog: counter, store: marker.counter },
                false => StoreState::Ours,
            })
        }
        (Some(known), Some(marker)) => Err(ClaimError::Foreign(place.shown.clone(), marker.identity, known)),
        (Some(_), None) => Err(place.unmarked()),
        (None, Some(marker)) if !marker.identity.starts_with(&id) => {
            Err(ClaimError::Foreign(place.shown.clone(), marker.identity, id))
        }
        (None, Some(_)) => Ok(StoreState::New),
        (None, None) => match place.contents().await? {
            // In the meantime, another process of this catalog may have claimed and filled it.
            Some(found) if place.marker().await?.is_none() => {
                Err(ClaimError::InUse(place.shown.clone(), found))
            }
            _ => Ok(StoreState::New),
        },
    }
}

/// When the store was claimed, by the store's clock.
pub async fn marked_at(place: &StoreRef<'_>) -> Result<UnixMs, ClaimError> {
    place.marker().await?.map(|marker| marker.marked_at).ok_or_else(|| place.unmarked())
}

/// Raises the counter in both, in the catalog first: so a marker that is ahead means that the catalog was restored.
pub async fn raise_counter(catalog: &Catalog, place: &StoreRef<'_>) -> Result<StoreState, ClaimError> {
    let counter = catalog.increment_fact(COUNTER).await?;
    if let (Some(identity), Some(marker)) = (catalog.fact(STORE).await?, place.marker().await?) {
        if marker.counter > counter {
            // Other processes raise it too, so compare with the catalog as it is now.
            return check(catalog, place).await;
        }
        let counted = Marker { identity, counter, marked_at: marker.marked_at };
        place.set_marker(counted.text(), WriteMode::Overwrite).await?;
    }
    Ok(StoreState::Ours)
}

/// For `doctor --accept-store`. A store with no marker or a damaged one gets a new one: older objects without a row are
/// then foreign. If the marker is ahead, the catalog's counter is raised above it. A store of another catalog is refused.
pub async fn accept(catalog: &Catalog, place: &StoreRef<'_>, now: UnixMs) -> Result<(), ClaimError> {
    let (restored, counter) = match check(catalog, place).await {
        Ok(StoreState::New | StoreState::Ours) => return Ok(()),
        Ok(StoreState::Restored { store, .. }) => (place.marker().await?, store + 1),
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
        Some(marker) => Marker { identity, counter, marked_at: marker.marked_at }.text(),
        None => format!("{identity} {counter}\n"),
    };
    place.set_marker(text, WriteMode::Overwrite).await?;
    // Writes the claim time into the marker: the store has set it now.
    raise_counter(catalog, place).await.map(drop)
}

async fn counter(catalog: &Catalog) -> Result<i64, CatalogError> {
    Ok(catalog.fact(COUNTER).await?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: &str = "018f4e6e-7f3a-7000-8000-000000000001 018f4e6e-7f3a-7000-8000-000000000002";

    #[test]
    fn a_marker_is_whole_or_damaged() {
        let marker = Marker { identity: IDS.into(), counter: 12, marked_at: 1_700_000_000_000 };
        let text = marker.text();
        assert_eq!(Marker::parse(&text, 5), Some(marker.clone()));
        let new = Marker { counter: 0, marked_at: 5, ..marker };
        assert_eq!(Marker::parse(&format!("{IDS} 0\n"), 5), Some(new.clone()));
        assert_eq!(Marker::parse(&format!("{IDS}\n"), 5), Some(new), "a marker without a counter");
        for end in 0..text.len() {
            assert_eq!(Marker::parse(&text[..end], 5), None, "cut off after {end} bytes");
        }
        for damaged in ["\0\0\0\n", "another marker 1\n", &format!("{IDS} many\n")] {
            assert_eq!(Marker::parse(damaged, 5), None, "{damaged:?}");
        }
    }
}
