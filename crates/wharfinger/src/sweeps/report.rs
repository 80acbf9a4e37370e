//! What a sweep found and did.

use serde::Serialize;
use utoipa::ToSchema;

use super::{expired_batches, orphan_cleanup, pending_cleanups, quota_sync, stuck_files, upload_window};

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Report {
    StuckFiles(stuck_files::Outcome),
    OrphanCleanup(orphan_cleanup::Outcome),
    BatchTimeout(expired_batches::Outcome),
    PendingCleanups(pending_cleanups::Outcome),
    QuotaSync(quota_sync::Outcome),
    UploadWindow(upload_window::Outcome),
}

impl Report {
    /// There was nothing to mend, and nothing went wrong.
    pub fn is_quiet(&self) -> bool {
        match self {
            Report::StuckFiles(outcome) => *outcome == stuck_files::Outcome::default(),
            Report::OrphanCleanup(outcome) => outcome.is_quiet(),
            Report::BatchTimeout(outcome) => *outcome == expired_batches::Outcome::default(),
            Report::PendingCleanups(outcome) => *outcome == pending_cleanups::Outcome::default(),
            Report::QuotaSync(outcome) => outcome.drift_bytes == 0 && outcome.failed == 0,
            Report::UploadWindow(outcome) => *outcome == upload_window::Outcome::default(),
        }
    }

    /// What a part of it could not do, while the rest went on.
    pub fn trouble(&self) -> Option<String> {
        let passed_over = |items: u64, what: &str| {
            (items > 0).then(|| format!("{items} {what} could not be looked at, the log says why"))
        };
        match self {
            Report::StuckFiles(outcome) => passed_over(outcome.errors, "stuck files"),
            Report::OrphanCleanup(outcome) => outcome.trouble(),
            Report::BatchTimeout(outcome) => passed_over(outcome.errors, "batches or files"),
            Report::QuotaSync(outcome) => passed_over(outcome.failed, "tenants"),
            Report::UploadWindow(outcome) => passed_over(outcome.errors, "files"),
            // Each of its failures is a row of its own, shown with its error and tried again.
            Report::PendingCleanups(_) => None,
        }
    }
}
