//! Orphans: found, left alone while in doubt, and gone in the end; and what becomes of a scan when something goes wrong.

mod blobs;
mod doubts;
mod faults;
mod races;
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

const DAY_MS: u64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;
const UNLIMITED: (&str, &str) = ("ORPHAN_DELETE_LIMIT_PERCENT", "0");

/// Few objects make many pages, entries and ranges.
const SMALL: ScanOptions = ScanOptions {
    objects_per_page: 2,
    pages_per_checkpoint: 2,
    ranges_per_folder_max: 3,
    ranges_at_once: 2,
    pause: NO_PAUSE,
};
/// A page is an entry, one after the other: slow enough for something to happen meanwhile.
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

/// Puts bytes into the local store behind the program's back, as if it were so long ago, and the store ours for longer.
fn plant(env: &TestEnv, key: &str, age_ms: u64) {
    backdate_mark(env);
    plant_foreign(env, key, age_ms);
}

/// As if the store had been claimed in 1970.
fn backdate_mark(env: &TestEnv) {
    let path = env.blob_dir().join(".wharfinger/store");
    let Ok(mark) = std::fs::read_to_string(&path) else { return };
    let words: Vec<&str> = mark.split_whitespace().collect();
    if let [catalog, store, counter, _] = words[..] {
        std::fs::write(&path, format!("{catalog} {store} {counter} 1\n")).expect("an older mark");
    }
}

/// The same without touching the mark: what is older than the mark belongs to others.
fn plant_foreign(env: &TestEnv, key: &str, age_ms: u64) {
    let path = env.blob_dir().join(key);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
    std::fs::write(&path, b"flotsam").expect("an object");
    let then = SystemTime::now() - Duration::from_millis(age_ms);
    let file = std::fs::File::options().write(true).open(&path).expect("the object");
    file.set_modified(then).expect("another time");
}

fn is_there(env: &TestEnv, key: &str) -> bool {
    env.blob_dir().join(key).exists()
}

/// A key in the form of ours that no file has.
fn unknown_key(n: u64) -> String {
    format!("uploads/t/u/00000000-0000-7000-8000-{n:012}")
}

/// The same of what stages make.
const UNKNOWN_DERIVED: &str = "derived/t/u/00000000-0000-7000-8000-000000000000/\
    00000000-0000-7000-8000-000000000000-1/text-00000";

fn key_of(id: &str) -> String {
    format!("uploads/t/u/{id}")
}

fn stored(env: &TestEnv) -> BTreeSet<String> {
    oracle::files_below(&env.blob_dir())
}
