//! Ends attempts at stages. One transaction writes the next state of the file and the next queue of its job, if the lease
//! token and the file version are still current. `lifecycle::stage_end` decides each attempt separately.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::stage_end::{self, AttemptOutcome, CompletionResult, HeldJob};
use wharfinger_lifecycle::state::Status;
use wharfinger_lifecycle::transition::TransitionError;

use crate::Catalog;
use crate::changes::Committer;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::derived::outputs;
use crate::error::CatalogError;
use crate::files::locks;
use crate::jobs::effects;
use crate::jobs::stuck_files::STAGE_QUEUES;
use crate::unreadable::{self, Table};

#[derive(Clone, Debug)]
pub struct StageEnd {
    pub job: JobId,
    pub token: i64,
    pub outcome: AttemptOutcome,
}

/// The actor, plan and time of stage ends.
#[derive(Clone, Debug)]
pub struct StageEndContext<'a> {
    pub actor: &'a str,
    pub plan: &'a PipelinePlan,
    pub now: UnixMs,
}

struct EndStages {
    ends: Vec<StageEnd>,
    committer: Committer,
    plan: PipelinePlan,
    now: UnixMs,
}

impl Write for EndStages {
    type Answer = Vec<CompletionResult>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let ids: Vec<JobId> = self.ends.iter().map(|end| end.job).collect();
        let (mut jobs, mut files) = lock(tx, &ids).await?;
        let mut changes = Vec::with_capacity(self.ends.len());
        let mut ended = Vec::with_capacity(self.ends.len());
        for end in &self.ends {
            let leased = jobs.remove(&end.job).filter(|job| job.token == end.token);
            let pair = leased.and_then(|job| files.remove(&job.file).map(|file| (job, file)));
            let Some((job, file)) = pair.filter(|(job, file)| job.file_version == file.version) else {
                ended.push(CompletionResult::LeaseLost);
                continue;
            };
            if let Some(output) = end.outcome.output(&self.plan) {
                outputs::store(tx, &file, end, output, &self.committer, self.now).await?;
            }
            let decided = stage_end::decide(&file, &job.held, &end.outcome, &self.plan, self.now);
            let (change, result) = decided.map_err(|refusal| refused(&file, refusal))?;
            changes.push(change);
            ended.push(result);
        }
        self.committer.apply_locked(tx, &changes).await?;
        Ok(TxOutcome::Commit(ended))
    }
}

fn refused(file: &File, refusal: TransitionError) -> CatalogError {
    CatalogError::Corrupt(format!("file {}: {refusal}", file.id))
}

/// A leased and locked job.
struct LockedJob {
    held: HeldJob,
    token: i64,
    file: FileId,
    file_version: i64,
    lease_until: UnixMs,
    claim_id: Option<String>,
}

fn decode(row: &Row) -> Result<LockedJob, CatalogError> {
    let lease_until = row.int("lease_until")?;
    Ok(LockedJob {
        held: HeldJob {
            id: row.parsed("id")?,
            attempts: row.int("attempts")?,
            max_attempts: row.int("max_attempts")?,
            lost_leases: row.int("lost_leases")?,
            deadline_exceeded: row
                .maybe_int("deadline_at")?
                .is_none_or(|deadline_at| deadline_at <= lease_until),
            put_off_since: row.maybe_int("put_off_since")?,
        },
        token: row.int("lease_token")?,
        file: row.parsed("file_id")?,
        file_version: row.maybe_int("file_version")?.unwrap_or(0),
        lease_until,
        claim_id: row.maybe_text("claim_id")?,
    })
}

/// Locks files first and jobs after them, each in the order of their ids, as in recoveries.rs. Otherwise two transactions
/// could deadlock.
async fn lock(
    tx: &mut Tx<'_>,
    ids: &[JobId],
) -> Result<(BTreeMap<JobId, LockedJob>, BTreeMap<FileId, File>), CatalogError> {
    let listed = |ids: &[JobId]| ids.iter().flat_map(|id| args![id.to_string()]).collect();
    let sql = format!("SELECT file_id FROM jobs WHERE id IN ({})", places(1, ids.len()));
    let rows = tx.rows_built(sql, listed(ids)).await?;
    let files: Vec<FileId> = rows.iter().filter_map(|row| row.parsed("file_id").ok()).collect();
    let files = locks::lock_files(tx, &files).await?.readable;
    let lock = tx.dialect().pick("", "FOR UPDATE");
    let sql = format!(
        "SELECT id, lease_token, file_id, file_version, attempts, max_attempts, lost_leases, deadline_at, lease_until, \
         put_off_since, claim_id FROM jobs WHERE id IN ({}) AND state = 'leased' ORDER BY id {lock}",
        places(1, ids.len())
    );
    let rows = tx.rows_built(sql, listed(ids)).await?;
    let (jobs, others) = unreadable::split(&rows, "id", decode);
    unreadable::record(tx, Table::Jobs, &others).await?;
    Ok((jobs.into_iter().map(|job| (job.held.id, job)).collect(), files))
}

