//! Delayed jobs: enqueue, heartbeat, complete, fail. A claim raises the token of a job; writes with an older token change
//! nothing.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{FileId, JobId, TenantId};
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::fresh_id;
use crate::leases::engine;
use crate::leases::tables::JOBS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    pub queue: &'static str,
    pub tenant: TenantId,
    pub file: Option<FileId>,
    pub payload: Option<String>,
    pub run_at: UnixMs,
    pub max_attempts: u32,
}

/// What happened to a job whose attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOutcome {
    Retried,
    Dead,
    /// The token is not the current one: nothing was changed.
    LeaseLost,
}

/// Keeps a statement far below the maximum number of values of both databases.
const JOBS_PER_STATEMENT: usize = 200;

pub(crate) async fn insert_many(
    tx: &mut Tx<'_>,
    jobs: &[(JobId, NewJob)],
    now: UnixMs,
) -> Result<(), CatalogError> {
    let mut args = args![now];
    let mut rows = Vec::with_capacity(jobs.len());
    for (id, job) in jobs {
        let at = args.len();
        rows.push(format!("({}, 'waiting', 0, 0, $1, $1)", places(at + 1, 7)));
        args.extend(args![
            id.to_string(),
            job.queue,
            job.tenant.as_str(),
            job.file.map(|file| file.to_string()),
            job.payload.as_deref(),
            job.run_at,
            i64::from(job.max_attempts),
        ]);
    }
    let sql = format!(
        "INSERT INTO jobs (id, queue, tenant_id, file_id, payload, run_at, max_attempts, state, attempts, \
         lease_token, created_at, updated_at) VALUES {}",
        rows.join(", ")
    );
    tx.run_built(sql, args).await?;
    Ok(())
}

struct Enqueue {
    jobs: Vec<(JobId, NewJob)>,
    now: UnixMs,
}

impl Write for Enqueue {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        for chunk in self.jobs.chunks(JOBS_PER_STATEMENT) {
            insert_many(tx, chunk, self.now).await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

pub(crate) fn maybe_file(row: &Row) -> Result<Option<FileId>, CatalogError> {
    row.maybe_text("file_id")?
        .map(|id| id.parse().map_err(|_| CatalogError::Corrupt("file_id holds no id".into())))
        .transpose()
}

struct Complete {
    done: Vec<(JobId, i64)>,
}

impl Write for Complete {
    type Answer = Vec<JobId>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Vec<JobId>>, CatalogError> {
        let held: Vec<_> = self.done.iter().map(|(id, token)| (id.to_string(), *token)).collect();
        let rows = engine::finish(tx, &JOBS, &held, "id").await?;
        Ok(TxOutcome::Commit(rows.iter().map(|row| row.parsed("id")).collect::<Result<_, _>>()?))
    }
}

struct Heartbeat {
    id: JobId,
    token: i64,
    lease_ms: i64,
    now: UnixMs,
}

impl Write for Heartbeat {
    type Answer = Option<UnixMs>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let until = self.now.saturating_add(self.lease_ms);
        let renewed = engine::renew(tx, &JOBS, (&self.id.to_string(), self.token), until).await?;
        Ok(TxOutcome::Commit(renewed))
    }
}

struct Fail {
    id: JobId,
    token: i64,
    error: String,
    /// None: no further attempt.
    retry_at: Option<UnixMs>,
    now: UnixMs,
}

impl Write for Fail {
    type Answer = FailOutcome;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<FailOutcome>, CatalogError> {
        let held = (&*self.id.to_string(), self.token);
        let outcome = end_attempt(tx, held, &self.error, self.retry_at, self.now).await?;
        Ok(TxOutcome::Commit(outcome))
    }
}

async fn end_attempt(
    tx: &mut Tx<'_>,
    (id, token): (&str, i64),
    error: &str,
    retry_at: Option<UnixMs>,
    now: UnixMs,
) -> Result<FailOutcome, CatalogError> {
    let error = clip(error, ERROR_TEXT_BYTES_MAX);
    if retry_at.is_some() {
        let rows = "id = $4 AND lease_token = $5 AND state = 'leased' AND attempts < max_attempts";
        let set = ["last_error = $2", "updated_at = $3"];
        if engine::release(tx, &JOBS, rows, retry_at, &set, args![error, now, id, token]).await? == 1 {
            return Ok(FailOutcome::Retried);
        }
    }
    let reason = if retry_at.is_some() { "no attempts left" } else { "not retryable" };
    let died = tx
        .run(
            "UPDATE jobs SET state = 'dead', dead_reason = $3, last_error = $4, updated_at = $5, rank = NULL, \
             lease_owner = NULL, lease_until = NULL, deadline_at = NULL \
             WHERE id = $1 AND lease_token = $2 AND state = 'leased'",
            args![id, token, reason, error, now],
        )
        .await?;
    Ok(if died == 1 { FailOutcome::Dead } else { FailOutcome::LeaseLost })
}

/// Ends the attempts of jobs whose lease or deadline is over. They count as failed.
struct EndExpiredJobs {
    queue: &'static str,
    now: UnixMs,
    retry_at: UnixMs,
    limit: usize,
}

impl Write for EndExpiredJobs {
    type Answer = Vec<(JobId, FailOutcome)>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let mut outcomes = Vec::new();
        for (id, token) in engine::expired(tx, &JOBS, self.queue, self.now, self.limit).await? {
            // A job with an unreadable id is skipped.
            let Ok(job) = id.parse() else { continue };
            let held = (id.as_str(), token);
            let outcome = end_attempt(tx, held, "the lease ran out", Some(self.retry_at), self.now).await?;
            outcomes.push((job, outcome));
        }
        Ok(TxOutcome::Commit(outcomes))
    }
}

