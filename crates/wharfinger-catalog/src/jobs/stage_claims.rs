//! Claiming files for a stage: jobs that are due, in fair order between tenants, each with its file, which is in work from
//! here on.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{JobId, TenantId};
use wharfinger_lifecycle::processing::{self, Plan};
use wharfinger_lifecycle::stage::Stage;

use crate::Catalog;
use crate::changes::Committer;
use crate::database::sql::{Arg, Dialect, Row, Tx, args, places};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;
use crate::files::locks;
use crate::jobs::claims::{LeasedJob, leased};
use crate::jobs::effects;
use crate::leases::fair::{self, RANKED_AT_ONCE};
use crate::unreadable::{self, RETRY_MS, Table};

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
    pub plan: Plan,
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
    UntriedOfOthers(Vec<TenantId>),
    Suspects,
    /// Those that would be given up if they lost one more worker: they run alone.
    LastChance,
}

/// How far another tenant's job is looked for.
const LOOKED_THROUGH_MAX: i64 = 64;

/// A job and its file, as it is while the stage works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageJob {
    pub job: LeasedJob,
    pub stage: Stage,
    pub file: File,
}

/// Gives due jobs of a stage their rank.
struct RankDue {
    queue: &'static str,
    now: UnixMs,
}

impl Write for RankDue {
    type Answer = usize;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<usize>, CatalogError> {
        let ranked = rank_due(tx, self.queue, self.now).await?;
        Ok(if ranked == 0 { Verdict::Rollback(0) } else { Verdict::Commit(ranked) })
    }
}

async fn rank_due(tx: &mut Tx<'_>, queue: &str, now: UnixMs) -> Result<usize, CatalogError> {
    let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
    let sql = format!(
        "SELECT id, tenant_id FROM jobs WHERE queue = $1 AND state = 'waiting' AND rank IS NULL AND lost_leases = 0 \
         AND run_at <= $2 ORDER BY run_at, id LIMIT $3 {lock}"
    );
    let rows = tx.rows_built(sql, args![queue, now, RANKED_AT_ONCE as i64]).await?;
    fair::rank_rows(tx, "jobs", queue, &rows).await
}

struct ClaimStage {
    claim: StageClaim,
    claim_id: String,
    committer: Committer,
}

/// The claimed jobs, and the highest rank among them.
struct Claimed {
    jobs: Vec<StageJob>,
    rank: Option<i64>,
}

impl Write for ClaimStage {
    type Answer = Claimed;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let StageClaim { stage, plan, now, .. } = &self.claim;
        if tx.dialect() == Dialect::Sqlite && self.claim.is_of_untried() {
            rank_due(tx, stage.queue(), *now).await?;
        }
        let rows = self.lease(tx).await?;
        if rows.is_empty() {
            return Ok(Verdict::Commit(Claimed { jobs: Vec::new(), rank: None }));
        }
        let mut rank: Option<i64> = None;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            rank = rank.max(row.maybe_int("rank").ok().flatten());
            match leased(row) {
                Ok(job) => jobs.push(job),
                Err(error) => put_back(tx, &[row.text("id")?], Table::Jobs, &error, *now).await?,
            }
        }
        if let (Dialect::Sqlite, Some(rank)) = (tx.dialect(), rank) {
            fair::raise_virtual_time(tx, stage.queue(), rank).await?;
        }
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
                    claimed.push(StageJob { job, stage: *stage, file: change.after.clone() });
                    changes.push(change);
                }
                // Its file is elsewhere by now: there is nothing to do.
                Some(Err(_)) | None => idle.push(job.id),
            }
        }
        wait_again(tx, &unreadable, *now).await?;
        self.committer.apply_locked(tx, &changes).await?;
        effects::remove(tx, &idle).await?;
        claimed.sort_by_key(|claimed| claimed.job.id);
        Ok(Verdict::Commit(Claimed { jobs: claimed, rank }))
    }
}

/// Jobs that cannot be read wait, and keep no others from being claimed.
async fn put_back(
    tx: &mut Tx<'_>,
    jobs: &[String],
    table: Table,
    error: &CatalogError,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let found: Vec<(String, String)> = jobs.iter().map(|id| (id.clone(), error.to_string())).collect();
    unreadable::record(tx, table, &found).await?;
    wait_again(tx, jobs, now).await
}

