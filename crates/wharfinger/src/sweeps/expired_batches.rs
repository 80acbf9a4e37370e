//! Fault: an active batch whose time is over. Its unconfirmed files whose objects are in the store and correct are confirmed.
//! Then the batch expires, the other unconfirmed files are removed, and the owner gets one notification.

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{BatchEndOutcome, BatchEnding};
use wharfinger_lifecycle::batch::{Batch, BatchStatus};
use wharfinger_lifecycle::file::{EndReason, File};
use wharfinger_lifecycle::id::{BatchId, FileId};
use wharfinger_lifecycle::state::Status;

use super::SweepLease;
use super::sweep_lease::STORE_CHECKS;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::check::{CheckOutcome, ExpiryRule, predict_unconfirmed, rescue_many};

pub const NAME: &str = "batch-timeout";

const PAGE_BATCHES: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BatchTimeoutResult)]
pub struct Outcome {
    #[schema(example = 2)]
    pub expired_batches: u64,
    /// Unconfirmed files of these batches that were removed.
    #[schema(example = 5)]
    pub deleted_files: u64,
    /// Unconfirmed files of these batches that were confirmed, because their objects were in the store.
    #[schema(example = 1)]
    pub rescued: u64,
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
                Ok((None, files)) => outcome.add(&files),
                Ok((Some(batch), files)) => {
                    outcome.add(&files);
                    outcome.expired_batches += 1;
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

impl Outcome {
    fn add(&mut self, files: &Files) {
        self.deleted_files += files.deleted;
        self.rescued += files.rescued;
        self.errors += files.errors;
    }
}

/// What happened to the unconfirmed files of a batch.
#[derive(Default)]
struct Files {
    deleted: u64,
    rescued: u64,
    errors: u64,
    /// The store could not say whether these are uploaded.
    unknown: u64,
}

/// How long a batch waits for a store that does not answer, so that uploaded files are kept.
const WAIT_FOR_STORE_MS: i64 = 86_400_000;

/// Expires a batch. None: it was ended by another call, or it waits for the store. If this crashes before the batch ends, the
/// next run repeats it. If it crashes later, the check of its files is due, so the upload-window sweep continues.
async fn expire(
    uploads: &Uploads,
    lease: &SweepLease,
    id: BatchId,
) -> Result<(Option<Batch>, Files), VerbError> {
    let core = &uploads.core;
    let mut files = Files::default();
    let batch = core.catalog.batch(id).await?.filter(|batch| batch.status == BatchStatus::Active);
    let Some(batch) = batch else { return Ok((None, files)) };
    // First, so that the notification of the expiry counts them as confirmed.
    rescue_uploaded(uploads, lease, id, &mut files).await?;
    if lease.is_dry_run() {
        return Ok((Some(batch), files));
    }
    let now = core.clock.now();
    if lease.is_stopped() || (files.unknown > 0 && now < batch.expires_at.saturating_add(WAIT_FOR_STORE_MS)) {
        return Ok((None, files));
    }
    match lease.catalog.end_batch(id, BatchEnding::Expired, NAME, now).await? {
        BatchEndOutcome::Ended { batch, .. } => {
            core.wakeups.archive.notify_one();
            remove_unconfirmed(uploads, lease, id, &mut files).await?;
            tracing::info!(job = NAME, batchId = %id, tenant = %batch.tenant, rescued = files.rescued,
                deletedFiles = files.deleted, action = "expired", "batch expired");
            Ok((Some(batch), files))
        }
        BatchEndOutcome::Refused { .. } | BatchEndOutcome::NotFound => Ok((None, files)),
    }
}

/// Confirms the files of a batch whose objects are in the store and correct. A dry run counts what would be done.
async fn rescue_uploaded(
    uploads: &Uploads,
    lease: &SweepLease,
    id: BatchId,
    files: &mut Files,
) -> Result<(), VerbError> {
    let core = &uploads.core;
    let mut after: Option<FileId> = None;
    loop {
        let page = core.catalog.batch_files(id, after, STORE_CHECKS).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id);
        if !lease.should_continue(core) {
            return Ok(());
        }
        let unconfirmed: Vec<File> =
            page.into_iter().filter(|file| file.status == Status::Registered).collect();
        if lease.is_dry_run() {
            for file in &unconfirmed {
                files.count(file.id, predict_unconfirmed(core, file).await);
            }
            continue;
        }
        for (id, rescued) in rescue_many(uploads, &lease.catalog, &unconfirmed, NAME).await? {
            files.count(id, rescued);
        }
    }
}

/// Removes the unconfirmed files of an expired batch. Also counts files that another process has removed.
async fn remove_unconfirmed(
    uploads: &Uploads,
    lease: &SweepLease,
    id: BatchId,
    files: &mut Files,
) -> Result<(), VerbError> {
    let mut after: Option<FileId> = None;
    loop {
        let page = uploads.core.catalog.batch_files(id, after, STORE_CHECKS).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id);
        if lease.is_stopped() {
            return Ok(());
        }
        let is_gone = |file: &&File| file.ended == Some(EndReason::Reclaimed) && file.confirmed_at.is_none();
        let unconfirmed = |file: &&File| file.status == Status::Registered;
        let ids: Vec<FileId> = page.iter().filter(unconfirmed).map(|file| file.id).collect();
        files.deleted += page.iter().filter(is_gone).count() as u64;
        for (id, checked) in lease.check_files(uploads, &ids, NAME, ExpiryRule::Due).await? {
            files.count(id, checked);
        }
    }
}

impl Files {
    fn count(&mut self, id: FileId, checked: Result<CheckOutcome, VerbError>) {
        match checked {
            Ok(CheckOutcome::Reclaimed) => self.deleted += 1,
            Ok(CheckOutcome::Rescued) => self.rescued += 1,
            Ok(CheckOutcome::Deferred) => self.unknown += 1,
            Ok(CheckOutcome::Unchanged | CheckOutcome::Refunded | CheckOutcome::TombstoneRemoved) => {}
            Err(error) => {
                self.errors += 1;
                self.unknown += 1;
                tracing::warn!(job = NAME, fileId = %id, error = %error.with_cause(), "cannot check a file");
            }
        }
    }
}
