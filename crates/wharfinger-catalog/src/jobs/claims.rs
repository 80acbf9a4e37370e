//! Claiming jobs that are not of a stage: the oldest that are due, in batches, each under a token that is raised at every claim.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{FileId, JobId};

use crate::Catalog;
use crate::database::sql::{Arg, Row, Tx, args, places};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;
use crate::jobs::delayed::maybe_file;
use crate::unreadable::{self, RETRY_MS, Table};

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
    pub now: UnixMs,
}

const CLAIM: &str = "UPDATE jobs SET state = 'leased', attempts = attempts + 1, \
    lease_token = lease_token + 1, lease_owner = $3, lease_until = $4, deadline_at = $5, updated_at = $2";
const CLAIMED: &str =
    "RETURNING id, lease_token, queue, tenant_id, file_id, payload, attempts, max_attempts, lease_until";

impl Write for JobClaim {
    type Answer = Vec<LeasedJob>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let mut jobs = self.claim_due(tx).await?;
        jobs.sort_by_key(|job| job.id);
        Ok(Verdict::Commit(jobs))
    }
}

impl JobClaim {
    fn args(&self) -> Vec<Arg> {
        args![
            self.queue,
            self.now,
            self.owner.as_str(),
            self.now.saturating_add(self.lease_ms.min(self.deadline_ms)),
            self.now.saturating_add(self.deadline_ms),
        ]
    }

    async fn claim_due(&self, tx: &mut Tx<'_>) -> Result<Vec<LeasedJob>, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
        let sql = format!(
            "WITH due AS MATERIALIZED (SELECT id FROM jobs \
             WHERE queue = $1 AND state = 'waiting' AND rank IS NULL AND lost_leases = 0 \
             AND run_at <= $2 ORDER BY run_at, id LIMIT {} {lock}) {CLAIM} WHERE {} {CLAIMED}",
            self.limit,
            tx.dialect().is_due(),
        );
        let rows = tx.rows_built(sql, self.args()).await?;
        readable(tx, &rows, self.now).await
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
             AND run_at <= $2 AND id IN ({}) ORDER BY id {lock}) {CLAIM} WHERE {} {CLAIMED}",
            places(6, self.ids.len()),
            tx.dialect().is_due(),
        );
        let mut args = self.claim.args();
        args.extend(self.ids.iter().flat_map(|id| args![id.to_string()]));
        let rows = tx.rows_built(sql, args).await?;
        Ok(Verdict::Commit(readable(tx, &rows, self.claim.now).await?))
    }
}

/// Those of the claimed rows that can be read; the others wait, and keep none from being claimed.
async fn readable(tx: &mut Tx<'_>, rows: &[Row], now: UnixMs) -> Result<Vec<LeasedJob>, CatalogError> {
    let (jobs, others) = unreadable::split(rows, "id", leased);
    unreadable::record(tx, Table::Jobs, &others).await?;
    for (id, _) in &others {
        tx.run(
            "UPDATE jobs SET state = 'waiting', rank = NULL, run_at = $2, lease_owner = NULL, lease_until = NULL, \
             deadline_at = NULL WHERE id = $1",
            args![id.as_str(), now.saturating_add(RETRY_MS)],
        )
        .await?;
    }
    Ok(jobs)
}

/// Whether a job could be claimed: one that waits has no lease yet.
pub(crate) fn is_readable(row: &Row) -> Result<(), CatalogError> {
    row.parsed::<JobId>("id")?;
    maybe_file(row)?;
    for text in ["queue", "tenant_id"] {
        row.text(text)?;
    }
    for number in ["lease_token", "attempts", "max_attempts"] {
        row.int(number)?;
    }
    row.maybe_text("payload").map(drop)
}

pub(crate) fn leased(row: &Row) -> Result<LeasedJob, CatalogError> {
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
        let decode = |row: &Row| Ok((row.parsed("id")?, row.int("run_at")?));
        Ok(self.readable(Table::Jobs, "id", &rows, decode).await)
    }
}
