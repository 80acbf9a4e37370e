//! The start of a spool and the search for its oldest batch, with a thousand, a hundred thousand and a million batches.
//! Beside it a listing of the folder that takes the smallest name.

use std::path::Path;
use std::time::Instant;

use wharfinger_engines::spool::Spool;
use wharfinger_events::name::{BatchName, META};

use crate::server::base;
use crate::timing::say;

const PICKS: u32 = 500;
const SHARD_FILES: u64 = 4_096;

pub(crate) fn run() {
    let counts = std::env::args().nth(2).and_then(|count| count.parse().ok());
    for files in counts.map_or(vec![1_000_u64, 100_000, 1_000_000], |count| vec![count]) {
        measure(files);
    }
}

fn fill(folder: &Path, files: u64) {
    for number in 0..files {
        let shard = folder.join(format!("shard-{:08}", 1 + number / SHARD_FILES));
        if number % SHARD_FILES == 0 {
            std::fs::create_dir_all(&shard).expect("a shard");
        }
        let name = BatchName::new(1_700_000_000 + (number * 7_919 % files) as i64, "bench", number);
        std::fs::write(shard.join(name.as_str()), b"0123456789abcdef").expect("a batch");
        std::fs::write(shard.join(format!("{name}{META}")), "{\"num_events\":5000}").expect("its metadata");
    }
}

/// Drops the kernel's caches, as after a boot.
fn drop_caches() -> bool {
    std::process::Command::new("sync").status().is_ok_and(|status| status.success())
        && std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn naive(folder: &Path) -> Option<BatchName> {
    let shards = std::fs::read_dir(folder).expect("the folder").flatten();
    let names = shards.filter(|shard| shard.path().is_dir()).flat_map(|shard| {
        std::fs::read_dir(shard.path())
            .expect("a shard")
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
    });
    names.filter_map(|name| BatchName::parse(&name)).min()
}

fn measure(files: u64) {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    fill(folder.path(), files);
    let open = |what: &str| {
        let cold = if drop_caches() { "cold" } else { "warm" };
        let started = Instant::now();
        let spool = Spool::open(folder.path(), u64::MAX / 2).expect("a spool");
        say(format!("{files:>8} batches: start {what}, {cold}: {:>8.3} s", started.elapsed().as_secs_f64()));
        spool
    };
    drop(open("from the files alone"));
    let spool = open("with its journal");
    assert_eq!(spool.status().files, files);
    let started = Instant::now();
    for _ in 0..PICKS {
        let oldest = spool.oldest(0).expect("one");
        spool.read(&oldest.name).expect("its bytes");
        spool.remove(&oldest.name).expect("removed");
    }
    let ours = started.elapsed() / PICKS;
    let started = Instant::now();
    let found = naive(folder.path()).expect("one");
    let listed = started.elapsed();
    assert_eq!(spool.oldest(0).map(|held| held.name), Some(found), "both find the same");
    say(format!(
        "{files:>8} batches: pick, read and remove the oldest: {:>7.1} us; listing and taking the smallest, warm: {:>9.1} us; {} MiB",
        ours.as_secs_f64() * 1e6,
        listed.as_secs_f64() * 1e6,
        resident_kib() / 1_024,
    ));
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}
