//! Whether the folder that is to be the store is the one this catalog's objects lie in. A mount point whose disk
//! is away looks like an empty store, and in an empty store everything is absent and every delete is done.

use std::path::Path;

use wharfinger_backends::blobs::BlobError;
use wharfinger_backends::blobs::disk::{DiskStore, MARK};
use wharfinger_backends::catalog::{Catalog, CatalogError, fresh_id};
use wharfinger_lifecycle::UnixMs;

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "WHARFINGER_BLOB_URL: {0} does not hold this catalog's objects: is its disk mounted? If it is meant to \
        begin empty, write `{1}` into {0}/{MARK}"
    )]
    Unmarked(String, String),
    #[error("WHARFINGER_BLOB_URL: {0} is the store of another catalog (its {MARK} says `{1}`, not `{2}`)")]
    Foreign(String, String, String),
    #[error(
        "WHARFINGER_BLOB_URL: {0} cannot be used ({1}): check that it is a folder that this user may write"
    )]
    Blobs(String, BlobError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// What the catalog knows of its store.
const STORE: &str = "store";

/// Makes a new folder this catalog's store, or checks that it is. The mark is written before the catalog knows
/// of it, so a crash in between finds it again; of two that begin at once, the catalog keeps one.
pub async fn claim(catalog: &Catalog, folder: &Path, now: UnixMs) -> Result<(), ClaimError> {
    if check(catalog, folder).await? {
        return Ok(());
    }
    let unusable = |error| ClaimError::Blobs(folder.display().to_string(), error);
    let ours = match DiskStore::mark(folder).map_err(unusable)? {
        Some(mark) => mark,
        None => {
            let id = catalog.fact("catalog_id").await?.unwrap_or_default();
            let mark = format!("{id} {}", fresh_id(now));
            DiskStore::set_mark(folder, &mark).map_err(unusable)?;
            mark
        }
    };
    let known = catalog.establish(STORE, &ours).await?;
    if known != ours {
        DiskStore::remove_mark(folder).map_err(unusable)?;
        return Err(ClaimError::Unmarked(folder.display().to_string(), known));
    }
    Ok(())
}

/// True if the folder is the store, false if the catalog has none yet. Changes nothing.
pub async fn check(catalog: &Catalog, folder: &Path) -> Result<bool, ClaimError> {
    let shown = folder.display().to_string();
    let id = catalog.fact("catalog_id").await?.unwrap_or_default();
    let known = catalog.fact(STORE).await?;
    let mark = DiskStore::mark(folder).map_err(|error| ClaimError::Blobs(shown.clone(), error))?;
    match (known, mark) {
        (Some(known), Some(mark)) if known == mark => Ok(true),
        (Some(known), Some(mark)) => Err(ClaimError::Foreign(shown, mark, known)),
        (Some(known), None) => Err(ClaimError::Unmarked(shown, known)),
        (None, Some(mark)) if !mark.starts_with(&id) => Err(ClaimError::Foreign(shown, mark, id)),
        (None, _) => Ok(false),
    }
}
