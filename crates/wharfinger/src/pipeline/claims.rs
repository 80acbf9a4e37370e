//! Claims the next jobs: due jobs in fair order, files that lost a worker separately from the others, and one reserved slot
//! per stage for tenants without running jobs. Leases that reached no worker are released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Claimable, LeasedStageJob, StageClaim, StageEnd};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::AttemptOutcome;

use super::own_stages;
use super::run::{end_context, run_one, worker_name};
use crate::core::Core;
use crate::pipeline::Pipeline;

/// The pause before due jobs that could not be claimed are tried again.
const BUSY_PAUSE_MS: i64 = 100;
/// How long a file runs alone, and how long it waits for running jobs before that.
const ALONE_MS: i64 = 60_000;
/// The shortest time between two files that run alone.
const ALONE_EVERY_MS: i64 = 5 * 60_000;
/// How many rounds of due jobs are ranked at once for a stage.
const RANK_ROUNDS_MAX: usize = 20;
const RANK_ROUND_JOBS: usize = 500;

/// Running jobs. Each returns its stage, and its end if there is one to write.
type Tasks = JoinSet<(Stage, Option<StageEnd>)>;

#[derive(Default)]
pub(super) struct RunningTasks {
    pub(super) tasks: Tasks,
    /// The stage and tenant of each task, and whether it uses the reserved slot.
    of: BTreeMap<task::Id, (Stage, TenantId, bool)>,
    /// The task that runs alone, and until when nothing else starts.
    alone: Option<(task::Id, UnixMs)>,
    /// Since when nothing starts, so that a file can run alone.
    draining_since: Option<UnixMs>,
    /// When the next file may run alone.
    alone_at: UnixMs,
}

impl RunningTasks {
    pub(super) fn ended(&mut self, id: task::Id) {
        self.of.remove(&id);
        if self.alone.is_some_and(|(alone, _)| alone == id) {
            self.alone = None;
        }
    }

    /// Tenants with running jobs in this stage. None if the reserved slot is taken or nothing is running.
    fn tenants_with_work(&self, stage: Stage) -> Option<Vec<TenantId>> {
        let in_stage = || self.of.values().filter(|(of, _, _)| *of == stage);
        if in_stage().any(|(_, _, is_reserved)| *is_reserved) {
            return None;
        }
        let tenants: BTreeSet<&TenantId> = in_stage().map(|(_, tenant, _)| tenant).collect();
        (!tenants.is_empty()).then(|| tenants.into_iter().cloned().collect())
    }

    /// How many tasks count towards the concurrency limit.
    fn len(&self) -> usize {
        self.of.values().filter(|(_, _, is_reserved)| !is_reserved).count()
    }
}

/// Gives due jobs their rank in the fair order, also in stages of outside workers. Otherwise an unranked backlog would
/// delay a tenant that comes later.
pub(super) async fn rank_backlog(core: &Core) -> Result<(), CatalogError> {
    let queues: Vec<&str> = core.plan.stages.iter().map(|stage| stage.queue()).collect();
    // Avoids writes while no job is due.
    if core.catalog.next_job_at(&queues).await?.is_none_or(|at| at > core.clock.now()) {
        return Ok(());
    }
    for stage in &core.plan.stages {
        for _ in 0..RANK_ROUNDS_MAX {
            if core.catalog.rank_due(*stage, core.clock.now()).await? < RANK_ROUND_JOBS {
                break;
            }
        }
    }
    Ok(())
}

/// Stages that pause because a backend is down, so that not every file has to fail first.
#[derive(Default)]
pub(super) struct StagePauses(pub(super) BTreeMap<Stage, UnixMs>);

impl StagePauses {
    fn has_ended(&self, stage: Stage, now: UnixMs) -> bool {
        self.0.get(&stage).is_none_or(|until| *until <= now)
    }
}

