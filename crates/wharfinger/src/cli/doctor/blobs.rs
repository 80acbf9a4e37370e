//! The store, tried out: its rights, its clock, what it enforces, and whether it is this catalog's.

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Catalog;
use wharfinger_lifecycle::UnixMs;
use wharfinger_stores::disk::{DiskStore, SigningKey};
use wharfinger_stores::{BlobStore, Caps};

use super::{Finding, bad, good};
use crate::config::Settings;
use crate::store::{self, Place, StoreState};

/// Without a catalog: what can be said before the first start.
pub(super) async fn check(settings: &Settings, catalog: Option<&Catalog>, findings: &mut Vec<Finding>) {
    match settings.blobs.connect().await {
        Err(error) => {
            findings.push(bad("blobs", format!("WHARFINGER_BLOB_URL: {}: {error}", settings.blobs)))
        }
        Ok(Some(blobs)) => check_remote(settings, &*blobs, catalog, findings).await,
        Ok(None) => findings.push(match catalog {
            Some(catalog) => check_folder(settings, catalog).await,
            None => check_new_folder(settings),
        }),
    }
}

/// A person's word that the store is this catalog's.
pub(super) async fn accept(settings: &Settings, catalog: &Catalog, now: UnixMs) -> Finding {
    let accepted = match settings.blobs.connect().await {
        Err(error) => Err(error.to_string()),
        Ok(Some(blobs)) => store::accept(catalog, &Place::store(&settings.blobs, &*blobs), now)
            .await
            .map_err(|error| error.to_string()),
        Ok(None) => match settings.blobs.folder() {
            Some(folder) => {
                store::accept(catalog, &Place::folder(folder), now).await.map_err(|error| error.to_string())
            }
            None => Ok(()),
        },
    };
    match accepted {
        Ok(()) => good("store", format!("{} is this catalog's store from now on", settings.blobs)),
        Err(error) => bad("store", error),
    }
}

async fn check_remote(
    settings: &Settings,
    blobs: &dyn BlobStore,
    catalog: Option<&Catalog>,
    findings: &mut Vec<Finding>,
) {
    let place = &settings.blobs;
    match blobs.probe().await {
        Err(error) => return findings.push(bad("blobs", format!("WHARFINGER_BLOB_URL: {place}: {error}"))),
        Ok(probed) => {
            findings.push(good("blobs", format!("{place}; {}", enforced(&blobs.caps()))));
            findings.extend(probed.notes.iter().map(|note| good("blobs", note)));
            if probed.clock_ahead_ms != 0 {
                findings.extend(probed.warnings().last().map(|warning| bad("clock", warning)));
            }
        }
    }
    if let Some(catalog) = catalog {
        findings.push(match store::check(catalog, &Place::store(place, blobs)).await {
            Ok(state) => describe(state),
            Err(error) => bad("store", error),
        });
    }
}

fn describe(state: StoreState) -> Finding {
    match state {
        StoreState::New => good("store", "will be marked as this catalog's at the first start"),
        StoreState::Ours => good("store", "is this catalog's"),
        StoreState::Restored { catalog, store } => bad(
            "store",
            format!(
                "is ahead of the catalog ({store} to {catalog}), which seems to come from a backup: nothing is \
                 deleted for having no row; if the catalog is right, run `wharfinger doctor --accept-store`"
            ),
        ),
    }
}

fn enforced(caps: &Caps) -> String {
    let list = |names: Vec<&str>| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let versions = if caps.versioned { "; keeps versions, which are deleted with their object" } else { "" };
    match caps.left_to_confirm() {
        none if none.is_empty() => format!("enforces {}{versions}", list(caps.enforced())),
        some => {
            format!(
                "enforces {}; left to confirm or the cleaner: {}{versions}",
                list(caps.enforced()),
                list(some)
            )
        }
    }
}

/// Looks without making anything: a folder made on a bare mount point would pass for the store.
async fn check_folder(settings: &Settings, catalog: &Catalog) -> Finding {
    let Some(folder) = settings.blobs.folder() else { return bad("blobs", "not a folder") };
    let shown = folder.display();
    let mend = "check that the folder exists, is writable by this user and has room";
    match store::check(catalog, &Place::folder(folder)).await {
        Err(error) => return bad("blobs", error),
        Ok(StoreState::New) => return good("blobs", format!("{shown} will be made at the first start")),
        Ok(restored @ StoreState::Restored { .. }) => return describe(restored),
        Ok(StoreState::Ours) => {}
    }
    let signing_key = SigningKey::new(b"doctor signs nothing");
    match DiskStore::open(folder, "http://localhost", signing_key, Faults::none()) {
        Err(error) => bad("blobs", format!("{shown}: {error}; {mend}")),
        Ok(store) => match store.check().await {
            Err(error) => bad("blobs", format!("{shown}: {error}; {mend}")),
            Ok(()) => good("blobs", format!("local disk at {shown}; {}", enforced(&store.caps()))),
        },
    }
}

/// A folder that nothing lies in yet may be missing, but nothing else may be in its place.
fn check_new_folder(settings: &Settings) -> Finding {
    let Some(folder) = settings.blobs.folder() else { return bad("blobs", "not a folder") };
    if folder.exists() && !folder.is_dir() {
        return bad("blobs", format!("WHARFINGER_BLOB_URL: {} is not a folder", folder.display()));
    }
    good("blobs", format!("{} will be made at the first start", folder.display()))
}
