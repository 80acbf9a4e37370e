//! Fault: an active batch whose time is over. It expires: confirmed files stay, the others are reclaimed here, and the owner
//! gets one notification.

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{BatchEndOutcome, BatchEnding};
use wharfinger_lifecycle::batch::{Batch, BatchStatus};
use wharfinger_lifecycle::file::{EndReason, File};
use wharfinger_lifecycle::id::{BatchId, FileId};
use wharfinger_lifecycle::state::Status;

use super::SweepLease;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::check::{CheckOutcome, ExpiryRule};

pub const NAME: &str = "batch-timeout";

const PAGE_BATCHES: usize = 100;
const PAGE_FILES: usize = 500;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BatchTimeoutResult)]
pub struct Outcome {
    #[schema(example = 2)]
    pub expired_batches: u64,
    /// Unconfirmed files of these batches that were removed.
    #[schema(example = 5)]
    pub deleted_files: u64,
    /// Average milliseconds from the start of a batch to its expiry.
    #[schema(example = 90_000_000)]
    pub average_batch_age: i64,
    /// Batches and files that could not be checked.
    #[schema(example = 0)]
    pub errors: u64,
}

pub async fn run(uploads: &Uploads, lease: &SweepLease) -> Result<Outcome, VerbError> {
    let core = &uploads.core;
    let mut outcome = Outcome::default();
    let mut ages_ms = 0_i128;
    let mut after = None;
    loop {
        let overdue = core.catalog.overdue_batches(core.clock.now(), after, PAGE_BATCHES).await?;
        let Some(last) = overdue.last() else { return Ok(outcome) };
        after = Some(*last);
        for (_, id) in &overdue {
            if !lease.should_continue(core) {
                return Ok(outcome);
            }
            match expire(uploads, lease, *id).await {
                Ok(None) => {}
                Ok(Some((batch, reclaimed))) => {
                    outcome.expired_batches += 1;
                    outcome.deleted_files += reclaimed.deleted;
                    outcome.errors += reclaimed.errors;
                    ages_ms += i128::from(core.clock.now().saturating_sub(batch.created_at));
                    let average = ages_ms / i128::from(outcome.expired_batches);
                    outcome.average_batch_age = i64::try_from(average).unwrap_or(i64::MAX);
                }
                Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
                Err(error) => {
                    outcome.errors += 1;
                    tracing::warn!(job = NAME, batchId = %id, error = %error.with_cause(), "cannot expire a batch");
                }
            }
        }
    }
}

/// How many unconfirmed files of a batch were removed, and how many had errors.
#[derive(Default)]
struct Reclaimed {
    deleted: u64,
    errors: u64,
}

/// Expires a batch. None: it was ended by another call. If this crashes, the check of its files is due, so the upload-window
/// sweep continues.
async fn expire(
    uploads: &Uploads,
    lease: &SweepLease,
    id: BatchId,
) -> Result<Option<(Batch, Reclaimed)>, VerbError> {
    let core = &uploads.core;
    if lease.is_dry_run() {
        let batch = core.catalog.batch(id).await?.filter(|batch| batch.status == BatchStatus::Active);
        let Some(batch) = batch else { return Ok(None) };
        return Ok(Some((batch, reclaim_unconfirmed(uploads, lease, id).await?)));
    }
    match lease.catalog.end_batch(id, BatchEnding::Expired, NAME, core.clock.now()).await? {
        BatchEndOutcome::Ended { batch, .. } => {
            core.wakeups.archive.notify_one();
            Ok(Some((batch, reclaim_unconfirmed(uploads, lease, id).await?)))
        }
        BatchEndOutcome::Refused { .. } | BatchEndOutcome::NotFound => Ok(None),
    }
}

/// Reclaims the unconfirmed files of a batch. Also counts files that another process has reclaimed.
async fn reclaim_unconfirmed(
    uploads: &Uploads,
    lease: &SweepLease,
    id: BatchId,
) -> Result<Reclaimed, VerbError> {
    let mut reclaimed = Reclaimed::default();
    let mut after: Option<FileId> = None;
    loop {
        let page = uploads.core.catalog.batch_files(id, after, PAGE_FILES).await?;
        let Some(last) = page.last() else { return Ok(reclaimed) };
        after = Some(last.id);
        if lease.is_stopped() {
            return Ok(reclaimed);
        }
        let is_gone = |file: &&File| file.ended == Some(EndReason::Reclaimed) && file.confirmed_at.is_none();
        let unconfirmed = |file: &&File| file.status == Status::Registered;
        let ids: Vec<FileId> = page.iter().filter(unconfirmed).map(|file| file.id).collect();
        reclaimed.deleted += page.iter().filter(is_gone).count() as u64;
        if lease.is_dry_run() {
            reclaimed.deleted += ids.len() as u64;
            continue;
        }
        for (id, checked) in lease.check_files(uploads, &ids, NAME, ExpiryRule::Due).await? {
            match checked {
                Ok(outcome) => reclaimed.deleted += u64::from(outcome == CheckOutcome::Reclaimed),
                Err(error) => {
                    reclaimed.errors += 1;
                    tracing::warn!(job = NAME, fileId = %id, error = %error.with_cause(), "cannot check a file");
                }
            }
        }
    }
}
