//! Works on files: claims what is due for the stages of this process, works on it under a lease that heartbeats keep,
//! and ends it. What ends at about the same time ends in one transaction.

use std::sync::Arc;
use std::time::Duration;

use tokio::task;
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Claimable, StageEndContext, StageEnd, LeasedStageJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{CompletionResult, AttemptOutcome};

use super::bisect::bisect;
use super::claims::{StagePauses, RunningTasks, start_due, claim, rank_backlog};
use super::{Attempt, StageError, attempt, chunk, embed, extract, own_stages, scan};
use crate::core::Core;
use crate::core::VerbError;
use crate::pipeline::Pipeline;
use crate::telemetry::metric;
use crate::telemetry::traces::Done;

/// Another process may have written a job that we have not heard of.
const PAUSE_MS_MAX: i64 = 2_000;
/// After an error of the catalog.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// How long a stage is left alone whose last file was put off.
const STAGE_PAUSE_MS: i64 = 10_000;
const RECOVER_FILES: usize = 100;
/// How often leases that are over are looked for.
const RECOVER_EVERY_MS: i64 = 1_000;
/// How often copies of killed extractions are removed.
const REMOVE_COPIES_EVERY_MS: i64 = 10 * 60_000;

/// The name of this process's worker in leases and histories.
pub fn worker_name(core: &Core) -> String {
    format!("worker:{}", core.settings.instance_id)
}

pub(super) fn end_context<'a>(core: &'a Core, actor: &'a str) -> StageEndContext<'a> {
    StageEndContext { actor, plan: &core.plan, now: core.clock.now() }
}

/// Works until it is told to stop. What is under way then is given back, and no attempt is spent on it.
pub async fn work(pipeline: Arc<Pipeline>, stop: CancellationToken) {
    let core = &pipeline.core;
    let mut running = RunningTasks::default();
    let mut ends: Vec<StageEnd> = Vec::new();
    let mut pauses = StagePauses::default();
    let (mut recover_at, mut remove_copies_at) = (0, 0);
    // Since when ends could not be written.
    let mut unwritten_since = None;
    while !stop.is_cancelled() {
        let now = core.clock.now();
        if now >= recover_at {
            recover_at = now + RECOVER_EVERY_MS;
            if let Err(error) = recover_expired(core).await {
                tracing::warn!(job = "pipeline", error = %error.with_cause(), "leases that are over could not be taken back");
            }
            if let Err(error) = rank_backlog(core).await {
                tracing::warn!(job = "pipeline", error = %error, "cannot rank due jobs");
            }
        }
        if now >= remove_copies_at {
            remove_copies_at = now + REMOVE_COPIES_EVERY_MS;
            extract::remove_old_copies(&core.settings.data_dir, core.settings.stage_timeout_ms);
        }
        while let Some(done) = running.tasks.try_join_next_with_id() {
            ends.extend(ended_task(done, &mut running, &mut pauses, now));
        }
        let round = match write_ends(core, &mut ends).await {
            Ok(()) => start_due(&pipeline, &mut running, &pauses, &stop).await,
            Err(error) => Err(error),
        };
        let again_at = match round {
            Ok(again_at) => {
                unwritten_since = None;
                again_at
            }
            Err(error) => {
                // By then the leases are over, and nobody waits for these any more.
                if now - *unwritten_since.get_or_insert(now) > core.settings.job_lease_ms {
                    ends.clear();
                }
                tracing::warn!(job = "pipeline", error = %error, "the catalog could not be asked for work");
                stop.run_until_cancelled(tokio::time::sleep(ERROR_PAUSE)).await;
                continue;
            }
        };
        tokio::select! {
            Some(done) = running.tasks.join_next_with_id() => {
                ends.extend(ended_task(done, &mut running, &mut pauses, now));
            }
            () = core.wakeups.stage.notified() => {}
            () = core.clock.sleep_until(again_at.min(now + PAUSE_MS_MAX)) => {}
            () = stop.cancelled() => {}
        }
    }
    release_all(core, running, ends).await;
}

fn ended_task(
    done: Result<(task::Id, (Stage, Option<StageEnd>)), task::JoinError>,
    running: &mut RunningTasks,
    pauses: &mut StagePauses,
    now: UnixMs,
) -> Option<StageEnd> {
    let (stage, end) = match done {
        Ok((id, ended)) => {
            running.ended(id);
            ended
        }
        Err(panicked) => {
            running.ended(panicked.id());
            tracing::error!(job = "pipeline", error = %panicked, "work on a file panicked");
            return None;
        }
    };
    if matches!(end, Some(StageEnd { outcome: AttemptOutcome::Postponed { .. }, .. })) {
        pauses.0.insert(stage, now + STAGE_PAUSE_MS);
    }
    end
}

