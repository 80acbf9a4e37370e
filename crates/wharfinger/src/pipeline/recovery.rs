//! Recovers stuck files: the sweep recovers all overdue files, and a caller can recover a file at any time. A file that only
//! waits in the queue, or that a worker has leased, is not recovered.

use std::time::{Duration, Instant};

use wharfinger_catalog::{Catalog, Recovery, RecoveryOutcome, Scope, StuckCursor, StuckFile};
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::recovery::RecoveryTrigger;
use wharfinger_lifecycle::state::Status;

use super::bisect::{Outcomes, bisect};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::telemetry::metric;
use crate::uploads::{STALE_TRIES_MAX, find};

/// Files read by one query.
pub const PAGE_FILES: usize = 1_000;
/// Files in one transaction. Few enough that other writers do not wait long.
pub const BATCH_FILES: usize = 200;
/// When this time is over, `retry_all` stops and answers with what it has done.
const RETRY_ALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How many errors an answer contains.
const ERRORS_MAX: usize = 1_000;

/// A page of the stuck files in a scope, the longest first, and how many there are in total.
pub async fn list(
    core: &Core,
    scope: &Scope,
    after: Option<StuckCursor>,
    limit: usize,
) -> Result<(Vec<StuckFile>, u64), VerbError> {
    let now = core.clock.now();
    let files = core.catalog.stuck_files(scope, (now, now), after, limit).await?;
    Ok((files, core.catalog.count_stuck(scope, now).await?))
}

/// Recovers these files. Returns the outcome of each, and the files that failed with an error.
pub async fn recover(
    core: &Core,
    catalog: &Catalog,
    files: Vec<FileId>,
    trigger: RecoveryTrigger,
    actor: &str,
) -> Result<Outcomes<FileId, (FileId, RecoveryOutcome)>, VerbError> {
    let recover = |files| {
        let (actor, plan, now) = (actor.to_owned(), core.plan.clone(), core.clock.now());
        catalog.recover(Recovery { files, trigger, actor, plan, now })
    };
    let outcomes = bisect(core, files, recover).await?;
    for (file, recovered) in &outcomes.done {
        after_recovery(core, *file, recovered, actor);
    }
    for (file, error) in &outcomes.failed {
        tracing::error!(job = actor, fileId = %file, error = %error, "cannot recover a stuck file");
    }
    Ok(outcomes)
}

/// Logs and counts a recovery, and wakes the loops that have work now.
fn after_recovery(core: &Core, file: FileId, recovered: &RecoveryOutcome, actor: &str) {
    match recovered {
        RecoveryOutcome::Queued { before, retry_count } => {
            tracing::info!(job = actor, fileId = %file, fileName = before.name, tenant = %before.tenant,
                lastStatus = %before.status, retryCount = retry_count, stuckDuration = stuck_ms(core, before),
                action = "reEnqueued", "stuck file requeued");
            metric::stuck_recovered("reEnqueued");
            core.wakeups.stage.notify_one();
            core.wakeups.archive.notify_one();
        }
        RecoveryOutcome::Failed { before, why } => {
            tracing::error!(job = actor, fileId = %file, fileName = before.name, tenant = %before.tenant,
                lastStatus = %before.status, retryCount = before.retry_count, stuckDuration = stuck_ms(core, before),
                error = %why, action = "permanentlyFailed", "stuck file failed permanently");
            metric::stuck_recovered("permanentlyFailed");
            core.wakeups.notification.notify_one();
            core.wakeups.archive.notify_one();
        }
        RecoveryOutcome::Waiting
        | RecoveryOutcome::InProgress { .. }
        | RecoveryOutcome::NotStuck
        | RecoveryOutcome::Unreadable => {}
    }
}

/// How long the file made no progress.
fn stuck_ms(core: &Core, before: &File) -> i64 {
    core.clock.now().saturating_sub(before.updated_at)
}

/// A file that was queued again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retried {
    pub from: Status,
    pub retry_count: u32,
}

