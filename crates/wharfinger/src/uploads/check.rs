//! Checks a file whose next check is due. An unconfirmed upload is reclaimed or rescued. An ended file is refunded when
//! its URLs have expired. An old tombstone is removed. What is done depends on the row as it is now, not on the job
//! that started the check.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use wharfinger_catalog::{Catalog, CatalogError};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::BatchStatus;
use wharfinger_lifecycle::file::{self, Change, CheckAction, EndReason, File};
use wharfinger_lifecycle::id::{BatchId, FileId};
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::BlobError;

use super::confirm::ReadMode;
use super::{STALE_TRIES_MAX, after_commit, commit_in, confirm};
use crate::config::WindowPolicy;
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The file is gone, or its check is not due.
    Unchanged,
    Reclaimed,
    Rescued,
    Refunded,
    TombstoneRemoved,
    /// It will be checked later: the store did not answer, or its owner is uncertain, or bytes are not deleted yet.
    Deferred,
}

/// How long a file waits after a failed check.
const DEFER_MS: i64 = 60_000;
const RESCUED: &str = "rescued: uploaded, but not confirmed by its client";
/// How long an upload waits while it is uncertain whether the store belongs to this catalog.
const DEFER_UNSURE_MS: i64 = 600_000;
/// How long a tombstone waits if the bytes are not deleted yet.
const DEFER_TOMBSTONE_MS: i64 = 86_400_000;
/// How many objects are checked in the store at the same time.
const STORE_CHECKS_AT_ONCE: usize = 8;

/// Which unconfirmed uploads have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryRule {
    /// Uploads whose next check is due.
    Due,
    /// Also uploads without a change since this time, even if their URLs are still valid.
    NotUpdatedSince(UnixMs),
}

impl ExpiryRule {
    fn check(self, core: &Core, file: &File) -> CheckAction {
        match self {
            ExpiryRule::NotUpdatedSince(at) if file.status == Status::Registered && file.updated_at <= at => {
                CheckAction::Unconfirmed
            }
            _ => file::check(file, &core.policy, core.clock.now()),
        }
    }
}

/// Checks one file. Writes to the given catalog, which a sweep passes with its fence.
pub async fn check(
    uploads: &Uploads,
    catalog: &Catalog,
    id: FileId,
    actor: &str,
) -> Result<CheckOutcome, VerbError> {
    let checked = check_by(uploads, catalog, id, actor, ExpiryRule::Due).await;
    checked.inspect_err(count_failure)
}

/// A decided change of a file, not committed yet.
struct Decision {
    change: Change,
    outcome: CheckOutcome,
    /// The status of the file's batch.
    batch: Option<BatchStatus>,
}

/// Logs and counts a committed decision.
fn report(decision: &Decision, actor: &str) {
    let Decision { change, outcome, batch } = decision;
    let file = &change.before;
    let (file_name, blob_path) = (file.name.as_str(), file.key.as_str());
    match outcome {
        CheckOutcome::Reclaimed => {
            tracing::info!(job = actor, fileId = %file.id, fileName = file_name, tenant = %file.tenant, blobPath = blob_path,
                lastStatus = %file.status, bytes = file.size, action = "reclaimed", "unconfirmed upload reclaimed");
        }
        CheckOutcome::Rescued => {
            tracing::info!(job = actor, fileId = %file.id, fileName = file_name, tenant = %file.tenant, blobPath = blob_path,
                lastStatus = %file.status, bytes = file.size, action = "rescued", "unconfirmed upload confirmed");
        }
        CheckOutcome::Unchanged
        | CheckOutcome::Refunded
        | CheckOutcome::TombstoneRemoved
        | CheckOutcome::Deferred => {}
    }
    // An upload of a cancelled batch was given up by its owner.
    let is_orphan = change.after.ended == Some(EndReason::Reclaimed)
        && change.after.confirmed_at.is_none()
        && *batch != Some(BatchStatus::Cancelled);
    if is_orphan && *outcome == CheckOutcome::Reclaimed {
        metric::orphan_cleaned(&file.tenant);
    }
    if is_orphan && change.refunded_bytes() > 0 {
        metric::quota_refunded(&file.tenant, change.refunded_bytes());
    }
}

fn count_failure(error: &VerbError) {
    metric::cleanup_failed(match error {
        VerbError::Unavailable(_) => "unavailable",
        _ => "internal",
    });
}