/// Ends what has ended; what could not be stays for the next round.
async fn write_ends(core: &Core, ends: &mut Vec<StageEnd>) -> Result<(), CatalogError> {
    if ends.is_empty() {
        return Ok(());
    }
    let name = worker_name(core);
    match core.catalog.end_stages(ends.clone(), end_context(core, &name)).await {
        Ok(outcomes) => {
            for (end, ended) in ends.drain(..).zip(outcomes) {
                log_lost_lease(&end, ended);
                after_stage_end(core, ended);
            }
            Ok(())
        }
        // One that cannot be written must not hold up the others.
        Err(error) if ends.len() > 1 || is_corrupt_row(&error) => write_each_end(core, ends).await,
        Err(error) => Err(error),
    }
}

/// A row of the file cannot be read: the catalog is there for all others.
fn is_corrupt_row(error: &CatalogError) -> bool {
    matches!(error, CatalogError::Corrupt(_))
}

async fn write_each_end(core: &Core, ends: &mut Vec<StageEnd>) -> Result<(), CatalogError> {
    let (mut refused, mut is_any_written) = (None, false);
    let mut left = Vec::new();
    for end in ends.drain(..) {
        match write_end(core, &end).await {
            Ok(ended) => {
                is_any_written = true;
                log_lost_lease(&end, ended);
                after_stage_end(core, ended);
            }
            Err(error) => {
                tracing::error!(job = "pipeline", jobId = %end.job, error = %error, "a stage's end was not written");
                if !is_corrupt_row(&error) {
                    left.push(end);
                    refused = Some(error);
                }
            }
        }
    }
    // If none got through the catalog is away; if some did, the rest is left to the end of its lease.
    match refused {
        Some(error) if !is_any_written => {
            *ends = left;
            Err(error)
        }
        _ => Ok(()),
    }
}

/// A file that cannot end because of one of its rows waits until that is repaired, as for an object that is refused.
async fn write_end(core: &Core, end: &StageEnd) -> Result<CompletionResult, CatalogError> {
    let name = worker_name(core);
    let write = async |end: StageEnd| {
        let outcomes = core.catalog.end_stages(vec![end], end_context(core, &name)).await?;
        Ok(outcomes.first().copied().unwrap_or(CompletionResult::LeaseLost))
    };
    match write(end.clone()).await {
        Err(error) if is_corrupt_row(&error) => {
            tracing::error!(job = "pipeline", jobId = %end.job, error = %error, "a stage cannot end, its file waits");
            write(StageEnd { outcome: attempt::refused(error.to_string()), ..end.clone() }).await
        }
        other => other,
    }
}

/// What follows from the end of a stage outside the catalog.
pub(super) fn after_stage_end(core: &Core, ended: CompletionResult) {
    metric::stage_ended(ended);
    if ended != CompletionResult::LeaseLost {
        core.wakeups.archive.notify_one();
    }
    match ended {
        CompletionResult::Next(_) => core.wakeups.stage.notify_one(),
        CompletionResult::Ready | CompletionResult::Failed | CompletionResult::Quarantined => core.wakeups.notice.notify_one(),
        CompletionResult::Retried | CompletionResult::LeaseLost => {}
    }
}

fn log_lost_lease(end: &StageEnd, ended: CompletionResult) {
    if ended == CompletionResult::LeaseLost {
        tracing::warn!(job = "pipeline", jobId = %end.job, action = "lease_lost",
            "a stage ended after its lease was lost");
    }
}

/// Works on one file until it is done or the lease is lost; then there is nothing to end.
pub(super) async fn run_one(pipeline: &Pipeline, held: &LeasedStageJob) -> Option<StageEnd> {
    let core = &pipeline.core;
    let outcome = tokio::select! {
        biased;
        outcome = run_stage(pipeline, held) => outcome,
        () = heartbeat_until_lost(core, held) => Err(StageError::LeaseLost),
    };
    let duration_ms = core.clock.now().saturating_sub(held.file.updated_at);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(trouble) => {
            tracing::warn!(job = held.stage.queue(), fileId = %held.file.id, tenant = %held.file.tenant,
                attempt = held.job.attempt, error = ?trouble, action = "stopped", durationMs = duration_ms,
                "a stage did not end well");
            error.into_outcome(pipeline, held.job.attempt).await?
        }
    };
    match &outcome {
        AttemptOutcome::Done(_) => {
            tracing::info!(job = held.stage.queue(), fileId = %held.file.id, tenant = %held.file.tenant,
            action = "done", durationMs = duration_ms, "a stage is done")
        }
        AttemptOutcome::Quarantined { why } => tracing::warn!(job = held.stage.queue(), fileId = %held.file.id,
            tenant = %held.file.tenant, error = %why, action = "quarantined", durationMs = duration_ms,
            "a file is quarantined"),
        _ => {}
    }
    trace(core, held, &outcome);
    Some(StageEnd { job: held.job.id, token: held.job.token, outcome })
}

