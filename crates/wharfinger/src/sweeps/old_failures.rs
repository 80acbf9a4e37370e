//! Fault: a failed or quarantined file that was neither processed again, released nor deleted, and still uses storage and
//! quota. Its owner is warned. The file is deleted when its retention and the whole warning time have passed.

use std::sync::atomic::Ordering;

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::FailedStatus;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::retention::{FailureCheck, FailureRetention, check_failure};

use super::{SweepLease, orphan_cleanup};
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::{STALE_TRIES_MAX, commit_in};

const PAGE_FILES: usize = 200;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = OldFailuresResult)]
pub struct Outcome {
    #[schema(example = 0)]
    pub warnings: u64,
    #[schema(example = 7)]
    pub deleted: u64,
    /// Files that could not be checked.
    #[schema(example = 0)]
    pub errors: u64,
}

enum FailureOutcome {
    Unchanged,
    Warned,
    Deleted,
}

pub(super) async fn run(
    uploads: &Uploads,
    lease: &SweepLease,
    outcome: &mut Outcome,
) -> Result<(), VerbError> {
    let plan = &uploads.core.plan;
    check_all(uploads, lease, FailedStatus::Failed, plan.failures, outcome).await?;
    match plan.quarantine {
        Some(retention) => check_all(uploads, lease, FailedStatus::Quarantined, retention, outcome).await,
        None => Ok(()),
    }
}

/// Selects files by the time they failed, not by their next check, so that a shorter retention applies at once.
async fn check_all(
    uploads: &Uploads,
    lease: &SweepLease,
    status: FailedStatus,
    retention: FailureRetention,
    outcome: &mut Outcome,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let warned_by = core.clock.now().saturating_sub((retention.keep_ms - retention.warning_ms).max(0));
    let mut after: Option<(UnixMs, FileId)> = None;
    loop {
        let page = core.catalog.files_failed_by(status, warned_by, after, PAGE_FILES).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(*last);
        for (_, id) in &page {
            if !lease.should_continue(core) {
                return Ok(());
            }
            match check_one(uploads, lease, *id).await {
                Ok(FailureOutcome::Unchanged) => {}
                Ok(FailureOutcome::Warned) => outcome.warnings += 1,
                Ok(FailureOutcome::Deleted) => outcome.deleted += 1,
                Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
                Err(error) => {
                    outcome.errors += 1;
                    tracing::warn!(job = orphan_cleanup::NAME, fileId = %id, error = %error.with_cause(),
                        "cannot check a failed or quarantined file");
                }
            }
        }
    }
}

async fn check_one(uploads: &Uploads, lease: &SweepLease, id: FileId) -> Result<FailureOutcome, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let Some(file) = core.catalog.file(id).await? else { return Ok(FailureOutcome::Unchanged) };
        let checked = check_failure(&file, &core.plan, &core.policy, core.clock.now())
            .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
        let (change, done) = match checked {
            FailureCheck::Nothing => return Ok(FailureOutcome::Unchanged),
            FailureCheck::Later(change) => (change, FailureOutcome::Unchanged),
            FailureCheck::Warn(change) => (change, FailureOutcome::Warned),
            // In a catalog restored from a backup, a file may look failed or quarantined although it was processed again or
            // released later.
            FailureCheck::Delete(_) if !core.store_is_ours.load(Ordering::Relaxed) => {
                return Ok(FailureOutcome::Unchanged);
            }
            FailureCheck::Delete(change) => (change, FailureOutcome::Deleted),
        };
        if lease.is_dry_run() {
            return Ok(done);
        }
        if commit_in(uploads, &lease.catalog, *change, orphan_cleanup::NAME).await? {
            match done {
                FailureOutcome::Deleted => {
                    tracing::info!(job = orphan_cleanup::NAME, fileId = %id, fileName = file.name, tenant = %file.tenant,
                        blobPath = %file.key, lastStatus = %file.status, bytes = file.size, action = "deleted",
                        "file deleted after its retention");
                }
                FailureOutcome::Warned => {
                    tracing::info!(job = orphan_cleanup::NAME, fileId = %id, fileName = file.name, tenant = %file.tenant,
                        lastStatus = %file.status, action = "warned", "owner warned about a file to be deleted");
                }
                FailureOutcome::Unchanged => {}
            }
            return Ok(done);
        }
    }
    Err(VerbError::busy())
}
