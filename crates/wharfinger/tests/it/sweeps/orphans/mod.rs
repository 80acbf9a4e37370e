//! The scan for orphans: which objects it deletes and keeps, when it refuses to delete, and how it survives faults.

mod blobs;
mod faults;
mod on_demand;
mod races;
mod safeguards;
mod stores;
mod views;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use wharfinger::core::VerbError;
use wharfinger::sweeps::SweepLease;
use wharfinger::sweeps::orphan_blobs::{Outcome, ScanOptions, run_with};
use wharfinger_lifecycle::retry::Backoff;

use crate::oracle;
use crate::test_app::{TestApp, TestEnv};

pub const DAY_MS: u64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;
const UNLIMITED: (&str, &str) = ("ORPHAN_DELETE_LIMIT_PERCENT", "0");

/// A few objects already fill several pages, checkpoints and ranges.
const SMALL: ScanOptions = ScanOptions {
    objects_per_page: 2,
    pages_per_checkpoint: 2,
    ranges_per_folder_max: 3,
    ranges_at_once: 2,
    pause: NO_PAUSE,
};
/// One object per page and one range at a time, so that a test can act during the scan.
const SLOW: ScanOptions = ScanOptions {
    objects_per_page: 1,
    pages_per_checkpoint: 1,
    ranges_per_folder_max: 1,
    ranges_at_once: 1,
    pause: NO_PAUSE,
};
const NO_PAUSE: Backoff = Backoff { base_ms: 1, cap_ms: 1 };

async fn try_scan(server: &TestApp) -> Result<Outcome, VerbError> {
    run_with(&server.app.core, &SweepLease::unleased(&server.app.core), SMALL).await
}

async fn scan(server: &TestApp) -> Outcome {
    try_scan(server).await.expect("a scan")
}

/// Writes an object of this age directly into the local store, and makes the store's marker older than it.
pub fn plant(env: &TestEnv, key: &str, age_ms: u64) {
    backdate_marker(env);
    plant_foreign(env, key, age_ms);
}

/// Changes the marker as if the store had been claimed in 1970.
fn backdate_marker(env: &TestEnv) {
    let path = env.blob_dir().join(".wharfinger/store");
    let Ok(marker) = std::fs::read_to_string(&path) else { return };
    let words: Vec<&str> = marker.split_whitespace().collect();
    if let [catalog, store, counter, _] = words[..] {
        std::fs::write(&path, format!("{catalog} {store} {counter} 1\n")).expect("an older marker");
    }
}

/// Like [`plant`], but the marker stays as it is. An object older than the marker is foreign.
fn plant_foreign(env: &TestEnv, key: &str, age_ms: u64) {
    let path = env.blob_dir().join(key);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("the parent folder");
    std::fs::write(&path, b"unknown").expect("an object");
    let then = SystemTime::now() - Duration::from_millis(age_ms);
    let file = std::fs::File::options().write(true).open(&path).expect("the object");
    file.set_modified(then).expect("the time is set");
}

fn exists(env: &TestEnv, key: &str) -> bool {
    env.blob_dir().join(key).exists()
}

/// A valid upload key without a file.
pub fn unknown_key(n: u64) -> String {
    format!("uploads/t/u/00000000-0000-7000-8000-{n:012}")
}

/// A valid derived key without a file.
const UNKNOWN_DERIVED: &str = "derived/t/u/00000000-0000-7000-8000-000000000000/\
    00000000-0000-7000-8000-000000000000-1/text-00000";

fn key_of(id: &str) -> String {
    format!("uploads/t/u/{id}")
}

fn stored(env: &TestEnv) -> BTreeSet<String> {
    oracle::files_below(&env.blob_dir())
}
