//! What a worker takes up next: due files of its stages in fair order, those that lost a worker apart from the others, and
//! one more place in each stage for tenants that hold none. Leases that reached no worker are given back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, Claimable, StageClaim, StageEnd, LeasedStageJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::AttemptOutcome;

use super::own_stages;
use super::run::{end_context, run_one, worker_name};
use crate::core::Core;
use crate::pipeline::Pipeline;

/// Due jobs that cannot be claimed now are tried again after this.
const BUSY_PAUSE_MS: i64 = 100;
/// How long a file runs alone, and how long others are waited for before that.
const ALONE_MS: i64 = 60_000;
/// How often that happens at most.
const ALONE_EVERY_MS: i64 = 5 * 60_000;
/// Due jobs that are ranked at once for a stage, in rounds of so many.
const RANK_ROUNDS_MAX: usize = 20;
const RANK_ROUND_JOBS: usize = 500;

/// What is under way: each with its stage, and how it ends if there is still something to end.
type Tasks = JoinSet<(Stage, Option<StageEnd>)>;

#[derive(Default)]
pub(super) struct RunningTasks {
    pub(super) tasks: Tasks,
    /// Whose file each works on, and whether it is in a place that is kept for other tenants.
    of: BTreeMap<task::Id, (Stage, TenantId, bool)>,
    /// The one that runs alone, and until when nothing starts beside it.
    alone: Option<(task::Id, UnixMs)>,
    /// Since when nothing starts, so that one can run alone.
    draining_since: Option<UnixMs>,
    /// When the next may run alone.
    alone_at: UnixMs,
}

impl RunningTasks {
    pub(super) fn ended(&mut self, id: task::Id) {
        self.of.remove(&id);
        if self.alone.is_some_and(|(alone, _)| alone == id) {
            self.alone = None;
        }
    }

    /// Tenants with files in this stage, if the place that is kept for others is free.
    fn tenants_with_work(&self, stage: Stage) -> Option<Vec<TenantId>> {
        let in_stage = || self.of.values().filter(|(of, _, _)| *of == stage);
        if in_stage().any(|(_, _, is_reserved)| *is_reserved) {
            return None;
        }
        let tenants: BTreeSet<&TenantId> = in_stage().map(|(_, tenant, _)| tenant).collect();
        (!tenants.is_empty()).then(|| tenants.into_iter().cloned().collect())
    }

    /// How many count against what may be worked on at once.
    fn len(&self) -> usize {
        self.of.values().filter(|(_, _, is_reserved)| !is_reserved).count()
    }
}

/// Due jobs get their place in the fair order soon, also those of stages that outside workers work on: a backlog that is
/// not ranked yet would be in the way of a tenant that comes later.
pub(super) async fn rank_backlog(core: &Core) -> Result<(), CatalogError> {
    let queues: Vec<&str> = core.plan.stages.iter().map(|stage| stage.queue()).collect();
    // Nothing is written while nothing is due.
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

/// Stages that wait for something that is away: not every file has to find that out for itself.
#[derive(Default)]
pub(super) struct StagePauses(pub(super) BTreeMap<Stage, UnixMs>);

impl StagePauses {
    fn has_ended(&self, stage: Stage, now: UnixMs) -> bool {
        self.0.get(&stage).is_none_or(|until| *until <= now)
    }
}

/// Begins what is due, as far as there is room; answers when to look again.
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

/// Nothing starts until what is under way has ended, but not for long; none: it is time.
fn drained_at(running: &mut RunningTasks, now: UnixMs) -> Option<UnixMs> {
    let since = *running.draining_since.get_or_insert(now);
    let patience_ends = since.saturating_add(ALONE_MS);
    (!running.of.is_empty() && now < patience_ends).then_some(patience_ends)
}

/// A file that lost its worker twice has one more chance, and no neighbour that could cost it that one.
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

/// Claims as much as there is room for; answers whether there was anything.
async fn start(
    pipeline: &Arc<Pipeline>,
    running: &mut RunningTasks,
    stages: &[Stage],
    stop: &CancellationToken,
) -> Result<bool, CatalogError> {
    let mut claimed = false;
    for stage in stages {
        // One suspect at a time: if it kills us, it takes no other suspect along.
        if let Ok(place) = pipeline.suspects.clone().try_acquire_owned() {
            let suspect = claim_with_permits(pipeline, *stage, 1, Claimable::Suspects).await?.pop();
            if let Some((held, permit)) = suspect {
                claimed = true;
                spawn(pipeline, running, held, (permit, Some(place)), false, stop);
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

/// No tenant holds all permits of a stage while another waits: one more in each is kept for those that hold none.
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

/// Permits that are held as long as a file is worked on.
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
        let _places = permits;
        let ended = stop.run_until_cancelled(run_one(&pipeline, &held)).await;
        (held.stage, ended.unwrap_or_else(|| Some(released(&held))))
    });
    running.of.insert(task.id(), (stage, tenant, is_reserved));
    task.id()
}

/// Text is extracted where there is memory for it: a file does not spend its time waiting for that.
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

/// Claims, and remembers a claim whose answer was lost: no worker has what it leased.
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

/// Gives a lease back as soon as the catalog can be written.
pub(super) fn release_later(pipeline: &Pipeline, lease: StageEnd) {
    pipeline.unreleased.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
}

/// Gives back what claims have leased whose answers were lost, so that it does not count as a lost worker.
pub(super) async fn release_undelivered(pipeline: &Pipeline) -> Result<(), CatalogError> {
    let core = &pipeline.core;
    let unreleased = || pipeline.unreleased.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(end) = unreleased().last().cloned() else { break };
        match core.catalog.end_stages(vec![end.clone()], end_context(core, "recovery")).await {
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::error!(job = "pipeline", jobId = %end.job, error = %error, "cannot give back a lease");
            }
            Ok(_) => {}
        }
        unreleased().retain(|other| (other.job, other.token) != (end.job, end.token));
    }
    let lost = || pipeline.lost_claims.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(claim_id) = lost().last().cloned() else { return Ok(()) };
        // One that cannot be given back must not stop all others: its leases run out.
        let given = match core.catalog.release_claim(&claim_id, end_context(core, "recovery")).await {
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::error!(job = "pipeline", error = %error, "cannot give back the leases of a claim");
                0
            }
            Ok(given) => given,
        };
        lost().retain(|other| *other != claim_id);
        tracing::warn!(
            job = "pipeline",
            jobs = given,
            action = "released",
            "the answer to a claim was lost"
        );
    }
}
