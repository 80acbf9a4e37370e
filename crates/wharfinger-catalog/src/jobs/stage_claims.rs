//! Claims of files for a stage: due jobs in a fair order between tenants, each with its file. The claim also sets the
//! status of the file.

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

/// The parameters of a claim.
#[derive(Clone, Debug)]
pub struct StageClaim {
    pub stage: Stage,
    /// The name of the worker, for the job and the history of the file.
    pub owner: String,
    pub limit: usize,
    pub of: Claimable,
    /// Only files of these tenants, searched among the first jobs of the queue. None: of all tenants.
    pub tenants: Option<Vec<TenantId>>,
    pub lease_ms: i64,
    /// Heartbeats extend the lease up to this deadline, so that a hung worker loses its job.
    pub deadline_ms: i64,
    pub plan: PipelinePlan,
    pub now: UnixMs,
}

/// Which jobs a claim takes. A file whose worker was lost may have killed it. A process runs one such suspect at a
/// time, so that one bad file does not end the attempts of others.
///
/// Suspects have no rank: the one that has waited longest comes first, of any tenant. Suspects of one tenant can delay
/// suspects of another, but not its other files, which run beside them. A fair order is not worth an index: a lost process
/// adds only the files that it worked on, and a file stops being a suspect after its next completed attempt or its third
/// lost worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimable {
    Untried,
    /// Untried jobs of other tenants than these, searched among the first jobs of the queue.
    UntriedExcept(Vec<TenantId>),
    Suspects,
    /// Suspects that fail for good if they lose one more worker. A process tries to run such a file alone for a while.
    LastChance,
}

/// How many first jobs of a queue are searched for jobs of certain tenants.
const SEARCHED_MAX: i64 = 64;

/// A leased job and its file, in the state that the claim has given it.
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
                // The file has left this stage: the job has nothing to do.
                Some(Err(_)) | None => idle.push(job.id),
            }
        }
        engine::unclaim(tx, &STAGE_JOBS, &unreadable, now.saturating_add(RETRY_MS)).await?;
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
        let due =
            format!("state = 'waiting' AND {waiting}{}", self.tenants_condition(&waiting, order, &mut args));
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

    /// A condition on the tenant, for the first jobs of the queue only: the fair order puts each waiting tenant among them,
    /// and a long backlog is not read.
    fn tenants_condition(&self, waiting: &str, order: &str, args: &mut Vec<Arg>) -> String {
        let (is_in, tenants) = match (&self.claim.of, &self.claim.tenants) {
            (Claimable::UntriedExcept(tenants), _) => ("NOT IN", tenants),
            (_, Some(tenants)) => ("IN", tenants),
            (_, None) => return String::new(),
        };
        args.extend(tenants.iter().map(|tenant| Arg::from(tenant.as_str())));
        format!(
            " AND jobs.id IN (SELECT id FROM (SELECT id, tenant_id FROM jobs WHERE queue = $1 AND state = 'waiting' \
             AND {waiting} ORDER BY {order}, id LIMIT {SEARCHED_MAX}) AS first_ones WHERE tenant_id {is_in} ({}))",
            places(7, tenants.len())
        )
    }
}

impl Claimable {
    fn by_rank(&self) -> bool {
        matches!(self, Claimable::Untried | Claimable::UntriedExcept(_))
    }

    /// The condition of the jobs, and their order.
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

/// One lost worker less than the maximum.
const LAST_CHANCE_LOST: i64 = processing::LOST_WORKERS_MAX - 1;

/// Marks a job while the output of its worker is being stored: of two concurrent requests one is accepted.
struct MarkStoringOutput {
    job: JobId,
    token: i64,
    starts: bool,
    lease_until: UnixMs,
}

impl Write for MarkStoringOutput {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        let (from, to) = if self.starts { (0, 1) } else { (1, 0) };
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
    /// False if the lease is lost, or an output is already being stored.
    pub async fn begin_storing_output(
        &self,
        job: JobId,
        token: i64,
        lease_until: UnixMs,
    ) -> Result<bool, CatalogError> {
        self.write(MarkStoringOutput { job, token, starts: true, lease_until }).await
    }

    /// The output could not be stored: the worker may send it again.
    pub async fn abort_storing_output(&self, job: JobId, token: i64) -> Result<(), CatalogError> {
        self.write(MarkStoringOutput { job, token, starts: false, lease_until: 0 }).await.map(|_| ())
    }

    /// The job and file of this lease. None: the lease is lost.
    pub async fn leased_stage_job(
        &self,
        job: JobId,
        token: i64,
    ) -> Result<Option<LeasedStageJob>, CatalogError> {
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

    /// Leases jobs under a new claim id. If the outcome of the commit is unknown, the error has the id: release its jobs
    /// with [`Catalog::release_claim`].
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

    /// Gives a bounded number of due jobs of a stage their rank; returns how many.
    pub async fn rank_due(&self, stage: Stage, now: UnixMs) -> Result<usize, CatalogError> {
        self.rank_queue(&STAGE_JOBS, stage.queue(), now).await
    }

    /// Whether a job with a last chance is due.
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

/// A failed claim.
#[derive(Debug)]
pub struct ClaimError {
    pub error: CatalogError,
    /// Set if the claim may have been committed.
    pub claim_id: Option<String>,
}
