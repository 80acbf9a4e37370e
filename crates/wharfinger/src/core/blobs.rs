//! Opens the store and checks that it belongs to the catalog. A server also claims it. A process that only takes events
//! skips this for a remote store.

use std::sync::Arc;
use std::time::Duration;

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Catalog;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_stores::disk::{DiskStore, SigningKey};
use wharfinger_stores::{BlobError, BlobStore, FaultyBlobs, ProbeReport};

use super::{OpenError, OpenMode};
use crate::clock::Clock;
use crate::config::{Secrets, Settings};
use crate::store::{self, StoreRef, StoreState};

const PROBE_TRIES_MAX: u32 = 5;
const PROBE_PAUSE: Duration = Duration::from_secs(3);
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// A local store comes twice: its HTTP routes need functions that other stores do not have.
pub(super) type Blobs = (Arc<dyn BlobStore>, Option<Arc<DiskStore>>, StoreState);

pub(super) async fn open_blobs(
    mode: OpenMode,
    settings: &Settings,
    secrets: &Secrets,
    catalog: &Catalog,
    clock: &Clock,
    faults: &Faults,
    public_url: &str,
) -> Result<Blobs, OpenError> {
    let unusable = |error: String| OpenError::Blobs(format!("{}: {error}", settings.blobs));
    let faulty = |blobs: Arc<dyn BlobStore>| -> Arc<dyn BlobStore> {
        if faults.is_none() { blobs } else { Arc::new(FaultyBlobs::new(blobs, faults.clone())) }
    };
    let connected = settings.blobs.connect().await.map_err(|error| unusable(error.to_string()))?;
    if let Some(blobs) = connected {
        let place = StoreRef::store(&settings.blobs, &*blobs);
        let state = match mode {
            OpenMode::Command => store::check(catalog, &place).await?,
            // Ingest only writes events, so it does not matter who owns the other objects.
            OpenMode::IngestOnly => StoreState::Ours,
            OpenMode::Serve => {
                let probed = probe(&*blobs).await.map_err(|error| unusable(error.to_string()))?;
                for warning in probed.warnings() {
                    tracing::warn!(store = %settings.blobs, "{warning}");
                }
                store::claim(catalog, &place, clock.now()).await?
            }
        };
        announce(state);
        return Ok((faulty(blobs), None, state));
    }
    let Some(folder) = settings.blobs.folder() else {
        return Err(unusable("this kind of store is not supported".into()));
    };
    let place = StoreRef::folder(folder);
    let state = match mode {
        OpenMode::Serve | OpenMode::IngestOnly => store::claim(catalog, &place, clock.now()).await?,
        OpenMode::Command => store::check(catalog, &place).await?,
    };
    announce(state);
    let signing_key = match &secrets.url_signing_key {
        Some(key) => SigningKey::new(key),
        None => {
            let fresh: [u8; 32] = rand::random();
            SigningKey::new(catalog.get_or_set_fact("url_signing_key", &to_hex(&fresh)).await?.as_bytes())
        }
    };
    let disk = DiskStore::open(folder, public_url, signing_key, faults.clone())
        .map_err(|error| unusable(error.to_string()))?;
    let disk = Arc::new(disk);
    Ok((faulty(disk.clone()), Some(disk), state))
}

/// Tries again for a while: the store may start at the same time as this program.
async fn probe(blobs: &dyn BlobStore) -> Result<ProbeReport, BlobError> {
    let mut tries_left = PROBE_TRIES_MAX;
    loop {
        let late = || Err(BlobError::Unavailable("no answer in 30 s".into()));
        match tokio::time::timeout(PROBE_TIMEOUT, blobs.probe()).await.unwrap_or_else(|_| late()) {
            Err(BlobError::Unavailable(why)) if tries_left > 1 => {
                tracing::warn!(store = blobs.kind(), error = %why, "cannot reach the store, trying again");
                tries_left -= 1;
                tokio::time::sleep(PROBE_PAUSE).await;
            }
            probed => return probed,
        }
    }
}

fn announce(state: StoreState) {
    if let StoreState::Restored { catalog, store } = state {
        tracing::error!(
            catalog,
            store,
            "the marker of the store is ahead of the catalog, so the catalog seems to be restored from a backup: no upload \
             is reclaimed and no object without a row is deleted. If the catalog is right, run `wharfinger doctor \
             --accept-store`"
        );
    }
}
