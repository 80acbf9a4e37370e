//! Checks a file whose time has come: an upload that nobody confirmed is reclaimed or rescued, an ended file
//! whose URLs have died is refunded, a tombstone that nobody needs is forgotten. Takes no input but the row.

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
use super::{STALE_TRIES_MAX, commit_in, confirm, after_commit};
use crate::config::WindowPolicy;
use crate::core::Core;
use crate::core::VerbError;
use crate::telemetry::metric;
use crate::uploads::Uploads;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// Somebody was faster, or it is not time.
    Nothing,
    Reclaimed,
    Rescued,
    Refunded,
    Forgotten,
    /// The store could not be asked: later.
    Deferred,
}

/// How long a file waits that could not be checked.
const DEFER_MS: i64 = 60_000;
const RESCUED: &str = "rescued: its client did not come back";
/// How long an upload waits while the store and the catalog do not agree.
const DEFER_UNSURE_MS: i64 = 600_000;
/// How long a tombstone waits whose bytes are not gone yet.
const DEFER_FORGET_MS: i64 = 86_400_000;

/// Which unconfirmed uploads are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryRule {
    /// Those whose next check is due.
    Due,
    /// Those too that nobody has asked about since then, although their URLs may live.
    NotUpdatedSince(UnixMs),
}

impl ExpiryRule {
    fn judge(self, core: &Core, file: &File) -> CheckAction {
        match self {
            ExpiryRule::NotUpdatedSince(at) if file.status == Status::Registered && file.updated_at <= at => {
                CheckAction::Unconfirmed
            }
            _ => file::check(file, &core.policy, core.clock.now()),
        }
    }
}

/// Writes to the given catalog, which is fenced where a sweep checks.
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
        let (change, outcome) = match rule.judge(core, &read) {
            CheckAction::NotDue => return Ok(CheckOutcome::Unchanged),
            CheckAction::Refund(change) => (*change, CheckOutcome::Refunded),
            CheckAction::Unconfirmed => unconfirmed(uploads, catalog, &read).await?,
            CheckAction::RemoveTombstone => match !catalog.purge_tombstones(vec![read.clone()]).await?.is_empty() {
                true => return Ok(CheckOutcome::Forgotten),
                false => (defer_forgetting(core, &read), CheckOutcome::Deferred),
            },
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
        bytes = file.size, "an upload was not confirmed in time");
}