async fn check_by(
    uploads: &Uploads,
    catalog: &Catalog,
    id: FileId,
    actor: &str,
    rule: ExpiryRule,
) -> Result<CheckOutcome, VerbError> {
    let core = &uploads.core;
    for _ in 0..STALE_TRIES_MAX {
        let Some(read) = catalog.file(id).await? else { return Ok(CheckOutcome::Unchanged) };
        let action = rule.check(core, &read);
        if action == CheckAction::NotDue {
            return Ok(CheckOutcome::Unchanged);
        }
        let batch = batch_status(catalog, &read, &mut BTreeMap::new()).await?;
        let (change, outcome) = match action {
            CheckAction::NotDue => return Ok(CheckOutcome::Unchanged),
            CheckAction::Refund(change) => (*change, CheckOutcome::Refunded),
            CheckAction::Unconfirmed => unconfirmed(uploads, &read, batch).await?,
            CheckAction::RemoveTombstone => {
                match !catalog.purge_tombstones(vec![read.clone()]).await?.is_empty() {
                    true => return Ok(CheckOutcome::TombstoneRemoved),
                    false => (defer_tombstone(core, &read), CheckOutcome::Deferred),
                }
            }
        };
        let decision = Decision { change, outcome, batch };
        if commit_in(uploads, catalog, decision.change.clone(), actor).await? {
            report(&decision, actor);
            return Ok(outcome);
        }
    }
    Err(VerbError::busy())
}

/// Checks many files. Objects are looked up side by side, and the changes are committed together. The error of one file
/// is in its outcome. Only `TakenOver`, or a failed read of all files, ends the call.
pub async fn check_many(
    uploads: &Uploads,
    catalog: &Catalog,
    ids: &[FileId],
    actor: &str,
    rule: ExpiryRule,
) -> Result<Vec<(FileId, Result<CheckOutcome, VerbError>)>, VerbError> {
    let core = &uploads.core;
    let mut outcomes: BTreeMap<FileId, Result<CheckOutcome, VerbError>> = BTreeMap::new();
    let files = catalog.files_by_id(ids).await?;
    let (mut decisions, mut unconfirmed_files, mut tombstones) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut batches = BTreeMap::new();
    for file in files {
        let action = rule.check(core, &file);
        let batch = match action {
            CheckAction::NotDue | CheckAction::RemoveTombstone => Ok(None),
            CheckAction::Refund(_) | CheckAction::Unconfirmed => {
                batch_status(catalog, &file, &mut batches).await
            }
        };
        match (action, batch) {
            // A batch that cannot be read only affects its own files.
            (_, Err(error)) => drop(outcomes.insert(file.id, Err(error))),
            (CheckAction::NotDue, _) => drop(outcomes.insert(file.id, Ok(CheckOutcome::Unchanged))),
            (CheckAction::Refund(change), Ok(batch)) => {
                let decision = Decision { change: *change, outcome: CheckOutcome::Refunded, batch };
                decisions.insert(file.id, decision);
            }
            (CheckAction::Unconfirmed, Ok(batch)) => unconfirmed_files.push((file, batch)),
            (CheckAction::RemoveTombstone, _) => tombstones.push(file),
        }
    }
    let checks: Vec<BoxFuture<'_, _>> = unconfirmed_files
        .iter()
        .map(|(file, batch)| async { (file.id, *batch, unconfirmed(uploads, file, *batch).await) }.boxed())
        .collect();
    let mut checked = stream::iter(checks).buffer_unordered(STORE_CHECKS_AT_ONCE);
    while let Some((id, batch, decided)) = checked.next().await {
        match decided {
            Ok((change, outcome)) => drop(decisions.insert(id, Decision { change, outcome, batch })),
            Err(error) => drop(outcomes.insert(id, Err(error))),
        }
    }
    for (id, outcome) in commit_together(uploads, catalog, &mut decisions, actor).await? {
        outcomes.insert(id, Ok(outcome));
    }
    let removed = or_empty(catalog.purge_tombstones(tombstones).await)?;
    outcomes.extend(removed.into_iter().map(|id| (id, Ok(CheckOutcome::TombstoneRemoved))));
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        let one = match outcomes.remove(id) {
            Some(one) => one,
            // Boxed, because this future is large and rarely needed.
            None => Box::pin(check_by(uploads, catalog, *id, actor, rule)).await,
        };
        match one {
            Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
            one => all.push((*id, one.inspect_err(count_failure))),
        }
    }
    Ok(all)
}