async fn wait_again(tx: &mut Tx<'_>, jobs: &[String], now: UnixMs) -> Result<(), CatalogError> {
    for some in jobs.chunks(tx.dialect().rows_max()) {
        let sql = format!(
            "UPDATE jobs SET state = 'waiting', rank = NULL, run_at = $1, attempts = attempts - 1, lease_owner = NULL, \
             lease_until = NULL, deadline_at = NULL WHERE id IN ({})",
            places(2, some.len())
        );
        let mut args = args![now.saturating_add(RETRY_MS)];
        args.extend(some.iter().flat_map(|id| args![id.as_str()]));
        tx.run_built(sql, args).await?;
    }
    Ok(())
}

impl StageClaim {
    fn is_of_untried(&self) -> bool {
        matches!(self.of, Claimable::Untried | Claimable::UntriedOfOthers(_))
    }
}

impl ClaimStage {
    /// A job whose file somebody is changing just now is passed over, so nobody waits with a job in hand.
    async fn lease(&self, tx: &mut Tx<'_>) -> Result<Vec<Row>, CatalogError> {
        let StageClaim { stage, owner, limit, of, lease_ms, deadline_ms, now, .. } = &self.claim;
        let mut args = args![
            stage.queue(),
            *now,
            owner.as_str(),
            now.saturating_add(*lease_ms.min(deadline_ms)),
            now.saturating_add(*deadline_ms),
            self.claim_id.as_str(),
        ];
        let (mut due, order) = of.condition(&mut args);
        due.push_str(&self.of_tenants(&due, order, &mut args));
        // PostgreSQL locks the rows it takes; the outer query of SQLite has none to wait for.
        let sql = tx.dialect().pick(
            "{claim} WHERE id IN (SELECT jobs.id FROM jobs WHERE jobs.queue = $1 AND jobs.state = 'waiting' {due} \
             ORDER BY {order}, jobs.id LIMIT {limit}) {claimed}",
            "WITH due AS MATERIALIZED (SELECT jobs.id FROM jobs JOIN files ON files.id = jobs.file_id \
             WHERE jobs.queue = $1 AND jobs.state = 'waiting' {due} \
             ORDER BY {order}, jobs.id LIMIT {limit} FOR UPDATE OF jobs, files SKIP LOCKED) \
             {claim} WHERE {is_due} {claimed}",
        );
        let sql = sql
            .replace("{due}", &due)
            .replace("{order}", order)
            // A limit that PostgreSQL does not know it takes for a tenth of the table.
            .replace("{limit}", &limit.to_string())
            .replace("{is_due}", tx.dialect().is_due())
            .replace(
                "{claim}",
                "UPDATE jobs SET state = 'leased', attempts = attempts + 1, lease_token = lease_token + 1, \
                 lease_owner = $3, lease_until = $4, deadline_at = $5, updated_at = $2, claim_id = $6, taking_in = 0, \
                 file_version = (SELECT version + 1 FROM files WHERE files.id = jobs.file_id)",
            )
            .replace(
                "{claimed}",
                "RETURNING id, lease_token, queue, tenant_id, file_id, payload, attempts, max_attempts, lease_until, rank",
            );
        tx.rows_built(sql, args).await
    }
}

impl ClaimStage {
    /// With a fair order a tenant that waits is among the first; a bound keeps a long backlog unread.
    fn of_tenants(&self, due: &str, order: &str, args: &mut Vec<Arg>) -> String {
        let (is_in, tenants) = match (&self.claim.of, &self.claim.tenants) {
            (Claimable::UntriedOfOthers(tenants), _) => ("NOT IN", tenants),
            (_, Some(tenants)) => ("IN", tenants),
            (_, None) => return String::new(),
        };
        args.push(LOOKED_THROUGH_MAX.into());
        let bound = args.len();
        args.extend(tenants.iter().map(|tenant| Arg::from(tenant.as_str())));
        format!(
            " AND jobs.id IN (SELECT id FROM (SELECT id, tenant_id FROM jobs WHERE queue = $1 AND state = 'waiting' {due} \
             ORDER BY {order}, id LIMIT ${bound}) AS first_ones WHERE tenant_id {is_in} ({}))",
            places(bound + 1, tenants.len())
        )
    }
}

