//! Whether the store is the one this catalog's objects lie in. A mount point whose disk is away looks like an
//! empty store, and in an empty or another's store everything is absent and every delete is done. The store's
//! mark also counts with the catalog: a mark ahead of its catalog shows that the catalog came from a backup.

use std::path::Path;

use bytes::Bytes;
use futures::TryStreamExt as _;
use wharfinger_backends::blobs::disk::{DiskStore, MARK};
use wharfinger_backends::blobs::{BlobError, BlobPlace, BlobStore, Over};
use wharfinger_backends::catalog::{Catalog, CatalogError, fresh_id};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects: is its disk mounted? If it is meant to \
        begin empty, write `{1}` into {0}/{MARK}"
    )]
    UnmarkedFolder(String, String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects: is it the right bucket? If it is meant to \
        begin empty, run `wharfinger doctor --accept-store`"
    )]
    Unmarked(String),
    #[error("WHARFINGER_BLOB_URL: {0} is the store of another catalog (its {MARK} says `{1}`, not `{2}`)")]
    Foreign(String, String, String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} cannot be used ({1}): check that it is a folder that this user may write"
    )]
    Folder(String, BlobError),
    #[error("WHARFINGER_BLOB_URL: {0} cannot be used: {1}")]
    Blobs(String, BlobError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// How a store stands to a catalog that knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
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

struct Mark {
    /// The catalog's id and the store's.
    identity: String,
    counter: i64,
}

impl Mark {
    fn parse(text: &str) -> Mark {
        let mut words = text.split_whitespace();
        let identity: Vec<&str> = words.by_ref().take(2).collect();
        Mark { identity: identity.join(" "), counter: words.next().and_then(|n| n.parse().ok()).unwrap_or(0) }
    }

    fn text(&self) -> String {
        format!("{} {}\n", self.identity, self.counter)
    }
}

impl<'p> Place<'p> {
    pub fn folder(folder: &'p Path) -> Place<'p> {
        Place { shown: folder.display().to_string(), at: At::Folder(folder) }
    }

    pub fn store(place: &BlobPlace, blobs: &'p dyn BlobStore) -> Place<'p> {
        Place { shown: place.to_string(), at: At::Store(blobs) }
    }

    async fn mark(&self) -> Result<Option<Mark>, ClaimError> {
        let text = match self.at {
            At::Folder(folder) => DiskStore::mark(folder),
            At::Store(blobs) => read_mark(blobs).await,
        };
        Ok(text.map_err(|error| self.unusable(error))?.as_deref().map(Mark::parse))
    }

    async fn set_mark(&self, mark: &Mark, over: Over) -> Result<(), ClaimError> {
        let set = match self.at {
            At::Folder(folder) => DiskStore::set_mark(folder, &mark.text()),
            At::Store(blobs) => blobs.put(&ObjectKey::mark(), Bytes::from(mark.text()), over).await,
        };
        set.map_err(|error| self.unusable(error))
    }

    async fn remove_mark(&self) -> Result<(), ClaimError> {
        let removed = match self.at {
            At::Folder(folder) => DiskStore::remove_mark(folder),
            At::Store(blobs) => blobs.delete_many(&[ObjectKey::mark()]).await.pop().unwrap_or(Ok(())),
        };
        removed.map_err(|error| self.unusable(error))
    }

    fn unusable(&self, error: BlobError) -> ClaimError {
        match self.at {
            At::Folder(_) => ClaimError::Folder(self.shown.clone(), error),
            At::Store(_) => ClaimError::Blobs(self.shown.clone(), error),
        }
    }

    fn unmarked(&self, known: String) -> ClaimError {
        match self.at {
            At::Folder(_) => ClaimError::UnmarkedFolder(self.shown.clone(), known),
            At::Store(_) => ClaimError::Unmarked(self.shown.clone()),
        }
    }
}

/// Another process may write it at this moment.
async fn read_mark(blobs: &dyn BlobStore) -> Result<Option<String>, BlobError> {
    let mut tries_left = READ_TRIES_MAX;
    loop {
        match read_small(blobs, &ObjectKey::mark()).await {
            Err(BlobError::Changed) if tries_left > 1 => tries_left -= 1,
            read => return read,
        }
    }
}

async fn read_small(blobs: &dyn BlobStore, key: &ObjectKey) -> Result<Option<String>, BlobError> {
    let meta = match blobs.head(key, None).await {
        Ok(meta) => meta,
        Err(BlobError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    let chunks: Vec<Bytes> = blobs.get(key, &pin, 0, Some(4_096)).await?.try_collect().await?;
    Ok(Some(String::from_utf8_lossy(&chunks.concat()).into_owned()))
}

/// Makes a new store this catalog's, or checks that it is and counts on. The mark is written before the catalog
/// knows of it, so a crash in between finds it again; of two that begin at once, the catalog keeps one.
pub async fn claim(catalog: &Catalog, place: &Place<'_>, now: UnixMs) -> Result<Standing, ClaimError> {
    match check(catalog, place).await? {
        Standing::New => {}
        Standing::Ours => return count_on(catalog, place).await,
        restored @ Standing::Restored { .. } => return Ok(restored),
    }
    let ours = match place.mark().await? {
        Some(mark) => mark,
        None => {
            let id = catalog.fact("catalog_id").await?.unwrap_or_default();
            let mark = Mark { identity: format!("{id} {}", fresh_id(now)), counter: 0 };
            match place.set_mark(&mark, Over::Nothing).await {
                // Another process of the same catalog was faster.
                Err(ClaimError::Blobs(_, BlobError::Changed)) => place.mark().await?.unwrap_or(mark),
                set => set.map(|()| mark)?,
            }
        }
    };
    let known = catalog.establish(STORE, &ours.identity).await?;
    if known == ours.identity {
        return count_on(catalog, place).await;
    }
    match place.mark().await? {
        Some(mark) if mark.identity == known => count_on(catalog, place).await,
        _ => {
            place.remove_mark().await?;
            Err(place.unmarked(known))
        }
    }
}

/// How the store stands to the catalog. Changes nothing.
pub async fn check(catalog: &Catalog, place: &Place<'_>) -> Result<Standing, ClaimError> {
    let id = catalog.fact("catalog_id").await?.unwrap_or_default();
    let known = catalog.fact(STORE).await?;
    match (known, place.mark().await?) {
        (Some(known), Some(mark)) if known == mark.identity => {
            let counter = counter(catalog).await?;
            Ok(match mark.counter > counter {
                true => Standing::Restored { catalog: counter, store: mark.counter },
                false => Standing::Ours,
            })
        }
        (Some(known), Some(mark)) => Err(ClaimError::Foreign(place.shown.clone(), mark.identity, known)),
        (Some(known), None) => Err(place.unmarked(known)),
        (None, Some(mark)) if !mark.identity.starts_with(&id) => {
            Err(ClaimError::Foreign(place.shown.clone(), mark.identity, id))
        }
        (None, _) => Ok(Standing::New),
    }
}

/// Both count, the catalog first: so a mark that is ahead can only mean that the catalog went back.
pub async fn count_on(catalog: &Catalog, place: &Place<'_>) -> Result<Standing, ClaimError> {
    let counter = catalog.raise_fact(COUNTER).await?;
    if let (Some(identity), Some(mark)) = (catalog.fact(STORE).await?, place.mark().await?) {
        if mark.counter > counter {
            // Others count too: only the catalog as it is now can be behind.
            return check(catalog, place).await;
        }
        place.set_mark(&Mark { identity, counter }, Over::Anything).await?;
    }
    Ok(Standing::Ours)
}

/// A person's word that the store is what this catalog says it is: an empty one begins, one that is ahead is
/// caught up with. Another catalog's stays refused.
pub async fn accept(catalog: &Catalog, place: &Place<'_>) -> Result<(), ClaimError> {
    let (identity, counter) = match (check(catalog, place).await, catalog.fact(STORE).await?) {
        (Ok(Standing::New | Standing::Ours), _) | (Ok(_), None) => return Ok(()),
        (Ok(Standing::Restored { store, .. }), Some(known)) => (known, store + 1),
        (Err(ClaimError::Unmarked(_) | ClaimError::UnmarkedFolder(..)), Some(known)) => {
            (known, counter(catalog).await? + 1)
        }
        (Err(error), _) => return Err(error),
    };
    catalog.set_fact(COUNTER, &counter.to_string()).await?;
    place.set_mark(&Mark { identity, counter }, Over::Anything).await
}

async fn counter(catalog: &Catalog) -> Result<i64, CatalogError> {
    Ok(catalog.fact(COUNTER).await?.and_then(|text| text.parse().ok()).unwrap_or(0))
}
