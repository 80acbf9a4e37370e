//! Sweeps. Each compares the catalog with the store, or its rows with each other, and repairs what it finds, in bounded
//! batches. An error on one item does not end a sweep.

pub mod abandoned_uploads;
pub mod expired_batches;
pub mod old_failures;
pub mod orphan_blobs;
pub mod orphan_cleanup;
pub mod pending_cleanups;
pub mod quota_sync;
mod reaper;
mod report;
mod retention;
mod run;
mod schedule;
pub mod stuck_files;
mod sweep_lease;
mod unfinished_uploads;
pub mod upload_window;

pub use reaper::ReaperRun;
pub use report::Report;
pub use run::{
    DueRun, ManualRun, SCHEDULE, SweepRun, SweepRunError, apply_schedule, run_cleanups_in, run_if_due,
    run_now, run_unleased,
};
pub use schedule::Sweep;
pub use sweep_lease::{LEASE_MS, SweepLease};