/// Releases all jobs of a claim whose answer was lost: no worker has received them.
struct ReleaseClaim {
    claim_id: String,
    committer: Committer,
    plan: PipelinePlan,
    now: UnixMs,
}

impl Write for ReleaseClaim {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let sql = "SELECT id FROM jobs WHERE claim_id = $1 AND state = 'leased'";
        let rows = tx.rows(sql, args![self.claim_id.as_str()]).await?;
        let ids: Vec<JobId> = rows.iter().filter_map(|row| row.parsed("id").ok()).collect();
        if ids.is_empty() {
            return Ok(TxOutcome::Rollback(0));
        }
        let (jobs, files) = lock(tx, &ids).await?;
        let mut changes = Vec::new();
        // Another claim may have leased some of them since.
        for job in jobs.values().filter(|job| job.claim_id.as_deref() == Some(self.claim_id.as_str())) {
            let file = files.get(&job.file).filter(|file| file.version == job.file_version);
            let released = file.map(|file| {
                stage_end::decide(file, &job.held, &AttemptOutcome::Released, &self.plan, self.now)
            });
            changes.extend(released.and_then(Result::ok).map(|(change, _)| change));
        }
        self.committer.apply_locked(tx, &changes).await?;
        Ok(TxOutcome::Commit(changes.len() as u64))
    }
}

/// Ends attempts whose lease or deadline is over.
struct EndExpiredStageJobs {
    jobs: Vec<JobId>,
    committer: Committer,
    plan: PipelinePlan,
    retry_at: UnixMs,
    now: UnixMs,
}

impl Write for EndExpiredStageJobs {
    type Answer = Vec<(FileId, CompletionResult)>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let (jobs, mut files) = lock(tx, &self.jobs).await?;
        let (mut changes, mut idle, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs.values().filter(|job| job.lease_until <= self.now) {
            let Some(file) = files.remove(&job.file) else { continue };
            if !file.status.is_working() || file.status == Status::Queued {
                idle.push(job.held.id);
                continue;
            }
            let decided = stage_end::lost_worker(&file, &job.held, self.retry_at, &self.plan, self.now);
            let (change, result) = decided.map_err(|refusal| refused(&file, refusal))?;
            changes.push(change);
            ended.push((file.id, result));
        }
        effects::remove(tx, &idle).await?;
        self.committer.apply_locked(tx, &changes).await?;
        Ok(TxOutcome::Commit(ended))
    }
}

impl Catalog {
    /// Returns the results in the order of `ends`.
    pub async fn end_stages(
        &self,
        ends: Vec<StageEnd>,
        by: StageEndContext<'_>,
    ) -> Result<Vec<CompletionResult>, CatalogError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let committer = self.committer(by.actor);
        self.write(EndStages { ends, committer, plan: by.plan.clone(), now: by.now }).await
    }

    /// Releases the jobs of a claim whose answer was lost; returns how many. No attempt is counted.
    pub async fn release_claim(&self, claim_id: &str, by: StageEndContext<'_>) -> Result<u64, CatalogError> {
        let (claim_id, committer) = (claim_id.to_owned(), self.committer(by.actor));
        self.write(ReleaseClaim { claim_id, committer, plan: by.plan.clone(), now: by.now }).await
    }

    /// A page of stage jobs whose lease or deadline is over, with the end of the lease, oldest first. The cursor lets the
    /// caller get past jobs that it cannot end.
    pub async fn expired_stage_jobs(
        &self,
        now: UnixMs,
        after: Option<(UnixMs, JobId)>,
        limit: usize,
    ) -> Result<Vec<(UnixMs, JobId)>, CatalogError> {
        let (mut at, mut id) = after.map_or((i64::MIN, String::new()), |(at, id)| (at, id.to_string()));
        let sql = format!(
            "SELECT lease_until, id FROM jobs WHERE state = 'leased' AND lease_until <= $1 AND queue IN ({}) \
             AND (lease_until, id) > ($2, $3) ORDER BY lease_until, id LIMIT $4",
            *STAGE_QUEUES
        );
        let decode = |row: &Row| Ok((row.int("lease_until")?, row.parsed("id")?));
        loop {
            let mut reader = self.reader().await?;
            let args = args![now, at, id.as_str(), limit as i64];
            let rows = reader.tx(&self.faults).rows_built(sql.clone(), args).await?;
            drop(reader);
            let page = self.readable(Table::Jobs, "id", &rows, decode).await;
            match unreadable::next_cursor(&page, &rows, limit, |row| {
                unreadable::cursor_of(row, "lease_until")
            }) {
                Some(next) => (at, id) = next,
                None => return Ok(page),
            }
        }
    }

    /// Ends the attempts of those of these jobs whose lease or deadline is over.
    pub async fn end_expired_stage_jobs(
        &self,
        jobs: Vec<JobId>,
        by: StageEndContext<'_>,
        retry_at: UnixMs,
    ) -> Result<Vec<(FileId, CompletionResult)>, CatalogError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let committer = self.committer(by.actor);
        self.write(EndExpiredStageJobs { jobs, committer, plan: by.plan.clone(), retry_at, now: by.now })
            .await
    }
}
