//! The result of a sweep.

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
    /// Whether the sweep found nothing to repair and had no errors.
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

    /// Errors of single items or parts, as one line. None if there were none.
    pub fn error_summary(&self) -> Option<String> {
        let failed = |items: u64, what: &str| {
            (items > 0).then(|| format!("{items} {what} could not be checked; see the log"))
        };
        match self {
            Report::StuckFiles(outcome) => failed(outcome.errors, "stuck files"),
            Report::OrphanCleanup(outcome) => outcome.error_summary(),
            Report::BatchTimeout(outcome) => failed(outcome.errors, "batches or files"),
            Report::QuotaSync(outcome) => failed(outcome.failed, "tenants"),
            Report::UploadWindow(outcome) => failed(outcome.errors, "files"),
            // Each failed cleanup has its own row, which shows its error and is tried again.
            Report::PendingCleanups(_) => None,
        }
    }
}