/// Starts due jobs up to the concurrency limit. Returns when to check again.
pub(super) async fn start_due(
    pipeline: &Arc<Pipeline>,
    running: &mut RunningTasks,
    pauses: &StagePauses,
    stop: &CancellationToken,
) -> Result<UnixMs, CatalogError> {
    let core = &pipeline.core;
    release_undelivered(pipeline).await?;
    loop {
        let now = core.clock.now();
        if let Some((_, until)) = running.alone.filter(|(_, until)| now < *until) {
            return Ok(until);
        }
        let stages: Vec<Stage> =
            own_stages(core).into_iter().filter(|stage| pauses.has_ended(*stage, now)).collect();
        if now >= running.alone_at && core.catalog.has_last_chance(&stages, now).await? {
            if let Some(drained_at) = drained_at(running, now) {
                return Ok(drained_at);
            }
            start_alone(pipeline, running, &stages, stop).await?;
            continue;
        }
        running.draining_since = None;
        let queues: Vec<&str> = stages.iter().map(|stage| stage.queue()).collect();
        let next_at = core.catalog.next_job_at(&queues).await?.unwrap_or(i64::MAX);
        if next_at > now {
            return Ok(next_at.max(now + BUSY_PAUSE_MS));
        }
        let is_full = running.len() >= core.settings.pipeline.concurrency;
        let has_started = match is_full {
            true => false,
            false => start(pipeline, running, &stages, stop).await?,
        };
        if !has_started && !start_reserved(pipeline, running, &stages, stop).await? {
            return Ok(if is_full { i64::MAX } else { next_at.max(now + BUSY_PAUSE_MS) });
        }
    }
}

/// Until when nothing starts, so that running jobs can end. None: they have ended, or waited long enough.
fn drained_at(running: &mut RunningTasks, now: UnixMs) -> Option<UnixMs> {
    let since = *running.draining_since.get_or_insert(now);
    let ends_at = since.saturating_add(ALONE_MS);
    (!running.of.is_empty() && now < ends_at).then_some(ends_at)
}

/// Starts a file that lost two workers in a row. For a minute it runs alone, so that it is unlikely that another file
/// costs it its last attempt.
async fn start_alone(
    pipeline: &Arc<Pipeline>,
    running: &mut RunningTasks,
    stages: &[Stage],
    stop: &CancellationToken,
) -> Result<(), CatalogError> {
    let now = pipeline.core.clock.now();
    running.draining_since = None;
    running.alone_at = now.saturating_add(ALONE_EVERY_MS);
    for stage in stages {
        let claimed = claim_with_permits(pipeline, *stage, 1, Claimable::LastChance).await?.pop();
        if let Some((held, permit)) = claimed {
            let id = spawn(pipeline, running, held, (permit, None), false, stop);
            running.alone = Some((id, now.saturating_add(ALONE_MS)));
            return Ok(());
        }
    }
    Ok(())
}

/// Claims jobs up to the concurrency limit. Returns whether there were any.
async fn start(
    pipeline: &Arc<Pipeline>,
    running: &mut RunningTasks,
    stages: &[Stage],
    stop: &CancellationToken,
) -> Result<bool, CatalogError> {
    let mut claimed = false;
    for stage in stages {
        // One suspect at a time: if it kills this process, no other suspect loses a worker.
        if let Ok(suspect_permit) = pipeline.suspects.clone().try_acquire_owned() {
            let suspect = claim_with_permits(pipeline, *stage, 1, Claimable::Suspects).await?.pop();
            if let Some((held, permit)) = suspect {
                claimed = true;
                spawn(pipeline, running, held, (permit, Some(suspect_permit)), false, stop);
            }
        }
        let room = pipeline.core.settings.pipeline.concurrency.saturating_sub(running.len());
        if room == 0 || stop.is_cancelled() {
            break;
        }
        for (held, permit) in claim_with_permits(pipeline, *stage, room, Claimable::Untried).await? {
            claimed = true;
            spawn(pipeline, running, held, (permit, None), false, stop);
        }
    }
    Ok(claimed)
}

/// Starts one job per stage in the reserved slot, for a tenant without running jobs in that stage. So one tenant cannot
/// hold all slots while another waits.
async fn start_reserved(
    pipeline: &Arc<Pipeline>,
    running: &mut RunningTasks,
    stages: &[Stage],
    stop: &CancellationToken,
) -> Result<bool, CatalogError> {
    let mut claimed = false;
    for stage in stages {
        let Some(tenants) = running.tenants_with_work(*stage) else { continue };
        for held in claim(pipeline, *stage, 1, Claimable::UntriedExcept(tenants)).await? {
            claimed = true;
            spawn(pipeline, running, held, (None, None), true, stop);
        }
    }
    Ok(claimed)
}

/// Permits that are held while a job runs.
type Permits = (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>);

