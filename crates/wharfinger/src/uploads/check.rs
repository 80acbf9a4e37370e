//! Checks a file whose next check is due. An unconfirmed upload is reclaimed or rescued. An ended file is refunded when
//! its URLs have expired. An old tombstone is removed. What is done depends on the row as it is now, not on the job
//! that started the check.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use wharfinger_catalog::{Catalog, CatalogError};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::BatchStatus;
use wharfinger_lifecycle::file::{self, Change, CheckAction, File};
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
    check_by(uploads, catalog, id, actor, ExpiryRule::Due).await
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
        let (change, outcome) = match rule.check(core, &read) {
            CheckAction::NotDue => return Ok(CheckOutcome::Unchanged),
            CheckAction::Refund(change) => (*change, CheckOutcome::Refunded),
            CheckAction::Unconfirmed => unconfirmed(uploads, catalog, &read).await?,
            CheckAction::RemoveTombstone => {
                match !catalog.purge_tombstones(vec![read.clone()]).await?.is_empty() {
                    true => return Ok(CheckOutcome::TombstoneRemoved),
                    false => (defer_tombstone(core, &read), CheckOutcome::Deferred),
                }
            }
        };
        if commit_in(uploads, catalog, change, actor).await? {
            if outcome == CheckOutcome::Reclaimed {
                report_reclaimed(&read, actor);
            }
            return Ok(outcome);
        }
    }
    Err(VerbError::busy())
}

fn report_reclaimed(file: &File, actor: &str) {
    metric::orphan_cleaned(&file.tenant);
    tracing::info!(job = actor, fileId = %file.id, tenant = %file.tenant, action = "reclaimed",
        bytes = file.size, "unconfirmed upload reclaimed");
}

/// Checks many files. Changes that need no call to the store are committed together, the others one by one. The error
/// of one file is in its outcome. Only `TakenOver`, or a failed read of all files, ends the call.
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
    let (mut changes, mut tombstones) = (Vec::new(), Vec::new());
    let mut batches: BTreeMap<BatchId, Option<BatchStatus>> = BTreeMap::new();
    for file in files {
        match rule.check(core, &file) {
            CheckAction::NotDue => drop(outcomes.insert(file.id, Ok(CheckOutcome::Unchanged))),
            CheckAction::Refund(change) => changes.push(*change),
            CheckAction::Unconfirmed if reclaims_without_store_check(core) => {
                let batch = match file.batch {
                    None => None,
                    Some(id) => match batches.get(&id) {
                        Some(known) => *known,
                        None => {
                            // A batch that cannot be read only affects its own files.
                            let Ok(batch) = catalog.batch(id).await else { continue };
                            *batches.entry(id).or_insert(batch.map(|batch| batch.status))
                        }
                    },
                };
                changes.extend(reclaim(core, &file, batch).ok());
            }
            CheckAction::Unconfirmed => {}
            CheckAction::RemoveTombstone => tombstones.push(file),
        }
    }
    for change in commit_together(catalog, changes, actor).await? {
        after_commit(uploads, &change);
        let is_reclaimed = change.before.status == Status::Registered;
        if is_reclaimed {
            report_reclaimed(&change.before, actor);
        }
        let what = if is_reclaimed { CheckOutcome::Reclaimed } else { CheckOutcome::Refunded };
        outcomes.insert(change.after.id, Ok(what));
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
            one => all.push((*id, one)),
        }
    }
    Ok(all)
}

/// Commits changes in one transaction and returns the committed ones. If that fails, none is returned and the caller
/// commits them one by one.
async fn commit_together(
    catalog: &Catalog,
    changes: Vec<Change>,
    actor: &str,
) -> Result<Vec<Change>, VerbError> {
    let committed: BTreeSet<FileId> =
        or_empty(catalog.commit_all(changes.clone(), actor).await)?.into_iter().collect();
    Ok(changes.into_iter().filter(|change| committed.contains(&change.after.id)).collect())
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

/// Whether unconfirmed uploads are reclaimed without a request to the store.
pub fn reclaims_without_store_check(core: &Core) -> bool {
    core.store_is_ours.load(Ordering::Relaxed) && core.settings.window_policy == WindowPolicy::Reclaim
}

/// Predicts the outcome of a check and changes nothing. The checksum and the content of an upload that would be rescued are
/// not checked, so the real check may still reclaim it.
pub async fn predict(core: &Core, id: FileId, rule: ExpiryRule) -> Result<CheckOutcome, VerbError> {
    let Some(read) = core.catalog.file(id).await? else { return Ok(CheckOutcome::Unchanged) };
    Ok(match rule.check(core, &read) {
        CheckAction::NotDue => CheckOutcome::Unchanged,
        CheckAction::Refund(_) => CheckOutcome::Refunded,
        CheckAction::RemoveTombstone => CheckOutcome::TombstoneRemoved,
        CheckAction::Unconfirmed if !core.store_is_ours.load(Ordering::Relaxed) => CheckOutcome::Deferred,
        CheckAction::Unconfirmed if core.settings.window_policy == WindowPolicy::Rescue => {
            match core.blobs.head(&read.key, None).await {
                Ok(meta) if meta.size == read.size => CheckOutcome::Rescued,
                Ok(_) | Err(BlobError::NotFound) => CheckOutcome::Reclaimed,
                Err(_) => CheckOutcome::Deferred,
            }
        }
        CheckAction::Unconfirmed => CheckOutcome::Reclaimed,
    })
}

async fn unconfirmed(
    uploads: &Uploads,
    catalog: &Catalog,
    read: &File,
) -> Result<(Change, CheckOutcome), VerbError> {
    let core = &uploads.core;
    // In a catalog restored from a backup, a file may look unconfirmed although it was confirmed later.
    if !core.store_is_ours.load(Ordering::Relaxed) {
        let now = core.clock.now();
        return Ok((file::defer(read, now.saturating_add(DEFER_UNSURE_MS), now), CheckOutcome::Deferred));
    }
    let batch = match read.batch {
        Some(id) => catalog.batch(id).await?.map(|batch| batch.status),
        None => None,
    };
    // Unconfirmed files of a cancelled batch are never rescued.
    if core.settings.window_policy == WindowPolicy::Rescue && batch != Some(BatchStatus::Cancelled) {
        match confirm::verify_object(uploads, read, None, RESCUED, ReadMode::Background).await {
            Ok(change) => return Ok((change, CheckOutcome::Rescued)),
            Err(VerbError::Unavailable(why)) => {
                tracing::warn!(fileId = %read.id, tenant = %read.tenant, error = %why, action = "deferred",
                    "cannot check the uploaded object, the file is checked again later");
                let now = core.clock.now();
                return Ok((file::defer(read, now.saturating_add(DEFER_MS), now), CheckOutcome::Deferred));
            }
            Err(
                VerbError::ObjectMissing
                | VerbError::PartsMissing { .. }
                | VerbError::SizeMismatch { .. }
                | VerbError::EncodingMismatch(_)
                | VerbError::ChecksumMismatch
                | VerbError::TypeNotAllowed { .. }
                | VerbError::ContentNotAllowed { .. },
            ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((reclaim(core, read, batch)?, CheckOutcome::Reclaimed))
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
