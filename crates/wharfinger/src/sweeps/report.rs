//! The result of a sweep.

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_lifecycle::state::Status;

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

    /// Logs the end of a run, with the result as fields.
    pub(super) fn log_end(&self, job: &str, dry_run: bool, duration_ms: i64, error: Option<&str>) {
        /// At the level of its outcome.
        macro_rules! finished {
            ($($field:tt)*) => {
                match error {
                    Some(error) => tracing::error!(
                        job, dryRun = dry_run, durationMs = duration_ms, error, action = "finished", $($field)*, "sweep finished with errors"
                    ),
                    None => tracing::info!(
                        job, dryRun = dry_run, durationMs = duration_ms, action = "finished", $($field)*, "sweep finished"
                    ),
                }
            };
        }
        match self {
            Report::StuckFiles(it) => {
                let of = |status: Status| it.by_status.get(status.as_str()).copied();
                finished!(
                    totalStuck = it.total_stuck,
                    reEnqueued = it.re_enqueued,
                    permanentlyFailed = it.permanently_failed,
                    waiting = it.waiting,
                    errors = it.errors,
                    averageStuckDuration = it.average_stuck_duration,
                    byStatus.uploaded = of(Status::Uploaded),
                    byStatus.queued = of(Status::Queued),
                    byStatus.scanning = of(Status::Scanning),
                    byStatus.extracting = of(Status::Extracting),
                    byStatus.chunking = of(Status::Chunking),
                    byStatus.embedding = of(Status::Embedding)
                );
            }
            Report::OrphanCleanup(it) => finished!(
                orphanBlobs.total = it.orphan_blobs.total,
                orphanBlobs.deleted = it.orphan_blobs.deleted,
                orphanBlobs.errors = it.orphan_blobs.errors,
                orphanBlobs.foreign = it.orphan_blobs.foreign,
                orphanBlobs.stopped = it.orphan_blobs.stopped,
                abandonedUploads.total = it.abandoned_uploads.total,
                abandonedUploads.deleted = it.abandoned_uploads.deleted,
                oldFailures.warnings = it.old_failures.warnings,
                oldFailures.deleted = it.old_failures.deleted,
                executionTime = it.execution_time
            ),
            Report::BatchTimeout(it) => finished!(
                expiredBatches = it.expired_batches,
                deletedFiles = it.deleted_files,
                rescued = it.rescued,
                averageBatchAge = it.average_batch_age,
                errors = it.errors
            ),
            Report::PendingCleanups(it) => finished!(
                attempted = it.attempted,
                done = it.done,
                failed = it.failed,
                exhausted = it.exhausted
            ),
            Report::QuotaSync(it) => finished!(
                tenants = it.tenants,
                driftBytes = it.drift_bytes,
                rebuilt = it.rebuilt,
                failed = it.failed
            ),
            Report::UploadWindow(it) => finished!(
                checked = it.checked,
                reclaimed = it.reclaimed,
                rescued = it.rescued,
                errors = it.errors
            ),
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
