//! Two minutes of a busy wharf: real traffic against a server with short windows, and everything that goes wrong elsewhere in
//! months. What is broken is broken for real: files are taken from under the server, workers vanish, stores go away.

mod cargo;
mod client;
mod faults;
mod traffic;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

pub use client::{Client, Crew};
pub use traffic::run;

/// How many turns it has. At the usual speed each takes a second.
const TURNS: u64 = 120;

/// How many times faster than usual everything happens.
#[derive(Clone, Copy, Debug)]
pub struct Speed(pub u32);

impl Speed {
    pub fn turn(self) -> Duration {
        Duration::from_secs(1) / self.0
    }

    /// What is months elsewhere is seconds here.
    pub fn settings(self) -> Vec<(&'static str, String)> {
        let faster = |milliseconds: u32| (milliseconds / self.0).to_string();
        let durations = DURATIONS.map(|(name, milliseconds)| (name, faster(milliseconds)));
        let schedules = SCHEDULES.map(|(name, seconds)| {
            let seconds = (seconds / self.0).max(1);
            (name, format!("*/{seconds} * * * * *"))
        });
        let fixed = FIXED.map(|(name, value)| (name, value.to_owned()));
        durations.into_iter().chain(schedules).chain(fixed).collect()
    }
}

/// In milliseconds.
const DURATIONS: [(&str, u32); 9] = [
    ("UPLOAD_WINDOW_MS", 12_000),
    ("UPLOAD_GRACE_MS", 3_000),
    ("STUCK_FILE_THRESHOLD_MS", 8_000),
    ("ABANDONED_UPLOAD_THRESHOLD_MS", 10_000),
    ("ORPHAN_BLOB_GRACE_MS", 10_000),
    ("BATCH_TIMEOUT_MS", 20_000),
    ("FAILED_FILE_RETENTION_MS", 75_000),
    ("FAILED_FILE_WARNING_MS", 30_000),
    ("JOB_LEASE_MS", 5_000),
];

/// Seconds from one run to the next.
const SCHEDULES: [(&str, u32); 6] = [
    ("UPLOAD_WINDOW_SCHEDULE", 5),
    ("STUCK_RECOVERY_SCHEDULE", 10),
    ("ORPHAN_CLEANUP_SCHEDULE", 15),
    ("BATCH_TIMEOUT_SCHEDULE", 10),
    ("CLEANUP_SWEEP_SCHEDULE", 5),
    ("QUOTA_SYNC_SCHEDULE", 30),
];

const FIXED: [(&str, &str); 13] = [
    ("MAX_STUCK_RETRIES", "3"),
    ("ORPHAN_DELETE_LIMIT_PERCENT", "20"),
    ("CLEANUP_MAX_ATTEMPTS", "3"),
    ("DASHBOARD_CACHE_TTL", "1"),
    ("DEFAULT_TENANT_QUOTA_BYTES", "8MiB"),
    ("MULTIPART_THRESHOLD_BYTES", "16MiB"),
    ("PIPELINE_STAGES", "scan,extract,chunk,embed"),
    ("PIPELINE_BUILTIN_STAGES", "scan,extract,chunk"),
    ("STAGE_TIMEOUT_MS", "20000"),
    ("JOB_MAX_ATTEMPTS", "3"),
    ("INGEST_BATCH_AGE_MS", "500"),
    ("AUDIT_TO_INGEST", "true"),
    ("INGEST_ACK", "disk"),
];

/// Where things lie that the demo breaks.
#[derive(Clone, Debug)]
pub struct Wharf {
    pub url: String,
    pub blobs: PathBuf,
    pub events: PathBuf,
}
