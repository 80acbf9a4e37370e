//! The demo: about two minutes of real traffic and faults against a server with short time limits. The faults are real:
//! objects are deleted behind the server's back, workers crash, stores fail.

mod client;
mod faults;
mod files;
mod traffic;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

pub use client::{Client, DemoClients};
pub use traffic::run;

/// The length of the demo in ticks. At speed 1 a tick is one second.
const TICKS: u64 = 120;

/// How many times faster than in real time everything happens.
#[derive(Clone, Copy, Debug)]
pub struct Speed(pub u32);

impl Speed {
    pub fn tick(self) -> Duration {
        Duration::from_secs(1) / self.0
    }

    /// Settings with seconds in place of hours and days.
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

/// Seconds between two runs.
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

/// The server of the demo, with the folders in which the demo causes faults.
#[derive(Clone, Debug)]
pub struct DemoServer {
    pub url: String,
    pub blobs: PathBuf,
    pub events: PathBuf,
}
