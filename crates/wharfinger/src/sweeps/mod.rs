//! Healers. Each looks at the catalog and the store and mends what it finds, in bounded batches; an error on
//! one item never ends a sweep.

pub mod abandoned_uploads;
pub mod expired_batches;
pub mod old_failures;
pub mod orphan_blobs;
pub mod orphan_cleanup;
pub mod pending_cleanups;
pub mod quota_sync;
mod report;
mod retention;
mod run;
mod schedule;
pub mod stuck_files;
mod sweep_lease;
mod unfinished_uploads;
pub mod upload_window;

pub use report::Report;
pub use run::{ByHand, DueRun, NotRun, Ran, follow_schedule, run, run_cleanups_of, run_if_due, run_now};
pub use schedule::Sweep;
pub use sweep_lease::{LEASE_MS, SweepLease};
