//! Checks the store: access rights, clock, what it enforces, and whether it belongs to this catalog.

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Catalog;
use wharfinger_lifecycle::UnixMs;
use wharfinger_stores::disk::{DiskStore, SigningKey};
use wharfinger_stores::{BlobStore, Capabilities};

use super::{Finding, bad, good};
use crate::config::Settings;
use crate::store::{self, StoreRef, StoreState};

/// `catalog` is None if its schema is missing or of another version.
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

/// `--accept-store`: the store belongs to this catalog.
pub(super) async fn accept_store(settings: &Settings, catalog: &Catalog, now: UnixMs) -> Finding {
    let accepted = match settings.blobs.connect().await {
        Err(error) => Err(error.to_string()),
        Ok(Some(blobs)) => store::accept(catalog, &StoreRef::store(&settings.blobs, &*blobs), now)
            .await
            .map_err(|error| error.to_string()),
        Ok(None) => match settings.blobs.folder() {
            Some(folder) => store::accept(catalog, &StoreRef::folder(folder), now)
                .await
                .map_err(|error| error.to_string()),
            None => Ok(()),
        },
    };
    match accepted {
        Ok(()) => good("store", format!("{} now belongs to this catalog", settings.blobs)),
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
            findings.push(good("blobs", format!("{place}; {}", enforced(&blobs.capabilities()))));
            findings.extend(probed.notes.iter().map(|note| good("blobs", note)));
            if probed.clock_ahead_ms != 0 {
                findings.extend(probed.warnings().last().map(|warning| bad("clock", warning)));
            }
        }
    }
    if let Some(catalog) = catalog {
        findings.push(match store::check(catalog, &StoreRef::store(place, blobs)).await {
            Ok(state) => describe(state),
            Err(error) => bad("store", error),
        });
    }
}

fn describe(state: StoreState) -> Finding {
    match state {
        StoreState::New => good("store", "the first start will claim it for this catalog"),
        StoreState::Ours => good("store", "belongs to this catalog"),
        StoreState::Restored { catalog, store } => bad(
            "store",
            format!(
                "its marker is ahead of the catalog ({store} to {catalog}), so the catalog seems to be restored from a \
                 backup: no object without a row is deleted. If the catalog is right, run `wharfinger doctor \
                 --accept-store`"
            ),
        ),
    }
}

fn enforced(caps: &Capabilities) -> String {
    let list = |names: Vec<&str>| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let versions =
        if caps.versioned { "; versioned, all versions are deleted with their object" } else { "" };
    match caps.not_enforced() {
        none if none.is_empty() => format!("enforces {}{versions}", list(caps.enforced())),
        some => {
            format!(
                "enforces {}; confirm or a sweep checks the rest: {}{versions}",
                list(caps.enforced()),
                list(some)
            )
        }
    }
}

/// Creates nothing: a folder that doctor creates on an empty mount point would look like the store.
async fn check_folder(settings: &Settings, catalog: &Catalog) -> Finding {
    let Some(folder) = settings.blobs.folder() else { return bad("blobs", "not a folder") };
    let shown = folder.display();
    let remedy =
        "Check that the folder exists, that this user may write to it, and that the disk is not full";
    match store::check(catalog, &StoreRef::folder(folder)).await {
        Err(error) => return bad("blobs", error),
        Ok(StoreState::New) => return good("blobs", format!("{shown} will be created at the first start")),
        Ok(restored @ StoreState::Restored { .. }) => return describe(restored),
        Ok(StoreState::Ours) => {}
    }
    let signing_key = SigningKey::new(b"doctor signs nothing");
    match DiskStore::open(folder, "http://localhost", signing_key, Faults::none()) {
        Err(error) => bad("blobs", format!("{shown}: {error}. {remedy}")),
        Ok(store) => match store.check().await {
            Err(error) => bad("blobs", format!("{shown}: {error}. {remedy}")),
            Ok(()) => good("blobs", format!("local disk at {shown}; {}", enforced(&store.capabilities()))),
        },
    }
}

/// Before the first start the folder may be missing, but the path must not be something else.
fn check_new_folder(settings: &Settings) -> Finding {
    let Some(folder) = settings.blobs.folder() else { return bad("blobs", "not a folder") };
    if folder.exists() && !folder.is_dir() {
        return bad("blobs", format!("WHARFINGER_BLOB_URL: {} is not a folder", folder.display()));
    }
    good("blobs", format!("{} will be created at the first start", folder.display()))
}
