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
mod turn;
mod unfinished_uploads;
pub mod upload_window;

pub use report::Report;
pub use run::{ByHand, Looked, NotRun, Ran, follow_schedule, run, run_cleanups_of, run_now, take_turn};
pub use schedule::Sweep;
pub use turn::{LEASE_MS, Turn};