/// Confirms the uploads of a batch that is over, if their objects are in the store and correct. Other files are not changed.
/// `Deferred`: the store could not say it now.
pub async fn rescue_many(
    uploads: &Uploads,
    catalog: &Catalog,
    files: &[File],
    actor: &str,
) -> Result<Vec<(FileId, Result<CheckOutcome, VerbError>)>, VerbError> {
    let checks: Vec<BoxFuture<'_, _>> =
        files.iter().map(|file| async { (file.id, rescue(uploads, file).await) }.boxed()).collect();
    let mut checked = stream::iter(checks).buffer_unordered(STORE_CHECKS_AT_ONCE);
    let (mut all, mut decisions) = (Vec::with_capacity(files.len()), BTreeMap::new());
    while let Some((id, rescued)) = checked.next().await {
        match rescued {
            Ok(Rescue::Confirmed(change)) => {
                let decision = Decision {
                    change: *change,
                    outcome: CheckOutcome::Rescued,
                    batch: Some(BatchStatus::Active),
                };
                decisions.insert(id, decision);
            }
            Ok(Rescue::NotUploaded) => all.push((id, Ok(CheckOutcome::Unchanged))),
            Ok(Rescue::Unknown) => all.push((id, Ok(CheckOutcome::Deferred))),
            Err(error) => all.push((id, Err(error))),
        }
    }
    for (id, outcome) in commit_together(uploads, catalog, &mut decisions, actor).await? {
        all.push((id, Ok(outcome)));
    }
    // One that cannot be committed must not keep the others from it.
    for (id, decision) in decisions {
        match commit_in(uploads, catalog, decision.change.clone(), actor).await {
            Ok(true) => {
                report(&decision, actor);
                all.push((id, Ok(CheckOutcome::Rescued)));
            }
            // Changed concurrently.
            Ok(false) => all.push((id, Ok(CheckOutcome::Unchanged))),
            Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
            Err(error) => all.push((id, Err(error))),
        }
    }
    all.iter().filter_map(|(_, rescued)| rescued.as_ref().err()).for_each(count_failure);
    Ok(all)
}

/// Commits decisions in one transaction, and removes the committed ones from the map. If that fails, none is committed, and
/// the caller commits them one by one.
async fn commit_together(
    uploads: &Uploads,
    catalog: &Catalog,
    decisions: &mut BTreeMap<FileId, Decision>,
    actor: &str,
) -> Result<Vec<(FileId, CheckOutcome)>, VerbError> {
    let all = decisions.values().map(|decision| decision.change.clone()).collect();
    let committed = or_empty(catalog.commit_all(all, actor).await)?;
    let mut done = Vec::with_capacity(committed.len());
    for id in committed {
        let Some(decision) = decisions.remove(&id) else { continue };
        after_commit(uploads, &decision.change);
        report(&decision, actor);
        done.push((id, decision.outcome));
    }
    Ok(done)
}

fn or_empty(done: Result<Vec<FileId>, CatalogError>) -> Result<Vec<FileId>, VerbError> {
    match done {
        Ok(done) => Ok(done),
        Err(CatalogError::Fenced) => Err(VerbError::TakenOver),
        Err(error) => {
            tracing::warn!(error = %error, "cannot commit checks together, checking files one by one");
            Ok(Vec::new())
        }
    }
}

/// Whether unconfirmed uploads outside of batches are reclaimed without a request to the store.
pub fn reclaims_without_store_check(core: &Core) -> bool {
    core.store_is_ours.load(Ordering::Relaxed) && core.settings.window_policy == WindowPolicy::Reclaim
}

/// Whether an unconfirmed upload is confirmed if its object is correct. In a batch that was not cancelled it always is.
fn is_rescued(core: &Core, batch: Option<BatchStatus>) -> bool {
    match batch {
        None => core.settings.window_policy == WindowPolicy::Rescue,
        Some(BatchStatus::Cancelled) => false,
        Some(BatchStatus::Active | BatchStatus::Expired | BatchStatus::Completed) => true,
    }
}

/// The status of the file's batch. Each batch is read once.
async fn batch_status(
    catalog: &Catalog,
    file: &File,
    known: &mut BTreeMap<BatchId, Option<BatchStatus>>,
) -> Result<Option<BatchStatus>, VerbError> {
    let Some(id) = file.batch else { return Ok(None) };
    if let Some(status) = known.get(&id) {
        return Ok(*status);
    }
    let status = catalog.batch(id).await?.map(|batch| batch.status);
    known.insert(id, status);
    Ok(status)
}

