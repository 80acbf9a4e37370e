//! Claiming jobs: the oldest that are due, in batches, each under a token that is raised at every claim.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{FileId, JobId};

use super::Catalog;
use super::error::CatalogError;
use super::jobs::maybe_file;
use super::sql::{Arg, Dialect, Row, Tx, args, places};
use super::writer::{Verdict, Write};

/// A claimed job, good while its token is the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedJob {
    pub id: JobId,
    pub token: i64,
    pub queue: String,
    pub tenant: String,
    pub file: Option<FileId>,
    pub payload: Option<String>,
    pub attempt: u32,
    pub max_attempts: u32,
    pub lease_until: UnixMs,
}

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct JobClaim {
    pub queue: &'static str,
    pub owner: String,
    pub limit: usize,
    pub lease_ms: i64,
    /// Heartbeats move the lease, never this: a hung worker is not working.
    pub deadline_ms: i64,
    /// No tenant has more than this many jobs of a queue in work at once.
    pub per_tenant_max: Option<u32>,
    pub now: UnixMs,
}

const CLAIM: &str = "UPDATE jobs SET state = 'leased', attempts = attempts + 1, \
    lease_token = lease_token + 1, lease_owner = $3, lease_until = $4, deadline_at = $5, updated_at = $2";
const CLAIMED: &str =
    "RETURNING id, lease_token, queue, tenant_id, file_id, payload, attempts, max_attempts, lease_until";

impl Write for JobClaim {
    type Answer = Vec<LeasedJob>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let mut jobs = match self.per_tenant_max {
            None => self.claim_due(tx).await?,
            Some(per_tenant_max) => self.claim_shares(tx, per_tenant_max).await?,
        };
        jobs.sort_by_key(|job| job.id);
        Ok(Verdict::Commit(jobs))
    }
}

impl JobClaim {
    fn args(&self, limit: usize) -> Vec<Arg> {
        args![
            self.queue,
            self.now,
            self.owner.as_str(),
            self.now.saturating_add(self.lease_ms.min(self.deadline_ms)),
            self.now.saturating_add(self.deadline_ms),
            limit as i64,
        ]
    }

    async fn claim_due(&self, tx: &mut Tx<'_>) -> Result<Vec<LeasedJob>, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
        let sql = format!(
            "WITH due AS MATERIALIZED (SELECT id FROM jobs \
             WHERE queue = $1 AND state = 'waiting' AND run_at <= $2 ORDER BY run_at, id LIMIT $6 {lock}) \
             {CLAIM} WHERE id IN (SELECT id FROM due) {CLAIMED}"
        );
        tx.rows_built(sql, self.args(self.limit)).await?.iter().map(leased).collect()
    }

    /// One round takes what fits of the oldest jobs of those who have not got their share. A long queue can
    /// fill a round and use little of it: what is left of the limit goes to another, in which it is passed over.
    async fn claim_shares(
        &self,
        tx: &mut Tx<'_>,
        per_tenant_max: u32,
    ) -> Result<Vec<LeasedJob>, CatalogError> {
        if tx.dialect() == Dialect::Postgres {
            // Two claims that count at the same time would each fill the cap.
            tx.rows("SELECT CAST(pg_advisory_xact_lock(hashtext($1)) AS TEXT)", args![self.queue]).await?;
        }
        let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
        let sql = format!(
            "WITH due AS MATERIALIZED (SELECT id, tenant_id, run_at FROM jobs \
             WHERE queue = $1 AND state = 'waiting' AND run_at <= $2 AND tenant_id NOT IN \
             (SELECT tenant_id FROM jobs WHERE queue = $1 AND state = 'leased' \
             GROUP BY tenant_id HAVING COUNT(*) >= $7) ORDER BY run_at, id LIMIT $6 {lock}), \
             placed AS (SELECT due.id, ROW_NUMBER() OVER (PARTITION BY due.tenant_id \
             ORDER BY due.run_at, due.id) + (SELECT COUNT(*) FROM jobs AS held WHERE held.queue = $1 \
             AND held.state = 'leased' AND held.tenant_id = due.tenant_id) AS place FROM due) \
             {CLAIM} WHERE id IN (SELECT id FROM placed WHERE place <= $7) {CLAIMED}"
        );
        let mut jobs: Vec<LeasedJob> = Vec::new();
        while jobs.len() < self.limit {
            let mut args = self.args(self.limit - jobs.len());
            args.push(i64::from(per_tenant_max).into());
            let round = tx.rows_built(sql.clone(), args).await?;
            if round.is_empty() {
                break;
            }
            for row in &round {
                jobs.push(leased(row)?);
            }
        }
        Ok(jobs)
    }
}

/// Claims these jobs and no others, if they wait and are due.
struct ClaimThese {
    claim: JobClaim,
    ids: Vec<JobId>,
}

impl Write for ClaimThese {
    type Answer = Vec<LeasedJob>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
        let sql = format!(
            "WITH due AS MATERIALIZED (SELECT id FROM jobs WHERE queue = $1 AND state = 'waiting' \
             AND run_at <= $2 AND id IN ({}) ORDER BY id LIMIT $6 {lock}) \
             {CLAIM} WHERE id IN (SELECT id FROM due) {CLAIMED}",
            places(7, self.ids.len())
        );
        let mut args = self.claim.args(self.ids.len());
        args.extend(self.ids.iter().flat_map(|id| args![id.to_string()]));
        let jobs = tx.rows_built(sql, args).await?.iter().map(leased).collect::<Result<_, _>>()?;
        Ok(Verdict::Commit(jobs))
    }
}

pub(super) fn leased(row: &Row) -> Result<LeasedJob, CatalogError> {
    Ok(LeasedJob {
        id: row.parsed("id")?,
        token: row.int("lease_token")?,
        queue: row.text("queue")?,
        tenant: row.text("tenant_id")?,
        file: maybe_file(row)?,
        payload: row.maybe_text("payload")?,
        attempt: u32::try_from(row.int("attempts")?).unwrap_or(u32::MAX),
        max_attempts: u32::try_from(row.int("max_attempts")?).unwrap_or(u32::MAX),
        lease_until: row.int("lease_until")?,
    })
}

impl Catalog {
    pub async fn claim_jobs(&self, claim: JobClaim) -> Result<Vec<LeasedJob>, CatalogError> {
        self.write(claim).await
    }

    /// Of these jobs, those that are due now; the limit of the claim is not heeded.
    pub async fn claim_these_jobs(
        &self,
        claim: JobClaim,
        ids: Vec<JobId>,
    ) -> Result<Vec<LeasedJob>, CatalogError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.write(ClaimThese { claim, ids }).await
    }

    /// Of these jobs, those that wait for a later time, with that time.
    pub async fn waiting_jobs(&self, ids: &[JobId]) -> Result<Vec<(JobId, UnixMs)>, CatalogError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT id, run_at FROM jobs WHERE state = 'waiting' AND id IN ({})",
            places(1, ids.len())
        );
        let args = ids.iter().flat_map(|id| args![id.to_string()]).collect();
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        rows.iter().map(|row| Ok((row.parsed("id")?, row.int("run_at")?))).collect()
    }
}
