//! A listing of a million objects on local disk in key order, beside a bare unordered walk.

use std::path::Path;
use std::time::Instant;

use futures::StreamExt as _;
use wharfinger_calls::faults::Faults;
use wharfinger_stores::BlobStore as _;
use wharfinger_stores::disk::{DiskStore, SigningKey};

use crate::server::base;
use crate::timing::{rate, say};

const OBJECTS: usize = 1_000_000;

pub(crate) async fn run() {
    for users in [1, 100] {
        let folder = tempfile::tempdir_in(base()).expect("a folder");
        for user in 0..users {
            let home = folder.path().join(format!("uploads/t/u{user}"));
            std::fs::create_dir_all(&home).expect("a user's folder");
            for _ in 0..OBJECTS / users {
                let name = home.join(wharfinger_catalog::fresh_id(1_750_000_000_000).to_string());
                std::fs::File::create(name).expect("an object");
            }
        }
        measure(folder.path(), users).await;
    }
}

async fn measure(root: &Path, users: usize) {
    let store = DiskStore::open(root, "", SigningKey::new(b"x"), Faults::none()).expect("a store");
    let started = Instant::now();
    let bare = walk(&root.join("uploads"));
    let bare_took = started.elapsed();
    let (started, mut listing, mut count) = (Instant::now(), store.list("uploads/", None), 0);
    let (mut middle, mut last) = (String::new(), String::new());
    while let Some(object) = listing.next().await {
        let key = object.expect("an object").key;
        assert!(key > last, "in order");
        count += 1;
        if count == OBJECTS / 2 {
            middle.clone_from(&key);
        }
        last = key;
    }
    let took = started.elapsed();
    assert_eq!((count, bare), (OBJECTS, OBJECTS));
    let started = Instant::now();
    let page = store.list("uploads/", Some(&middle)).take(1_000).count().await;
    say(format!(
        "{users} folder(s), {OBJECTS} objects: listed {:.0}/s in order with size and age; bare walk with stat {:.0}/s; \
         {page} after a key in the middle in {:.0} ms; peak memory {} MiB",
        rate(count, took),
        rate(bare, bare_took),
        started.elapsed().as_secs_f64() * 1e3,
        peak_kib() / 1024,
    ));
}

fn walk(folder: &Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let meta = entry.metadata().expect("a stat");
        count += if meta.is_dir() { walk(&entry.path()) } else { 1 };
    }
    count
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
