//! Runs the built-in stages: claims due jobs, runs each under a lease with heartbeats, and writes its end. Jobs that end at
//! about the same time are written in one transaction.

use std::sync::Arc;
use std::time::Duration;

use tokio::task;
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Claimable, LeasedStageJob, StageEnd, StageEndContext};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult};

use super::bisect::bisect;
use super::claims::{RunningTasks, StagePauses, claim, rank_backlog, start_due};
use super::{Attempt, StageError, attempt, chunk, embed, extract, own_stages, scan};
use crate::core::Core;
use crate::core::VerbError;
use crate::pipeline::Pipeline;
use crate::telemetry::metric;
use crate::telemetry::traces::FileSpan;

/// The longest pause. Another process may have written a job without waking this one.
const PAUSE_MS_MAX: i64 = 2_000;
/// After an error of the catalog.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// How long a stage pauses after one of its files was postponed because a backend is down.
const STAGE_PAUSE_MS: i64 = 10_000;
const RECOVER_FILES: usize = 100;
/// How often expired leases are ended.
const RECOVER_EVERY_MS: i64 = 1_000;
/// How often local copies left by killed extractions are removed.
const REMOVE_COPIES_EVERY_MS: i64 = 10 * 60_000;

/// The name of this process's worker in leases and histories.
pub fn worker_name(core: &Core) -> String {
    format!("worker:{}", core.settings.instance_id)
}

pub(super) fn end_context<'a>(core: &'a Core, actor: &'a str) -> StageEndContext<'a> {
    StageEndContext { actor, plan: &core.plan, now: core.clock.now() }
}

/// Runs until `stop` is cancelled. Running jobs are then released, and this does not count as an attempt.
pub async fn work(pipeline: Arc<Pipeline>, stop: CancellationToken) {
    let core = &pipeline.core;
    let mut running = RunningTasks::default();
    let mut ends: Vec<StageEnd> = Vec::new();
    let mut pauses = StagePauses::default();
    let (mut recover_at, mut remove_copies_at) = (0, 0);
    // Since when stage ends cannot be written.
    let mut unwritten_since = None;
    while !stop.is_cancelled() {
        let now = core.clock.now();
        if now >= recover_at {
            recover_at = now + RECOVER_EVERY_MS;
            if let Err(error) = recover_expired(core).await {
                tracing::warn!(job = "pipeline", error = %error.with_cause(), "cannot recover expired leases");
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
                // By then the leases have expired, and these ends would be rejected.
                if now - *unwritten_since.get_or_insert(now) > core.settings.job_lease_ms {
                    ends.clear();
                }
                tracing::warn!(job = "pipeline", error = %error, "cannot claim jobs, trying again");
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
            tracing::error!(job = "pipeline", error = %panicked, "stage panicked");
            return None;
        }
    };
    if matches!(end, Some(StageEnd { outcome: AttemptOutcome::Postponed { .. }, .. })) {
        pauses.0.insert(stage, now + STAGE_PAUSE_MS);
    }
    end
}

/// Writes the ends of stages. What cannot be written stays in the list for the next round.
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
        // One end that cannot be written must not block the others.
        Err(error) if ends.len() > 1 || is_corrupt_row(&error) => write_each_end(core, ends).await,
        Err(error) => Err(error),
    }
}