impl Claimable {
    /// Which of the waiting jobs, and in which order.
    fn condition(&self, args: &mut Vec<Arg>) -> (String, &'static str) {
        match self {
            Claimable::Untried | Claimable::UntriedOfOthers(_) => {
                ("AND jobs.rank IS NOT NULL".to_owned(), "jobs.rank")
            }
            Claimable::Suspects => {
                args.push(LAST_CHANCE_LOST.into());
                let at = args.len();
                (
                    format!("AND jobs.lost_leases > 0 AND jobs.lost_leases < ${at} AND jobs.run_at <= $2"),
                    "jobs.run_at",
                )
            }
            Claimable::LastChance => {
                args.push(LAST_CHANCE_LOST.into());
                let at = args.len();
                (
                    format!("AND jobs.lost_leases > 0 AND jobs.lost_leases >= ${at} AND jobs.run_at <= $2"),
                    "jobs.run_at",
                )
            }
        }
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

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<bool>, CatalogError> {
        let (from, to) = if self.begins { (0, 1) } else { (1, 0) };
        let changed = tx
            .run(
                "UPDATE jobs SET taking_in = $4, lease_until = CASE WHEN lease_until > $5 THEN lease_until \
                 WHEN deadline_at < $5 THEN deadline_at ELSE $5 END \
                 WHERE id = $1 AND lease_token = $2 AND state = 'leased' AND taking_in = $3",
                args![self.job.to_string(), self.token, i64::from(from), i64::from(to), self.lease_until],
            )
            .await?;
        Ok(Verdict::Commit(changed == 1))
    }
}

impl Catalog {
    /// False if the lease is lost, or somebody's output is being taken in under it.
    pub async fn begin_taking_in(
        &self,
        job: JobId,
        token: i64,
        lease_until: UnixMs,
    ) -> Result<bool, CatalogError> {
        self.write(TakeIn { job, token, begins: true, lease_until }).await
    }

    /// It was not to be had: it may be brought again.
    pub async fn stop_taking_in(&self, job: JobId, token: i64) -> Result<(), CatalogError> {
        self.write(TakeIn { job, token, begins: false, lease_until: 0 }).await.map(|_| ())
    }

    /// The file that is worked on under this very lease.
    pub async fn held_stage(&self, job: JobId, token: i64) -> Result<Option<StageJob>, CatalogError> {
        let row = {
            let mut reader = self.reader().await?;
            let sql = "SELECT id, lease_token, queue, tenant_id, file_id, payload, attempts, max_attempts, lease_until \
                       FROM jobs WHERE id = $1 AND lease_token = $2 AND state = 'leased'";
            reader.tx(&self.faults).row(sql, args![job.to_string(), token]).await?
        };
        let Some(job) = row.as_ref().map(leased).transpose()? else { return Ok(None) };
        let (Some(stage), Some(file)) = (Stage::of_queue(&job.queue), job.file) else { return Ok(None) };
        Ok(self.file(file).await?.map(|file| StageJob { job, stage, file }))
    }

    /// Claims under an id of its own. An error with an unknown outcome names it: what it may have leased is to be given
    /// back by [`Catalog::release_claim`].
    pub async fn claim_stage(&self, claim: StageClaim) -> Result<Vec<StageJob>, ClaimFailed> {
        let claim_id = Uuid::new_v4().to_string();
        let queue = claim.stage.queue();
        if self.dialect() == Dialect::Postgres && claim.is_of_untried() {
            self.rank_due(claim.stage, claim.now).await.map_err(ClaimFailed::surely)?;
        }
        let committer = self.committer(&claim.owner);
        match self.write(ClaimStage { claim, claim_id: claim_id.clone(), committer }).await {
            Ok(claimed) => {
                if self.dialect() == Dialect::Postgres {
                    self.note_claimed(queue, claimed.rank.into_iter()).await;
                }
                Ok(claimed.jobs)
            }
            Err(error @ CatalogError::Unknown(_)) => Err(ClaimFailed { error, unreceived: Some(claim_id) }),
            Err(error) => Err(ClaimFailed::surely(error)),
        }
    }

    /// Gives due jobs of a stage their rank, a bounded number of them; answers how many.
    pub async fn rank_due(&self, stage: Stage, now: UnixMs) -> Result<usize, CatalogError> {
        self.write(RankDue { queue: stage.queue(), now }).await
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
pub struct ClaimFailed {
    pub error: CatalogError,
    /// Set where it may have been made all the same.
    pub unreceived: Option<String>,
}

impl ClaimFailed {
    fn surely(error: CatalogError) -> ClaimFailed {
        ClaimFailed { error, unreceived: None }
    }
}
