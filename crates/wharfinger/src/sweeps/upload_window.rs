//! Fault: a file whose next check is overdue, because its delayed check was lost. This sweep also removes expired idempotency
//! keys, old notifications and other old rows, and cleans up crashed uploads.

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::state::Status;

use super::sweep_lease::page_files;
use super::{SweepLease, retention};
use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::check::{CheckOutcome, ExpiryRule};
use crate::uploads::receive;

pub const NAME: &str = "upload-window";

const KEYS_PER_STEP: usize = 1_000;
const NOTIFICATIONS_PER_STEP: usize = 1_000;
/// How long notifications are kept.
const NOTIFICATIONS_KEPT_MS: i64 = 90 * 86_400_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UploadWindowResult)]
pub struct Outcome {
    #[schema(example = 7)]
    pub checked: u64,
    #[schema(example = 0)]
    pub reclaimed: u64,
    #[schema(example = 0)]
    pub rescued: u64,
    /// Files that could not be checked.
    #[schema(example = 0)]
    pub errors: u64,
}

pub async fn run(uploads: &Uploads, lease: &SweepLease) -> Result<Outcome, VerbError> {
    let core = &uploads.core;
    if lease.is_dry_run() {
        return check_all_due(uploads, lease).await;
    }
    // Before tombstones are removed: they say where the objects of crashed uploads are.
    if let Err(error) = receive::clean_up_crashed_uploads(core).await {
        tracing::warn!(job = NAME, error = %error.with_cause(), "cannot remove leftovers of interrupted uploads, the next sweep tries again");
    }
    let outcome = check_all_due(uploads, lease).await?;
    purge_keys(core, lease).await;
    purge_notifications(core, lease).await;
    purge_outcomes(core, lease).await;
    retention::remove_expired(core, lease).await;
    Ok(outcome)
}

async fn check_all_due(uploads: &Uploads, lease: &SweepLease) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    for status in [Status::Registered, Status::Deleted] {
        check_due(uploads, lease, status, &mut outcome).await?;
    }
    Ok(outcome)
}

async fn check_due(
    uploads: &Uploads,
    lease: &SweepLease,
    status: Status,
    outcome: &mut Outcome,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let now = core.clock.now();
    let mut after = None;
    loop {
        let due = core.catalog.files_to_check(status, now, after, page_files(core)).await?;
        let Some(last) = due.last() else { return Ok(()) };
        after = Some(*last);
        if lease.is_stopped() {
            return Ok(());
        }
        let ids: Vec<FileId> = due.iter().map(|(_, id)| *id).collect();
        for (id, checked) in lease.check_files(uploads, &ids, NAME, ExpiryRule::Due).await? {
            outcome.checked += 1;
            match checked {
                Ok(CheckOutcome::Reclaimed) => outcome.reclaimed += 1,
                Ok(CheckOutcome::Rescued) => outcome.rescued += 1,
                Ok(_) => {}
                Err(error) => {
                    outcome.errors += 1;
                    tracing::warn!(job = NAME, fileId = %id, error = %error.with_cause(), "cannot check a file");
                }
            }
        }
    }
}

async fn purge_keys(core: &Core, lease: &SweepLease) {
    while lease.should_continue(core) {
        match lease.catalog.purge_expired_keys(core.clock.now(), KEYS_PER_STEP).await {
            Ok(removed) if removed as usize == KEYS_PER_STEP => {}
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(job = NAME, error = %error, "cannot remove expired idempotency keys");
                return;
            }
        }
    }
}

async fn purge_outcomes(core: &Core, lease: &SweepLease) {
    if let Err(error) = lease.catalog.purge_outcomes(core.clock.now()).await {
        tracing::warn!(job = NAME, error = %error, "cannot remove old dashboard counts (file_outcomes), the next sweep tries again");
    }
}

async fn purge_notifications(core: &Core, lease: &SweepLease) {
    while lease.should_continue(core) {
        let before = core.clock.now().saturating_sub(NOTIFICATIONS_KEPT_MS);
        match lease.catalog.purge_notifications(before, NOTIFICATIONS_PER_STEP).await {
            Ok(removed) if removed as usize == NOTIFICATIONS_PER_STEP => {}
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(job = NAME, error = %error, "cannot remove old notifications");
                return;
            }
        }
    }
}
