//! Delayed checks: jobs that check an upload when its upload window is over.

pub mod message_body;
pub mod messages;

use std::time::Duration;

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{JobClaim, LeasedJob};
use wharfinger_lifecycle::retry::Backoff;

use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::check;
use crate::uploads::init::CHECK_QUEUE;

const CLAIM_JOBS: usize = 100;
const AT_ONCE: usize = 16;
const RETRY: Backoff = Backoff { base_ms: 5_000, cap_ms: 600_000 };
/// For one check, so that a store that does not answer does not delay the others.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
const EXPIRED_JOBS_MAX: usize = 100;

/// Runs every check that is due, until `stop` is cancelled. Returns how many.
pub async fn run_due(uploads: &Uploads, stop: &CancellationToken) -> Result<u64, VerbError> {
    let core = &uploads.core;
    end_expired_leases(core).await?;
    let mut ran = 0;
    while !stop.is_cancelled() {
        let jobs = core.catalog.claim_jobs(claim(core)).await?;
        if jobs.is_empty() {
            return Ok(ran);
        }
        ran += jobs.len() as u64;
        run(uploads, jobs).await?;
    }
    Ok(ran)
}

fn claim(core: &Core) -> JobClaim {
    JobClaim {
        queue: CHECK_QUEUE,
        owner: core.settings.instance_id.clone(),
        limit: CLAIM_JOBS,
        lease_ms: core.settings.job_lease_ms,
        deadline_ms: core.settings.stage_timeout_ms,
        now: core.clock.now(),
    }
}

/// Runs the checks of claimed jobs.
async fn run(uploads: &Uploads, jobs: Vec<LeasedJob>) -> Result<(), VerbError> {
    let outcomes: Vec<_> = futures::stream::iter(jobs)
        .map(async |job| {
            let outcome = run_one(uploads, &job).await;
            (job, outcome)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    settle(&uploads.core, outcomes).await
}

async fn run_one(uploads: &Uploads, job: &LeasedJob) -> Result<(), VerbError> {
    let Some(file) = job.file else { return Ok(()) };
    match tokio::time::timeout(CHECK_TIMEOUT, check::check(uploads, &uploads.core.catalog, file, CHECK_QUEUE))
        .await
    {
        Ok(outcome) => outcome.map(|_| ()),
        Err(_) => Err(VerbError::Unavailable("the check took too long".into())),
    }
}

/// Completes the jobs whose check succeeded, and schedules a retry for the others. A job that its own check rescheduled or
/// removed is no longer leased, so it is not changed here.
async fn settle(core: &Core, outcomes: Vec<(LeasedJob, Result<(), VerbError>)>) -> Result<(), VerbError> {
    let mut done = Vec::new();
    for (job, outcome) in outcomes {
        match outcome {
            Ok(()) => done.push((job.id, job.token)),
            Err(error) => {
                tracing::warn!(job = CHECK_QUEUE, jobId = %job.id, error = %error.with_cause(), attempt = job.attempt,
                    "a delayed check failed");
                let now = core.clock.now();
                let delay =
                    i64::try_from(RETRY.delay_ms(job.attempt, rand::random())).unwrap_or(i64::MAX / 4);
                let why = error.with_cause();
                core.catalog.fail_job(job.id, job.token, &why, Some(now + delay), now).await?;
            }
        }
    }
    core.catalog.complete_jobs(done).await?;
    Ok(())
}

/// Ends the leases of workers that died, so that their checks run again.
pub async fn end_expired_leases(core: &Core) -> Result<(), VerbError> {
    loop {
        let now = core.clock.now();
        let expired = core.catalog.end_expired_jobs(CHECK_QUEUE, now, now, EXPIRED_JOBS_MAX).await?;
        for (job, outcome) in &expired {
            tracing::warn!(job = CHECK_QUEUE, jobId = %job, outcome = ?outcome, "lease expired");
        }
        if expired.len() < EXPIRED_JOBS_MAX {
            return Ok(());
        }
    }
}
