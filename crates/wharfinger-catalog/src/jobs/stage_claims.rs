//! Claiming files for a stage: jobs that are due, in fair order between tenants, each with its file, which is in work from
//! here on.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{JobId, TenantId};
use wharfinger_lifecycle::processing::{self, PipelinePlan};
use wharfinger_lifecycle::stage::Stage;

use crate::Catalog;
use crate::changes::Committer;
use crate::database::sql::{Arg, Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::files::locks;
use crate::jobs::claims::{LeasedJob, leased};
use crate::jobs::effects;
use crate::leases::engine::{self, Claim, Claimed};
use crate::leases::tables::STAGE_JOBS;
use crate::unreadable::RETRY_MS;

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct StageClaim {
    pub stage: Stage,
    /// Names the worker, in the job and in the file's history.
    pub owner: String,
    pub limit: usize,
    pub of: Claimable,
    /// Only files of these tenants, where they are among those that come first. None: of all.
    pub tenants: Option<Vec<TenantId>>,
    pub lease_ms: i64,
    /// Heartbeats move the lease, never this: a hung worker is not working.
    pub deadline_ms: i64,
    pub plan: PipelinePlan,
    pub now: UnixMs,
}

/// A file that a worker did not come back from may be what killed it: those are taken one at a time, so that they do not
/// take each other along.
///
/// They have no rank: the one that has waited longest comes first, whosever it is. A tenant with many of them makes another's
/// suspects wait, and never its other files, which go on beside them. Only deaths of workers make such lines long: each
/// adds as many suspects as the process worked on, and at most one last chance, as the suspects run one at a time. A file
/// leaves its line with the next attempt that ends, or with its third lost worker. So a line is worked off in the order
/// of minutes for each death, and a rank for it would cost every claim an index that is empty on all other days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimable {
    Untried,
    /// The same, but of none of these tenants: of those that come first, the others are looked for.
    UntriedExcept(Vec<TenantId>),
    Suspects,
    /// Those that would be given up if they lost one more worker: they run alone.
    LastChance,
}

/// How far another tenant's job is looked for.
const LOOKED_THROUGH_MAX: i64 = 64;

/// A job and its file, as it is while the stage works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedStageJob {
    pub job: LeasedJob,
    pub stage: Stage,
    pub file: File,
}

struct ClaimStage {
    claim: StageClaim,
    claim_id: String,
    committer: Committer,
}

impl Write for ClaimStage {
    type Answer = Claimed<LeasedStageJob>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let StageClaim { stage, plan, now, .. } = &self.claim;
        let Claimed { rows, rank } = self.lease(tx).await?;
        let jobs = engine::readable(tx, &STAGE_JOBS, &rows, *now, leased).await?;
        let ids: Vec<_> = jobs.iter().filter_map(|job| job.file).collect();
        let mut files = locks::lock_files(tx, &ids).await?;
        let (mut claimed, mut changes) = (Vec::new(), Vec::new());
        let (mut idle, mut unreadable) = (Vec::new(), Vec::new());
        for job in jobs {
            if job.file.is_some_and(|id| files.unreadable.contains(&id)) {
                unreadable.push(job.id.to_string());
                continue;
            }
            let file = job.file.and_then(|id| files.readable.remove(&id));
            match file.map(|file| processing::start(&file, *stage, plan, *now)) {
                Some(Ok(change)) => {
                    claimed.push(LeasedStageJob { job, stage: *stage, file: change.after.clone() });
                    changes.push(change);
                }
                // Its file is elsewhere by now: there is nothing to do.
                Some(Err(_)) | None => idle.push(job.id),
            }
        }
        engine::put_back(tx, &STAGE_JOBS, &unreadable, now.saturating_add(RETRY_MS)).await?;
        self.committer.apply_locked(tx, &changes).await?;
        effects::remove(tx, &idle).await?;
        claimed.sort_by_key(|claimed| claimed.job.id);
        Ok(TxOutcome::Commit(Claimed { rows: claimed, rank }))
    }
}

impl ClaimStage {
    async fn lease(&self, tx: &mut Tx<'_>) -> Result<Claimed<Row>, CatalogError> {
        let StageClaim { stage, owner, limit, of, lease_ms, deadline_ms, now, .. } = &self.claim;
        let mut args = args![owner.as_str(), now.saturating_add(*deadline_ms), self.claim_id.as_str()];
        let (waiting, order) = of.condition();
        let due = format!("state = 'waiting' AND {waiting}{}", self.of_tenants(&waiting, order, &mut args));
        let claim = Claim {
            queue: stage.queue(),
            now: *now,
            lease_until: now.saturating_add(*lease_ms.min(deadline_ms)),
            due: &due,
            order,
            by_rank: of.by_rank(),
            limit: *limit,
            args,
        };
        engine::claim(tx, &STAGE_JOBS, claim).await
    }

    /// With a fair order a tenant that waits is among the first; a bound keeps a long backlog unread.
    fn of_tenants(&self, waiting: &str, order: &str, args: &mut Vec<Arg>) -> String {
        let (is_in, tenants) = match (&self.claim.of, &self.claim.tenants) {
            (Claimable::UntriedExcept(tenants), _) => ("NOT IN", tenants),
            (_, Some(tenants)) => ("IN", tenants),
            (_, None) => return String::new(),
        };
        args.extend(tenants.iter().map(|tenant| Arg::from(tenant.as_str())));
        format!(
            " AND jobs.id IN (SELECT id FROM (SELECT id, tenant_id FROM jobs WHERE queue = $1 AND state = 'waiting' \
             AND {waiting} ORDER BY {order}, id LIMIT {LOOKED_THROUGH_MAX}) AS first_ones WHERE tenant_id {is_in} ({}))",
            places(7, tenants.len())
        )
    }
}