impl Catalog {
    pub async fn enqueue(&self, jobs: Vec<NewJob>, now: UnixMs) -> Result<Vec<JobId>, CatalogError> {
        let jobs: Vec<_> = jobs.into_iter().map(|job| (JobId(fresh_id(now)), job)).collect();
        let ids = jobs.iter().map(|(id, _)| *id).collect();
        self.write(Enqueue { jobs, now }).await?;
        Ok(ids)
    }

    /// Deletes completed jobs whose token is still the current one; returns those.
    pub async fn complete_jobs(&self, done: Vec<(JobId, i64)>) -> Result<Vec<JobId>, CatalogError> {
        self.write(Complete { done }).await
    }

    /// The new end of the lease, or none if it was lost.
    pub async fn heartbeat_job(
        &self,
        id: JobId,
        token: i64,
        lease_ms: i64,
        now: UnixMs,
    ) -> Result<Option<UnixMs>, CatalogError> {
        self.write(Heartbeat { id, token, lease_ms, now }).await
    }

    pub async fn fail_job(
        &self,
        id: JobId,
        token: i64,
        error: &str,
        retry_at: Option<UnixMs>,
        now: UnixMs,
    ) -> Result<FailOutcome, CatalogError> {
        self.write(Fail { id, token, error: error.to_owned(), retry_at, now }).await
    }

    pub async fn end_expired_jobs(
        &self,
        queue: &'static str,
        now: UnixMs,
        retry_at: UnixMs,
        limit: usize,
    ) -> Result<Vec<(JobId, FailOutcome)>, CatalogError> {
        self.write(EndExpiredJobs { queue, now, retry_at, limit }).await
    }

    /// When the next waiting job of any of these queues is due.
    pub async fn next_job_at(&self, queues: &[&'static str]) -> Result<Option<UnixMs>, CatalogError> {
        if queues.is_empty() {
            return Ok(None);
        }
        // Each SELECT reads the first entry of an index. A ranked job is due.
        let firsts: Vec<String> = (1..=queues.len())
            .map(|n| {
                format!(
                    "SELECT MIN(run_at) AS at FROM jobs WHERE state = 'waiting' AND rank IS NULL AND lost_leases = 0 \
                     AND queue = ${n} \
                     UNION ALL SELECT MIN(run_at) FROM jobs WHERE state = 'waiting' AND lost_leases > 0 AND queue = ${n} \
                     UNION ALL SELECT * FROM (SELECT CAST(0 AS BIGINT) FROM jobs WHERE state = 'waiting' \
                     AND rank IS NOT NULL AND queue = ${n} ORDER BY rank LIMIT 1) AS ranked_{n}"
                )
            })
            .collect();
        let sql = format!("SELECT MIN(at) AS at FROM ({}) AS firsts", firsts.join(" UNION ALL "));
        let queues = queues.iter().flat_map(|queue| args![*queue]).collect();
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, queues).await?;
        rows.first().map_or(Ok(None), |row| row.maybe_int("at"))
    }
}