/// Checks many files: what needs no question to the store is ended together, the rest one by one. An error is that of
/// its file, unless the work is another's now.
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
        match rule.judge(core, &file) {
            CheckAction::NotDue => drop(outcomes.insert(file.id, Ok(CheckOutcome::Unchanged))),
            CheckAction::Refund(change) => changes.push(*change),
            CheckAction::Unconfirmed if reclaims_without_store_check(core) => {
                let batch = match file.batch {
                    None => None,
                    Some(id) => match batches.get(&id) {
                        Some(known) => *known,
                        None => {
                            // One that cannot be read is in the way of its own files alone.
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
    for change in end(catalog, changes, actor).await? {
        after_commit(uploads, &change);
        let is_reclaimed = change.before.status == Status::Registered;
        if is_reclaimed {
            report_reclaimed(&change.before, actor);
        }
        let what = if is_reclaimed { CheckOutcome::Reclaimed } else { CheckOutcome::Refunded };
        outcomes.insert(change.after.id, Ok(what));
    }
    let forgotten = or_empty(catalog.purge_tombstones(tombstones).await)?;
    outcomes.extend(forgotten.into_iter().map(|id| (id, Ok(CheckOutcome::Forgotten))));
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        let one = match outcomes.remove(id) {
            Some(one) => one,
            // Boxed, like whatever is large and seldom needed.
            None => Box::pin(check_by(uploads, catalog, *id, actor, rule)).await,
        };
        match one {
            Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
            one => all.push((*id, one)),
        }
    }
    Ok(all)
}

/// Those of them that were committed. None, if they could not be together: each may be on its own.
async fn end(catalog: &Catalog, changes: Vec<Change>, actor: &str) -> Result<Vec<Change>, VerbError> {
    let ended: BTreeSet<FileId> =
        or_empty(catalog.commit_all(changes.clone(), actor).await)?.into_iter().collect();
    Ok(changes.into_iter().filter(|change| ended.contains(&change.after.id)).collect())
}

fn or_empty(done: Result<Vec<FileId>, CatalogError>) -> Result<Vec<FileId>, VerbError> {
    match done {
        Ok(done) => Ok(done),
        Err(CatalogError::Fenced) => Err(VerbError::TakenOver),
        Err(error) => {
            tracing::warn!(error = %error, "files could not be ended together and are checked one by one");
            Ok(Vec::new())
        }
    }
}

/// Whether unconfirmed uploads are reclaimed without anything being found out about their objects.
pub fn reclaims_without_store_check(core: &Core) -> bool {
    core.store_is_ours.load(Ordering::Relaxed) && core.settings.window_policy == WindowPolicy::Reclaim
}

/// What a check would come to, without changing anything. An upload that would be rescued is not examined: whether its
/// bytes are right is not known before they are.
pub async fn predict(core: &Core, id: FileId, rule: ExpiryRule) -> Result<CheckOutcome, VerbError> {
    let Some(read) = core.catalog.file(id).await? else { return Ok(CheckOutcome::Unchanged) };
    Ok(match rule.judge(core, &read) {
        CheckAction::NotDue => CheckOutcome::Unchanged,
        CheckAction::Refund(_) => CheckOutcome::Refunded,
        CheckAction::RemoveTombstone => CheckOutcome::Forgotten,
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
    // A catalog from a backup may take for unconfirmed what was confirmed since.
    if !core.store_is_ours.load(Ordering::Relaxed) {
        let now = core.clock.now();
        return Ok((file::defer(read, now.saturating_add(DEFER_UNSURE_MS), now), CheckOutcome::Deferred));
    }
    let batch = match read.batch {
        Some(id) => catalog.batch(id).await?.map(|batch| batch.status),
        None => None,
    };
    // Whoever cancels a batch wants none of what is not confirmed.
    if core.settings.window_policy == WindowPolicy::Rescue && batch != Some(BatchStatus::Cancelled) {
        match confirm::verify_object(uploads, read, None, RESCUED, ReadMode::Background).await {
            Ok(change) => return Ok((change, CheckOutcome::Rescued)),
            Err(VerbError::Unavailable(why)) => {
                tracing::warn!(fileId = %read.id, tenant = %read.tenant, error = %why, action = "deferred",
                    "the store could not be asked");
                let now = core.clock.now();
                return Ok((file::defer(read, now.saturating_add(DEFER_MS), now), CheckOutcome::Deferred));
            }
            Err(
                VerbError::ObjectMissing
                | VerbError::PartsMissing { .. }
                | VerbError::SizeMismatch { .. }
                | VerbError::EncodingMismatch(_)
                | VerbError::ChecksumMismatch,
            ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((reclaim(core, read, batch)?, CheckOutcome::Reclaimed))
}

fn reclaim(core: &Core, file: &File, batch: Option<BatchStatus>) -> Result<Change, VerbError> {
    let reason = match batch {
        Some(BatchStatus::Cancelled) => "its batch was cancelled",
        Some(BatchStatus::Active | BatchStatus::Expired | BatchStatus::Completed) => "its batch has expired",
        None => "not confirmed in its window",
    };
    file::reclaim(file, reason, &core.policy, core.clock.now())
        .map_err(|refusal| VerbError::Internal(refusal.to_string()))
}

/// Its bytes are still waited for: the row says what they belonged to, so it stays.
fn defer_forgetting(core: &Core, tombstone: &File) -> Change {
    let now = core.clock.now();
    file::defer(tombstone, now.saturating_add(DEFER_FORGET_MS), now)
}