fn spawn(
    pipeline: &Arc<Pipeline>,
    running: &mut RunningTasks,
    held: LeasedStageJob,
    permits: Permits,
    is_reserved: bool,
    stop: &CancellationToken,
) -> task::Id {
    let (pipeline, stop) = (pipeline.clone(), stop.clone());
    let (stage, tenant) = (held.stage, held.file.tenant.clone());
    let task = running.tasks.spawn(async move {
        let _permits = permits;
        let ended = stop.run_until_cancelled(run_one(&pipeline, &held)).await;
        (held.stage, ended.unwrap_or_else(|| Some(released(&held))))
    });
    running.of.insert(task.id(), (stage, tenant, is_reserved));
    task.id()
}

/// Claims extract jobs only with a permit for an extractor process. Otherwise a file would spend its stage time waiting.
async fn claim_with_permits(
    pipeline: &Pipeline,
    stage: Stage,
    room: usize,
    of: Claimable,
) -> Result<Vec<(LeasedStageJob, Option<OwnedSemaphorePermit>)>, CatalogError> {
    if stage != Stage::Extract {
        let held = claim(pipeline, stage, room, of).await?;
        return Ok(held.into_iter().map(|held| (held, None)).collect());
    }
    let permits = &pipeline.extractions;
    let mut permits: Vec<_> = (0..room).map_while(|_| permits.clone().try_acquire_owned().ok()).collect();
    if permits.is_empty() {
        return Ok(Vec::new());
    }
    let held = claim(pipeline, stage, permits.len(), of).await?;
    Ok(held.into_iter().map(|held| (held, permits.pop())).collect())
}

pub(super) fn released(held: &LeasedStageJob) -> StageEnd {
    StageEnd { job: held.job.id, token: held.job.token, outcome: AttemptOutcome::Released }
}

pub(super) async fn claim(
    pipeline: &Pipeline,
    stage: Stage,
    limit: usize,
    of: Claimable,
) -> Result<Vec<LeasedStageJob>, CatalogError> {
    let core = &pipeline.core;
    let claim = StageClaim {
        stage,
        owner: worker_name(core),
        limit,
        of,
        tenants: None,
        lease_ms: core.settings.job_lease_ms,
        deadline_ms: core.settings.stage_timeout_ms,
        plan: core.plan.clone(),
        now: core.clock.now(),
    };
    let held = claim_stage(pipeline, claim).await?;
    if !held.is_empty() {
        core.wakeups.archive.notify_one();
    }
    Ok(held)
}

/// Claims jobs. If the answer is lost, the claim is remembered, because no worker has its leases.
pub(super) async fn claim_stage(
    pipeline: &Pipeline,
    claim: StageClaim,
) -> Result<Vec<LeasedStageJob>, CatalogError> {
    pipeline.core.catalog.claim_stage(claim).await.map_err(|failed| {
        if let Some(claim_id) = failed.claim_id {
            pipeline.lost_claims.lock().unwrap_or_else(PoisonError::into_inner).push(claim_id);
        }
        failed.error
    })
}

/// Releases a lease as soon as the catalog can be written.
pub(super) fn release_later(pipeline: &Pipeline, lease: StageEnd) {
    pipeline.unreleased.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
}

/// Releases leases that reached no worker, so that they do not count as lost workers.
pub(super) async fn release_undelivered(pipeline: &Pipeline) -> Result<(), CatalogError> {
    let core = &pipeline.core;
    let unreleased = || pipeline.unreleased.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(end) = unreleased().last().cloned() else { break };
        match core.catalog.end_stages(vec![end.clone()], end_context(core, "recovery")).await {
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::error!(job = "pipeline", jobId = %end.job, error = %error, "cannot release a lease");
            }
            Ok(_) => {}
        }
        unreleased().retain(|other| (other.job, other.token) != (end.job, end.token));
    }
    let lost = || pipeline.lost_claims.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(claim_id) = lost().last().cloned() else { return Ok(()) };
        match core.catalog.release_claim(&claim_id, end_context(core, "recovery")).await {
            Err(error) if error.is_retryable() => return Err(error),
            // A claim that cannot be released must not block the others.
            Err(error) => tracing::error!(job = "pipeline", claimId = %claim_id, error = %error,
                "cannot return the jobs of a lost claim, they wait until their leases expire"),
            Ok(released) => {
                tracing::warn!(job = "pipeline", claimId = %claim_id, jobs = released, action = "released",
                "answer to a claim was lost, its jobs are released")
            }
        }
        lost().retain(|other| *other != claim_id);
    }
}