/// Whether a row of the file cannot be read. The catalog works for other files.
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
                tracing::error!(job = "pipeline", jobId = %end.job, error = %error, "cannot write the end of a stage");
                if !is_corrupt_row(&error) {
                    left.push(end);
                    refused = Some(error);
                }
            }
        }
    }
    // If none was written, the catalog is down and all are tried again. Otherwise the failed ones end when their lease does.
    match refused {
        Some(error) if !is_any_written => {
            *ends = left;
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Writes one end. If a row of the file is corrupt, the file is tried again with growing pauses: the row may be
/// repaired.
async fn write_end(core: &Core, end: &StageEnd) -> Result<CompletionResult, CatalogError> {
    let name = worker_name(core);
    let write = async |end: StageEnd| {
        let outcomes = core.catalog.end_stages(vec![end], end_context(core, &name)).await?;
        Ok(outcomes.first().copied().unwrap_or(CompletionResult::LeaseLost))
    };
    match write(end.clone()).await {
        Err(error) if is_corrupt_row(&error) => {
            tracing::error!(job = "pipeline", jobId = %end.job, error = %error, "cannot write the end of a stage because of a corrupt row, the file waits");
            write(StageEnd { outcome: attempt::refused(error.to_string()), ..end.clone() }).await
        }
        other => other,
    }
}

/// Counts the end of a stage in the metrics and wakes the loops that have work now.
pub(super) fn after_stage_end(core: &Core, ended: CompletionResult) {
    metric::stage_ended(ended);
    if ended != CompletionResult::LeaseLost {
        core.wakeups.archive.notify_one();
    }
    match ended {
        CompletionResult::Next(_) => core.wakeups.stage.notify_one(),
        CompletionResult::Ready | CompletionResult::Failed | CompletionResult::Quarantined => {
            core.wakeups.notification.notify_one()
        }
        CompletionResult::Retried | CompletionResult::LeaseLost => {}
    }
}

fn log_lost_lease(end: &StageEnd, ended: CompletionResult) {
    if ended == CompletionResult::LeaseLost {
        tracing::warn!(job = "pipeline", jobId = %end.job, action = "lease_lost",
            "stage ended after its lease was lost, its result is rejected");
    }
}

/// Runs one stage of one file until it ends. None if the lease was lost: then there is no end to write.
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
        Err(error) => {
            tracing::warn!(job = held.stage.queue(), fileId = %held.file.id, tenant = %held.file.tenant,
                attempt = held.job.attempt, error = %error, action = "stopped", durationMs = duration_ms,
                "stage failed");
            error.into_outcome(pipeline, held.job.attempt).await?
        }
    };
    match &outcome {
        AttemptOutcome::Done(_) | AttemptOutcome::Unsupported { .. } => {
            tracing::info!(job = held.stage.queue(), fileId = %held.file.id, tenant = %held.file.tenant,
            action = "done", durationMs = duration_ms, "stage finished")
        }
        AttemptOutcome::Quarantined { why, .. } => {
            tracing::warn!(job = held.stage.queue(), fileId = %held.file.id,
            tenant = %held.file.tenant, error = %why, action = "quarantined", durationMs = duration_ms,
            "file quarantined")
        }
        _ => {}
    }
    trace(core, held, &outcome);
    Some(StageEnd { job: held.job.id, token: held.job.token, outcome })
}

/// Records a trace span of one attempt, starting at its claim.
pub(super) fn trace(core: &Core, held: &LeasedStageJob, outcome: &AttemptOutcome) {
    let error = match outcome {
        AttemptOutcome::Done(_) | AttemptOutcome::Unsupported { .. } => None,
        AttemptOutcome::Retry { why, .. }
        | AttemptOutcome::Postponed { why, .. }
        | AttemptOutcome::ObjectUnreadable { why, .. }
        | AttemptOutcome::Failed { why }
        | AttemptOutcome::Quarantined { why, .. } => Some(why.clone()),
        AttemptOutcome::Released => Some("returned to the queue".to_owned()),
    };
    core.traces.child(&FileSpan {
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

/// Sends heartbeats and returns when the lease is lost.
async fn heartbeat_until_lost(core: &Core, held: &LeasedStageJob) {
    let lease_ms = core.settings.job_lease_ms;
    loop {
        core.clock.sleep_until(core.clock.now() + lease_ms / 3).await;
        let now = core.clock.now();
        match core.catalog.heartbeat_job(held.job.id, held.job.token, lease_ms, now).await {
            Ok(Some(until)) if until > now => {}
            Ok(_) => return,
            // The catalog may answer again before the lease expires.
            Err(error) => {
                tracing::warn!(jobId = %held.job.id, error = %error, "cannot extend a lease")
            }
        }
    }
}

/// Ends expired leases, so that their files can be claimed again.
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
            tracing::warn!(job = "pipeline", fileId = %file, ended = ?ended, action = "taken_back", "lease expired");
            after_stage_end(core, *ended);
        }
        for (job, error) in &taken.failed {
            tracing::error!(job = "pipeline", jobId = %job, error = %error, "cannot end an expired lease");
        }
    }
}

async fn release_all(core: &Core, mut running: RunningTasks, mut ends: Vec<StageEnd>) {
    while let Some(done) = running.tasks.join_next_with_id().await {
        ends.extend(ended_task(done, &mut running, &mut StagePauses::default(), core.clock.now()));
    }
    if let Err(error) = write_ends(core, &mut ends).await {
        tracing::warn!(job = "pipeline", error = %error, "cannot release running jobs, others get them when their leases expire");
    }
}

/// Runs everything that is due until nothing is left. Returns the number of stages that were run.
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
