//! Claims of jobs that do not belong to a stage: the oldest due ones, in batches. Each claim raises the token of a job.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{FileId, JobId};

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::jobs::delayed::maybe_file;
use crate::leases::engine::{self, Claim};
use crate::leases::tables::JOBS;
use crate::unreadable::Table;

/// A claimed job, valid while its token is the current one.
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

/// A delayed check that waits, and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingCheck {
    pub job: JobId,
    pub file: FileId,
    pub tenant: String,
    pub size: u64,
    pub run_at: UnixMs,
}

/// The parameters of a claim.
#[derive(Clone, Debug)]
pub struct JobClaim {
    pub queue: &'static str,
    pub owner: String,
    pub limit: usize,
    pub lease_ms: i64,
    /// Heartbeats extend the lease up to this deadline, so that a hung worker loses its job.
    pub deadline_ms: i64,
    pub now: UnixMs,
}

struct ClaimJobs {
    claim: JobClaim,
    /// Claims the due ones of these jobs and ignores the limit. None: claims from all jobs.
    ids: Option<Vec<JobId>>,
}

impl Write for ClaimJobs {
    type Answer = Vec<LeasedJob>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let JobClaim { queue, owner, limit, lease_ms, deadline_ms, now } = &self.claim;
        let mut args = args![owner.as_str(), now.saturating_add(*deadline_ms)];
        let (due, limit) = match &self.ids {
            None => (format!("{} AND run_at <= $2", JOBS.scheduled), *limit),
            Some(ids) => {
                let listed = places(6, ids.len());
                args.extend(ids.iter().flat_map(|id| args![id.to_string()]));
                (format!("state = 'waiting' AND run_at <= $2 AND id IN ({listed})"), ids.len())
            }
        };
        let claim = Claim {
            queue,
            now: *now,
            lease_until: now.saturating_add(*lease_ms.min(deadline_ms)),
            due: &due,
            order: "run_at",
            by_rank: false,
            limit,
            args,
        };
        let claimed = engine::claim(tx, &JOBS, claim).await?;
        let mut jobs = engine::readable(tx, &JOBS, &claimed.rows, *now, leased).await?;
        jobs.sort_by_key(|job| job.id);
        Ok(TxOutcome::Commit(jobs))
    }
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
        // NULL for a waiting job, which `recheck_unreadable` decodes, too.
        lease_until: row.maybe_int("lease_until")?.unwrap_or_default(),
    })
}

impl Catalog {
    pub async fn claim_jobs(&self, claim: JobClaim) -> Result<Vec<LeasedJob>, CatalogError> {
        self.write(ClaimJobs { claim, ids: None }).await
    }

    /// Claims the due ones of these jobs. The limit of the claim is ignored.
    pub async fn claim_jobs_by_id(
        &self,
        claim: JobClaim,
        ids: Vec<JobId>,
    ) -> Result<Vec<LeasedJob>, CatalogError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.write(ClaimJobs { claim, ids: Some(ids) }).await
    }

    /// Those of these jobs that wait, with their files.
    pub async fn waiting_checks(&self, ids: &[JobId]) -> Result<Vec<WaitingCheck>, CatalogError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT j.id, j.run_at, j.file_id, f.tenant_id, f.size FROM jobs j JOIN files f ON f.id = j.file_id \
             WHERE j.state = 'waiting' AND j.id IN ({})",
            places(1, ids.len())
        );
        let args = ids.iter().flat_map(|id| args![id.to_string()]).collect();
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        let decode = |row: &Row| {
            Ok(WaitingCheck {
                job: row.parsed("id")?,
                file: row.parsed("file_id")?,
                tenant: row.text("tenant_id")?,
                size: row.bytes("size")?,
                run_at: row.int("run_at")?,
            })
        };
        Ok(self.readable(Table::Jobs, "id", &rows, decode).await)
    }
}