/// Retries one file, without a limit on its recoveries. A file that waits for a later time becomes due now, and its
/// retry count does not change. A file with a valid lease is left to its worker.
pub async fn retry(core: &Core, caller: &Caller, id: FileId) -> Result<Retried, VerbError> {
    for _ in 0..STALE_TRIES_MAX {
        let file = find::find(core, caller, id).await?;
        match file.status {
            Status::Registered | Status::Deleted => return Err(VerbError::NotConfirmed),
            Status::Ready | Status::Failed | Status::Quarantined => {
                return Err(VerbError::TerminalState(file.status));
            }
            Status::Uploaded
            | Status::Queued
            | Status::Scanning
            | Status::Extracting
            | Status::Chunking
            | Status::Embedding => {}
        }
        let actor = caller.actor();
        let outcomes = recover(core, &core.catalog, vec![id], RecoveryTrigger::Manual, &actor).await?;
        if let Some((_, error)) = outcomes.failed.into_iter().next() {
            return Err(error.into());
        }
        match outcomes.done.into_iter().next() {
            Some((_, RecoveryOutcome::Queued { before, retry_count })) => {
                return Ok(Retried { from: before.status, retry_count });
            }
            Some((_, RecoveryOutcome::Waiting)) => {
                core.catalog.make_due_now(id, core.clock.now()).await?;
                core.wakeups.stage.notify_one();
                return Ok(Retried { from: file.status, retry_count: file.retry_count });
            }
            Some((_, RecoveryOutcome::InProgress { until })) => return Err(VerbError::InWork { until }),
            // The file made progress in the meantime: read it again.
            Some((_, RecoveryOutcome::Failed { .. } | RecoveryOutcome::NotStuck)) | None => {}
            Some((_, RecoveryOutcome::Unreadable)) => return Err(unreadable()),
        }
    }
    Err(VerbError::busy())
}

/// The result of `retry_all`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetriedAll {
    pub retried: u64,
    /// Files that only wait in the queue, have no recoveries left, or made progress in the meantime.
    pub skipped: u64,
    pub errors: Vec<(FileId, VerbError)>,
    /// It stopped at its time limit, and there may be more files.
    pub is_broken_off: bool,
}

/// Recovers all stuck files in a scope, except those that only wait in the queue and those that were recovered
/// `MAX_STUCK_RETRIES` times.
pub async fn retry_all(core: &Core, scope: &Scope, actor: &str) -> Result<RetriedAll, VerbError> {
    let overdue_at = core.clock.now();
    let started = Instant::now();
    let mut all = RetriedAll::default();
    let mut after = None;
    loop {
        if started.elapsed() > RETRY_ALL_TIMEOUT {
            all.is_broken_off = true;
            return Ok(all);
        }
        let page = core.catalog.stuck_files(scope, (overdue_at, core.clock.now()), after, PAGE_FILES).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after = Some(last.cursor);
        let files: Vec<FileId> = recoverable(&page).collect();
        all.skipped += (page.len() - files.len()) as u64;
        for some in files.chunks(BATCH_FILES) {
            if started.elapsed() > RETRY_ALL_TIMEOUT {
                all.is_broken_off = true;
                return Ok(all);
            }
            let outcomes =
                recover(core, &core.catalog, some.to_vec(), RecoveryTrigger::ManualForAll, actor).await?;
            let is_retried = |(_, recovered): &&(FileId, RecoveryOutcome)| {
                matches!(recovered, RecoveryOutcome::Queued { .. })
            };
            let retried = outcomes.done.iter().filter(is_retried).count();
            all.retried += retried as u64;
            let is_unreadable = |(_, recovered): &&(FileId, RecoveryOutcome)| {
                matches!(recovered, RecoveryOutcome::Unreadable)
            };
            let unread: Vec<FileId> =
                outcomes.done.iter().filter(is_unreadable).map(|(file, _)| *file).collect();
            all.skipped += (outcomes.done.len() - retried - unread.len()) as u64;
            let room = ERRORS_MAX.saturating_sub(all.errors.len());
            all.errors.extend(unread.into_iter().take(room).map(|file| (file, unreadable())));
            let room = ERRORS_MAX.saturating_sub(all.errors.len());
            all.errors
                .extend(outcomes.failed.into_iter().take(room).map(|(file, error)| (file, error.into())));
        }
    }
}

fn unreadable() -> VerbError {
    VerbError::Internal("the row of the file cannot be read".into())
}

pub fn recoverable(page: &[StuckFile]) -> impl Iterator<Item = FileId> {
    page.iter().filter(|file| file.fault.is_some()).map(|file| file.cursor.file)
}