/// Predicts the outcome of a check and changes nothing. The checksum and the content of an upload that would be rescued are
/// not checked, so the real check may still reclaim it.
pub async fn predict(core: &Core, id: FileId, rule: ExpiryRule) -> Result<CheckOutcome, VerbError> {
    let Some(read) = core.catalog.file(id).await? else { return Ok(CheckOutcome::Unchanged) };
    Ok(match rule.check(core, &read) {
        CheckAction::NotDue => CheckOutcome::Unchanged,
        CheckAction::Refund(_) => CheckOutcome::Refunded,
        CheckAction::RemoveTombstone => CheckOutcome::TombstoneRemoved,
        CheckAction::Unconfirmed => predict_unconfirmed(core, &read).await?,
    })
}

/// The same for an unconfirmed upload whose time is over.
pub async fn predict_unconfirmed(core: &Core, read: &File) -> Result<CheckOutcome, VerbError> {
    if !core.store_is_ours.load(Ordering::Relaxed) {
        return Ok(CheckOutcome::Deferred);
    }
    if !is_rescued(core, batch_status(&core.catalog, read, &mut BTreeMap::new()).await?) {
        return Ok(CheckOutcome::Reclaimed);
    }
    Ok(match core.blobs.head(&read.key, None).await {
        Ok(meta) if meta.size == read.size => CheckOutcome::Rescued,
        Ok(_) | Err(BlobError::NotFound) => CheckOutcome::Reclaimed,
        Err(_) => CheckOutcome::Deferred,
    })
}

async fn unconfirmed(
    uploads: &Uploads,
    read: &File,
    batch: Option<BatchStatus>,
) -> Result<(Change, CheckOutcome), VerbError> {
    let core = &uploads.core;
    let now = core.clock.now();
    // In a catalog restored from a backup, a file may look unconfirmed although it was confirmed later.
    if !core.store_is_ours.load(Ordering::Relaxed) {
        return Ok((file::defer(read, now.saturating_add(DEFER_UNSURE_MS), now), CheckOutcome::Deferred));
    }
    if is_rescued(core, batch) {
        match rescue(uploads, read).await? {
            Rescue::Confirmed(change) => return Ok((*change, CheckOutcome::Rescued)),
            Rescue::NotUploaded => {}
            Rescue::Unknown => {
                return Ok((file::defer(read, now.saturating_add(DEFER_MS), now), CheckOutcome::Deferred));
            }
        }
    }
    Ok((reclaim(core, read, batch)?, CheckOutcome::Reclaimed))
}

enum Rescue {
    Confirmed(Box<Change>),
    /// The object is missing or not what was announced.
    NotUploaded,
    /// The store does not answer, or a large object is still being read.
    Unknown,
}

async fn rescue(uploads: &Uploads, read: &File) -> Result<Rescue, VerbError> {
    if !uploads.core.store_is_ours.load(Ordering::Relaxed) {
        return Ok(Rescue::Unknown);
    }
    match confirm::verify_object(uploads, read, None, RESCUED, ReadMode::Background).await {
        Ok(change) => Ok(Rescue::Confirmed(Box::new(change))),
        Err(VerbError::Unavailable(why)) => {
            metric::cleanup_failed("unavailable");
            tracing::warn!(fileId = %read.id, tenant = %read.tenant, error = %why, action = "deferred",
                "cannot check the uploaded object, the file is checked again later");
            Ok(Rescue::Unknown)
        }
        Err(error) if error.is_about_object() => Ok(Rescue::NotUploaded),
        Err(error) => Err(error),
    }
}

fn reclaim(core: &Core, file: &File, batch: Option<BatchStatus>) -> Result<Change, VerbError> {
    let reason = match batch {
        Some(BatchStatus::Cancelled) => "batch cancelled",
        Some(BatchStatus::Active | BatchStatus::Expired | BatchStatus::Completed) => "batch expired",
        None => "not confirmed in time",
    };
    file::reclaim(file, reason, &core.policy, core.clock.now())
        .map_err(|refusal| VerbError::Internal(refusal.to_string()))
}

/// Keeps a tombstone while the bytes are not deleted yet: the row says which file they belonged to.
fn defer_tombstone(core: &Core, tombstone: &File) -> Change {
    let now = core.clock.now();
    file::defer(tombstone, now.saturating_add(DEFER_TOMBSTONE_MS), now)
}
