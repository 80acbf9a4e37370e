//! Fault: a batch whose time is over and that nobody completed or cancelled. It ends; what was confirmed stays, the rest
//! is reclaimed here, and its owner is told once.

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
    /// Files of these batches that were not confirmed and are gone.
    #[schema(example = 5)]
    pub deleted_files: u64,
    /// Milliseconds, from opening to here.
    #[schema(example = 90_000_000)]
    pub average_batch_age: i64,
    /// Batches and files that could not be looked at.
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
            if !lease.goes_on(core) {
                return Ok(outcome);
            }
            match expire(uploads, lease, *id).await {
                Ok(None) => {}
                Ok(Some((batch, rest))) => {
                    outcome.expired_batches += 1;
                    outcome.deleted_files += rest.deleted;
                    outcome.errors += rest.errors;
                    ages_ms += i128::from(core.clock.now().saturating_sub(batch.created_at));
                    let average = ages_ms / i128::from(outcome.expired_batches);
                    outcome.average_batch_age = i64::try_from(average).unwrap_or(i64::MAX);
                }
                Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
                Err(error) => {
                    outcome.errors += 1;
                    tracing::warn!(job = NAME, batchId = %id, error = %error.with_cause(), "a batch could not be ended");
                }
            }
        }
    }
}

/// What became of a batch's unconfirmed files.
#[derive(Default)]
struct Rest {
    deleted: u64,
    errors: u64,
}

/// None: somebody else ended it. After a crash in here the files are due, and whoever looks at such goes on.
async fn expire(
    uploads: &Uploads,
    lease: &SweepLease,
    id: BatchId,
) -> Result<Option<(Batch, Rest)>, VerbError> {
    let core = &uploads.core;
    if lease.is_dry_run() {
        let batch = core.catalog.batch(id).await?.filter(|batch| batch.status == BatchStatus::Active);
        let Some(batch) = batch else { return Ok(None) };
        return Ok(Some((batch, reclaim_rest(uploads, lease, id).await?)));
    }
    match lease.catalog.end_batch(id, BatchEnding::Expired, NAME, core.clock.now()).await? {
        BatchEndOutcome::Ended { batch, .. } => {
            core.wakeups.archive.notify_one();
            Ok(Some((batch, reclaim_rest(uploads, lease, id).await?)))
        }
        BatchEndOutcome::Refused { .. } | BatchEndOutcome::NotFound => Ok(None),
    }
}

/// Looks at what is left unconfirmed; answers how many files of the batch are gone, whoever was the one to take them.
async fn reclaim_rest(uploads: &Uploads, lease: &SweepLease, id: BatchId) -> Result<Rest, VerbError> {
    let mut rest = Rest::default();
    let mut after: Option<FileId> = None;
    loop {
        let page = uploads.core.catalog.batch_files(id, after, PAGE_FILES).await?;
        let Some(last) = page.last() else { return Ok(rest) };
        after = Some(last.id);
        if lease.is_cut_short() {
            return Ok(rest);
        }
        let is_gone = |file: &&File| file.ended == Some(EndReason::Reclaimed) && file.confirmed_at.is_none();
        let unconfirmed = |file: &&File| file.status == Status::Registered;
        let ids: Vec<FileId> = page.iter().filter(unconfirmed).map(|file| file.id).collect();
        rest.deleted += page.iter().filter(is_gone).count() as u64;
        if lease.is_dry_run() {
            rest.deleted += ids.len() as u64;
            continue;
        }
        for (id, looked) in lease.check_files(uploads, &ids, NAME, ExpiryRule::Due).await? {
            match looked {
                Ok(looked) => rest.deleted += u64::from(looked == CheckOutcome::Reclaimed),
                Err(error) => {
                    rest.errors += 1;
                    tracing::warn!(job = NAME, fileId = %id, error = %error.with_cause(), "a file could not be looked at");
                }
            }
        }
    }
}
