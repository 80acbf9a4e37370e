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

/// How long it goes on.
pub const TRAFFIC: Duration = Duration::from_secs(120);

/// What is months elsewhere is seconds here.
pub const SETTINGS: [(&str, &str); 28] = [
    ("UPLOAD_WINDOW_MS", "12000"),
    ("UPLOAD_GRACE_MS", "3000"),
    ("UPLOAD_WINDOW_SCHEDULE", "*/5 * * * * *"),
    ("STUCK_FILE_THRESHOLD_MS", "8000"),
    ("STUCK_RECOVERY_SCHEDULE", "*/10 * * * * *"),
    ("MAX_STUCK_RETRIES", "3"),
    ("ABANDONED_UPLOAD_THRESHOLD_MS", "10000"),
    ("ORPHAN_CLEANUP_SCHEDULE", "*/15 * * * * *"),
    ("ORPHAN_BLOB_GRACE_MS", "10000"),
    ("ORPHAN_DELETE_LIMIT_PERCENT", "20"),
    ("BATCH_TIMEOUT_MS", "20000"),
    ("BATCH_TIMEOUT_SCHEDULE", "*/10 * * * * *"),
    ("FAILED_FILE_RETENTION_MS", "75000"),
    ("FAILED_FILE_WARNING_MS", "30000"),
    ("CLEANUP_SWEEP_SCHEDULE", "*/5 * * * * *"),
    ("CLEANUP_MAX_ATTEMPTS", "3"),
    ("QUOTA_SYNC_SCHEDULE", "*/30 * * * * *"),
    ("DASHBOARD_CACHE_TTL", "1"),
    ("DEFAULT_TENANT_QUOTA_BYTES", "8MiB"),
    ("MULTIPART_THRESHOLD_BYTES", "16MiB"),
    ("PIPELINE_STAGES", "scan,extract,chunk,embed"),
    ("PIPELINE_BUILTIN_STAGES", "scan,extract,chunk"),
    ("JOB_LEASE_MS", "5000"),
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
