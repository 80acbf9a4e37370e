//! Orphans: found, left alone while in doubt, and gone in the end; and what becomes of a scan when something goes wrong.

mod blobs;
mod doubts;
mod faults;
mod races;
mod stores;
mod views;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use wharfinger::sweeps::Turn;
use wharfinger::sweeps::orphan_blobs::{Outcome, Pace, run_at};
use wharfinger::uploads::VerbError;
use wharfinger_lifecycle::retry::Backoff;

use crate::oracle;
use crate::test_app::{Ground, TestApp};

const DAY_MS: u64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;
const UNLIMITED: (&str, &str) = ("ORPHAN_DELETE_LIMIT_PERCENT", "0");

/// Few objects make many pages, entries and ranges.
const SMALL: Pace =
    Pace { objects_per_page: 2, pages_per_entry: 2, ranges_max: 3, at_once: 2, pause: NO_PAUSE };
/// A page is an entry, one after the other: slow enough for something to happen meanwhile.
const SLOW: Pace =
    Pace { objects_per_page: 1, pages_per_entry: 1, ranges_max: 1, at_once: 1, pause: NO_PAUSE };
const NO_PAUSE: Backoff = Backoff { base_ms: 1, cap_ms: 1 };

async fn try_scan(server: &TestApp) -> Result<Outcome, VerbError> {
    run_at(&server.app, &Turn::by_hand(&server.app), SMALL).await
}

async fn scan(server: &TestApp) -> Outcome {
    try_scan(server).await.expect("a scan")
}

/// Puts bytes into the local store behind the program's back, as if it were so long ago.
fn plant(ground: &Ground, key: &str, age_ms: u64) {
    let path = ground.blob_dir().join(key);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
    std::fs::write(&path, b"flotsam").expect("an object");
    let then = SystemTime::now() - Duration::from_millis(age_ms);
    let file = std::fs::File::options().write(true).open(&path).expect("the object");
    file.set_modified(then).expect("another time");
}

fn is_there(ground: &Ground, key: &str) -> bool {
    ground.blob_dir().join(key).exists()
}

/// A key in the form of ours that no file has.
fn unknown_key(n: u64) -> String {
    format!("uploads/t/u/00000000-0000-7000-8000-{n:012}")
}

fn key_of(id: &str) -> String {
    format!("uploads/t/u/{id}")
}

fn stored(ground: &Ground) -> BTreeSet<String> {
    oracle::files_below(&ground.blob_dir())
}