impl Claimable {
    fn by_rank(&self) -> bool {
        matches!(self, Claimable::Untried | Claimable::UntriedExcept(_))
    }

    /// Which of the waiting jobs, and in which order.
    fn condition(&self) -> (String, &'static str) {
        let comparison = match self {
            Claimable::Untried | Claimable::UntriedExcept(_) => return ("rank IS NOT NULL".into(), "rank"),
            Claimable::Suspects => "<",
            Claimable::LastChance => ">=",
        };
        let lost =
            format!("lost_leases > 0 AND lost_leases {comparison} {LAST_CHANCE_LOST} AND run_at <= $2");
        (lost, "run_at")
    }
}

/// As many workers lost as leave one more.
const LAST_CHANCE_LOST: i64 = processing::LOST_WORKERS_MAX - 1;

/// Of those who bring the same output at once, one is heard.
struct TakeIn {
    job: JobId,
    token: i64,
    begins: bool,
    lease_until: UnixMs,
}

impl Write for TakeIn {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        let (from, to) = if self.begins { (0, 1) } else { (1, 0) };
        let id = self.job.to_string();
        let changed = tx
            .run(
                "UPDATE jobs SET taking_in = $4 \
                 WHERE id = $1 AND lease_token = $2 AND state = 'leased' AND taking_in = $3",
                args![id.as_str(), self.token, i64::from(from), i64::from(to)],
            )
            .await?;
        if changed == 0 {
            return Ok(TxOutcome::Rollback(false));
        }
        engine::renew(tx, &STAGE_JOBS, (&id, self.token), self.lease_until).await?;
        Ok(TxOutcome::Commit(true))
    }
}

impl Catalog {
    /// False if the lease is lost, or somebody's output is being taken in under it.
    pub async fn begin_storing_output(
        &self,
        job: JobId,
        token: i64,
        lease_until: UnixMs,
    ) -> Result<bool, CatalogError> {
        self.write(TakeIn { job, token, begins: true, lease_until }).await
    }

    /// It was not to be had: it may be brought again.
    pub async fn abort_storing_output(&self, job: JobId, token: i64) -> Result<(), CatalogError> {
        self.write(TakeIn { job, token, begins: false, lease_until: 0 }).await.map(|_| ())
    }

    /// The file that is worked on under this very lease.
    pub async fn leased_stage_job(&self, job: JobId, token: i64) -> Result<Option<LeasedStageJob>, CatalogError> {
        let row = {
            let mut reader = self.reader().await?;
            let sql = "SELECT id, lease_token, queue, tenant_id, file_id, payload, attempts, max_attempts, lease_until \
                       FROM jobs WHERE id = $1 AND lease_token = $2 AND state = 'leased'";
            reader.tx(&self.faults).row(sql, args![job.to_string(), token]).await?
        };
        let Some(job) = row.as_ref().map(leased).transpose()? else { return Ok(None) };
        let (Some(stage), Some(file)) = (Stage::of_queue(&job.queue), job.file) else { return Ok(None) };
        Ok(self.file(file).await?.map(|file| LeasedStageJob { job, stage, file }))
    }

    /// Claims under an id of its own. An error with an unknown outcome names it: what it may have leased is to be given
    /// back by [`Catalog::release_claim`].
    pub async fn claim_stage(&self, claim: StageClaim) -> Result<Vec<LeasedStageJob>, ClaimError> {
        let claim_id = Uuid::new_v4().to_string();
        let (queue, now, by_rank) = (claim.stage.queue(), claim.now, claim.of.by_rank());
        let committer = self.committer(&claim.owner);
        let write = ClaimStage { claim, claim_id: claim_id.clone(), committer };
        let claimed = self.claim((&STAGE_JOBS, queue, now), by_rank, write).await;
        claimed.map_err(|error| {
            let claim_id = matches!(error, CatalogError::Unknown(_)).then_some(claim_id);
            ClaimError { error, claim_id }
        })
    }

    /// Gives due jobs of a stage their rank, a bounded number of them; answers how many.
    pub async fn rank_due(&self, stage: Stage, now: UnixMs) -> Result<usize, CatalogError> {
        self.rank_queue(&STAGE_JOBS, stage.queue(), now).await
    }

    /// Whether a job is due that has to run alone.
    pub async fn has_last_chance(&self, stages: &[Stage], now: UnixMs) -> Result<bool, CatalogError> {
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        for stage in stages {
            let sql = "SELECT id FROM jobs WHERE queue = $1 AND state = 'waiting' AND lost_leases > 0 \
                AND lost_leases >= $3 AND run_at <= $2 ORDER BY run_at, id LIMIT 1";
            if tx.row(sql, args![stage.queue(), now, LAST_CHANCE_LOST]).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A claim that did not go well.
#[derive(Debug)]
pub struct ClaimError {
    pub error: CatalogError,
    /// Set where it may have been made all the same.
    pub claim_id: Option<String>,
}
