//! Fault: a file that failed, that nobody sent through again or deleted, and that holds its bytes and its share of the
//! quota. Its owner is warned, and when the warning has been out for its whole time the file goes.

use std::sync::atomic::Ordering;

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::retention::{FailureCheck, check_failure};

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
    /// Files that could not be looked at.
    #[schema(example = 0)]
    pub errors: u64,
}

enum Done {
    Nothing,
    Warned,
    Deleted,
}

/// By when they failed and not by when they were to be looked at: a retention that was made shorter counts at once.
pub(super) async fn run(
    uploads: &Uploads,
    lease: &SweepLease,
    outcome: &mut Outcome,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let retention = core.plan.failures;
    let warned_by = core.clock.now().saturating_sub((retention.keep_ms - retention.warning_ms).max(0));
    let mut after: Option<(UnixMs, FileId)> = None;
    loop {
        let page = core.catalog.files_failed_by(warned_by, after, PAGE_FILES).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(*last);
        for (_, id) in &page {
            if !lease.goes_on(core) {
                return Ok(());
            }
            match check_at(uploads, lease, *id).await {
                Ok(Done::Nothing) => {}
                Ok(Done::Warned) => outcome.warnings += 1,
                Ok(Done::Deleted) => outcome.deleted += 1,
                Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
                Err(error) => {
                    outcome.errors += 1;
                    tracing::warn!(job = orphan_cleanup::NAME, fileId = %id, error = ?error,
                        "a failed file could not be looked at");
                }
            }
        }
    }
}

async fn check_at(uploads: &Uploads, lease: &SweepLease, id: FileId) -> Result<Done, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let Some(file) = core.catalog.file(id).await? else { return Ok(Done::Nothing) };
        let looked = check_failure(&file, core.plan.failures, &core.policy, core.clock.now())
            .map_err(|refusal| VerbError::Internal(refusal.to_string()))?;
        let (change, done) = match looked {
            FailureCheck::Nothing => return Ok(Done::Nothing),
            FailureCheck::Later(change) => (change, Done::Nothing),
            FailureCheck::Warn(change) => (change, Done::Warned),
            // A catalog from a backup may take for failed what has been sent through again since.
            FailureCheck::Delete(_) if !core.store_is_ours.load(Ordering::Relaxed) => {
                return Ok(Done::Nothing);
            }
            FailureCheck::Delete(change) => (change, Done::Deleted),
        };
        if lease.is_dry_run() {
            return Ok(done);
        }
        if commit_in(uploads, &lease.catalog, *change, orphan_cleanup::NAME).await? {
            if matches!(done, Done::Deleted) {
                tracing::info!(job = orphan_cleanup::NAME, fileId = %id, tenant = %file.tenant, action = "deleted",
                    bytes = file.size, "a failed file was kept for its time");
            }
            return Ok(done);
        }
    }
    Err(VerbError::busy())
}
