//! Begins stuck files anew: all that are overdue at the word of the sweep, those that a person names at any time. A file
//! that only waits, or that a worker is at, is left alone by both.

use std::time::{Duration, Instant};

use wharfinger_catalog::{Catalog, RecoveryOutcome, Recovery, Scope, StuckFile, StuckCursor};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::recovery::RecoveryTrigger;
use wharfinger_lifecycle::state::Status;

use super::bisect::{Outcomes, bisect};
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::telemetry::metric;
use crate::uploads::{STALE_TRIES_MAX, find};

/// Files that are listed at once.
pub const PAGE_FILES: usize = 1_000;
/// Files of one transaction: few enough that others do not wait for long.
pub const BATCH_FILES: usize = 200;
/// How long somebody waits for all of their files, before they are told how far it got.
const RETRY_ALL_TIMEOUT: Duration = Duration::from_secs(30);
/// What went wrong is told of so many files.
const ERRORS_MAX: usize = 1_000;

/// A page of the files in a scope that have not got on for too long, the longest first, and how many there are.
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

/// What became of each of these, and of which that is not known.
pub async fn recover(
    core: &Core,
    catalog: &Catalog,
    files: Vec<FileId>,
    of: RecoveryTrigger,
    actor: &str,
) -> Result<Outcomes<FileId, (FileId, RecoveryOutcome)>, VerbError> {
    let begin_anew = |files| {
        let (actor, plan, now) = (actor.to_owned(), core.plan.clone(), core.clock.now());
        catalog.recover(Recovery { files, of, actor, plan, now })
    };
    let outcomes = bisect(core, files, begin_anew).await?;
    for (file, recovered) in &outcomes.done {
        after_recovery(core, *file, recovered, actor);
    }
    for (file, error) in &outcomes.failed {
        tracing::error!(job = actor, fileId = %file, error = %error, "a stuck file could not be recovered");
    }
    Ok(outcomes)
}

/// What follows outside the catalog.
fn after_recovery(core: &Core, file: FileId, recovered: &RecoveryOutcome, actor: &str) {
    match recovered {
        RecoveryOutcome::Queued { from, retry_count } => {
            tracing::debug!(job = actor, fileId = %file, from = %from, retryCount = retry_count, action = "reEnqueued",
                "a stuck file is begun anew");
            metric::stuck_recovered("reEnqueued");
            core.wakeups.stage.notify_one();
            core.wakeups.archive.notify_one();
        }
        RecoveryOutcome::Failed { tenant, why } => {
            tracing::warn!(job = actor, fileId = %file, tenant = %tenant, error = %why, action = "permanentlyFailed",
                "a stuck file is given up");
            metric::stuck_recovered("permanentlyFailed");
            core.wakeups.notice.notify_one();
            core.wakeups.archive.notify_one();
        }
        RecoveryOutcome::Waiting | RecoveryOutcome::InProgress { .. } | RecoveryOutcome::NotStuck | RecoveryOutcome::Unreadable => {}
    }
}

/// A file that waits again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retried {
    pub from: Status,
    pub retry_count: u32,
}

/// Sends one file on at a person's word, however often it was begun anew. One that waits for a later time no longer has
/// to, and nothing is counted for that; one that a worker is at is the worker's.
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
            Some((_, RecoveryOutcome::Queued { from, retry_count })) => return Ok(Retried { from, retry_count }),
            Some((_, RecoveryOutcome::Waiting)) => {
                core.catalog.make_due_now(id, core.clock.now()).await?;
                core.wakeups.stage.notify_one();
                return Ok(Retried { from: file.status, retry_count: file.retry_count });
            }
            Some((_, RecoveryOutcome::InProgress { until })) => return Err(VerbError::InWork { until }),
            // It got on between two looks.
            Some((_, RecoveryOutcome::Failed { .. } | RecoveryOutcome::NotStuck)) | None => {}
            Some((_, RecoveryOutcome::Unreadable)) => return Err(unreadable()),
        }
    }
    Err(VerbError::busy())
}

/// What came of sending on all that is stuck.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetriedAll {
    pub retried: u64,
    /// Those that only wait, or got on meanwhile.
    pub skipped: u64,
    pub errors: Vec<(FileId, VerbError)>,
    /// There are more: it was broken off for the time it took.
    pub is_broken_off: bool,
}

/// Sends on all that is stuck in a scope and does not merely wait.
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
        let recoverable: Vec<FileId> = recoverable(&page).collect();
        all.skipped += (page.len() - recoverable.len()) as u64;
        for some in recoverable.chunks(BATCH_FILES) {
            if started.elapsed() > RETRY_ALL_TIMEOUT {
                all.is_broken_off = true;
                return Ok(all);
            }
            let outcomes = recover(core, &core.catalog, some.to_vec(), RecoveryTrigger::Manual, actor).await?;
            let is_retried =
                |(_, recovered): &&(FileId, RecoveryOutcome)| matches!(recovered, RecoveryOutcome::Queued { .. });
            let retried = outcomes.done.iter().filter(is_retried).count();
            all.retried += retried as u64;
            let is_unreadable =
                |(_, recovered): &&(FileId, RecoveryOutcome)| matches!(recovered, RecoveryOutcome::Unreadable);
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