/// One attempt, from when the file was claimed.
pub(super) fn trace(core: &Core, held: &LeasedStageJob, outcome: &AttemptOutcome) {
    let error = match outcome {
        AttemptOutcome::Done(_) => None,
        AttemptOutcome::Retry { why, .. }
        | AttemptOutcome::Postponed { why, .. }
        | AttemptOutcome::ObjectUnreadable { why, .. }
        | AttemptOutcome::Failed { why }
        | AttemptOutcome::Quarantined { why } => Some(why.clone()),
        AttemptOutcome::Released => Some("returned to the queue".to_owned()),
    };
    core.traces.went_on(&Done {
        name: held.stage.as_str(),
        from: held.file.updated_at,
        to: core.clock.now(),
        error,
        file: &held.file,
        attempt: Some(held.job.attempt),
    });
}

async fn run_stage(pipeline: &Pipeline, held: &LeasedStageJob) -> Result<AttemptOutcome, StageError> {
    let attempt = Attempt { pipeline, held };
    match held.stage {
        Stage::Scan => scan::scan(&attempt).await,
        Stage::Extract => extract::extract(&attempt).await,
        Stage::Chunk => chunk::chunk(&attempt).await,
        Stage::Embed => embed::embed(&attempt).await,
    }
}

/// Heartbeats, until the lease is lost.
async fn heartbeat_until_lost(core: &Core, held: &LeasedStageJob) {
    let lease_ms = core.settings.job_lease_ms;
    loop {
        core.clock.sleep_until(core.clock.now() + lease_ms / 3).await;
        let now = core.clock.now();
        match core.catalog.heartbeat_job(held.job.id, held.job.token, lease_ms, now).await {
            Ok(Some(until)) if until > now => {}
            Ok(_) => return,
            // The catalog may be back before the lease is over.
            Err(error) => {
                tracing::warn!(jobId = %held.job.id, error = %error, "a heartbeat did not get through")
            }
        }
    }
}

/// What workers did not come back from is given to others.
pub async fn recover_expired(core: &Core) -> Result<(), VerbError> {
    let mut after = None;
    loop {
        let lost = core.catalog.expired_stage_jobs(core.clock.now(), after, RECOVER_FILES).await?;
        let Some(last) = lost.last() else { return Ok(()) };
        after = Some(*last);
        let retry_at = attempt::retry_at(core);
        let jobs = lost.iter().map(|(_, job)| *job).collect();
        let take = |jobs| core.catalog.end_expired_stage_jobs(jobs, end_context(core, "recovery"), retry_at);
        let taken = bisect(core, jobs, take).await?;
        for (file, ended) in &taken.done {
            tracing::warn!(job = "pipeline", fileId = %file, ended = ?ended, action = "taken_back", "a lease ran out");
            after_stage_end(core, *ended);
        }
        for (job, error) in &taken.failed {
            tracing::error!(job = "pipeline", jobId = %job, error = %error, "a lease that ran out was not taken back");
        }
    }
}

async fn release_all(core: &Core, mut running: RunningTasks, mut ends: Vec<StageEnd>) {
    while let Some(done) = running.tasks.join_next_with_id().await {
        ends.extend(ended_task(done, &mut running, &mut StagePauses::default(), core.clock.now()));
    }
    if let Err(error) = write_ends(core, &mut ends).await {
        tracing::warn!(job = "pipeline", error = %error, "what was under way is given to others when its lease ends");
    }
}

/// Works on all that is due, until nothing is; answers how many stages were run.
pub async fn run_due(pipeline: &Pipeline) -> Result<u64, VerbError> {
    let core = &pipeline.core;
    recover_expired(core).await?;
    let mut ran = 0;
    loop {
        let mut ends = Vec::new();
        let mut claimed = false;
        for stage in own_stages(core) {
            for of in [Claimable::LastChance, Claimable::Suspects, Claimable::Untried] {
                for held in claim(pipeline, stage, core.settings.pipeline.concurrency, of).await? {
                    claimed = true;
                    ran += 1;
                    ends.extend(run_one(pipeline, &held).await);
                }
            }
        }
        if !claimed {
            return Ok(ran);
        }
        write_ends(core, &mut ends).await?;
    }
}
