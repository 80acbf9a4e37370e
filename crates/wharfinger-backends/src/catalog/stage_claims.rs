//! Claiming files for a stage: the oldest jobs that are due, each with its file, which is in work from here on.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::processing::{self, Plan};
use wharfinger_lifecycle::stage::Stage;

use super::error::CatalogError;
use super::job_claims::{LeasedJob, leased};
use super::sql::{Tx, args, places};
use super::writer::{Verdict, Write};
use super::{Catalog, Tells, stage_changes};

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct StageClaim {
    pub stage: Stage,
    /// Names the worker, in the job and in the file's history.
    pub owner: String,
    pub limit: usize,
    pub of: Claimable,
    pub lease_ms: i64,
    /// Heartbeats move the lease, never this: a hung worker is not working.
    pub deadline_ms: i64,
    pub plan: Plan,
    pub now: UnixMs,
}

/// A file that a worker did not come back from may be what killed it: those are taken one at a time, so that they do not
/// take each other along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimable {
    Untried,
    Suspects,
}

/// A job and its file, as it is while the stage works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageJob {
    pub job: LeasedJob,
    pub stage: Stage,
    pub file: File,
}

struct ClaimStage {
    claim: StageClaim,
    tells: Tells,
}

impl Write for ClaimStage {
    type Answer = Vec<StageJob>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let StageClaim { stage, owner, plan, now, .. } = &self.claim;
        let jobs = self.claim.lease(tx).await?;
        if jobs.is_empty() {
            return Ok(Verdict::Rollback(Vec::new()));
        }
        let ids: Vec<_> = jobs.iter().filter_map(|job| job.file).collect();
        let mut files = stage_changes::lock_files(tx, &ids).await?;
        let (mut claimed, mut changes, mut idle) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            let file = job.file.and_then(|id| files.remove(&id));
            match file.map(|file| processing::start(&file, *stage, plan, *now)) {
                Some(Ok(change)) => {
                    claimed.push(StageJob { job, stage: *stage, file: change.after.clone() });
                    changes.push(change);
                }
                // Its file is elsewhere by now: there is nothing to do.
                Some(Err(_)) | None => idle.push(job.id),
            }
        }
        stage_changes::write(tx, &changes, owner, self.tells).await?;
        forget(tx, &idle).await?;
        claimed.sort_by_key(|claimed| claimed.job.id);
        Ok(Verdict::Commit(claimed))
    }
}

impl StageClaim {
    /// A job whose file somebody is changing just now is passed over, so nobody waits with a job in hand.
    async fn lease(&self, tx: &mut Tx<'_>) -> Result<Vec<LeasedJob>, CatalogError> {
        let suspicion = match self.of {
            Claimable::Untried => "jobs.lost_leases = 0",
            Claimable::Suspects => "jobs.lost_leases > 0",
        };
        let sql = tx.dialect().pick(
            "UPDATE jobs SET state = 'leased', attempts = attempts + 1, lease_token = lease_token + 1, \
             lease_owner = $3, lease_until = $4, deadline_at = $5, updated_at = $2, taking_in = 0, \
             file_version = (SELECT version + 1 FROM files WHERE files.id = jobs.file_id) \
             WHERE id IN (SELECT id FROM jobs WHERE queue = $1 AND state = 'waiting' AND run_at <= $2 \
             AND {suspicion} ORDER BY run_at, id LIMIT $6) RETURNING id, lease_token, queue, tenant_id, file_id, payload, attempts, \
             max_attempts, lease_until",
            "WITH due AS MATERIALIZED (SELECT jobs.id FROM jobs JOIN files ON files.id = jobs.file_id \
             WHERE jobs.queue = $1 AND jobs.state = 'waiting' AND jobs.run_at <= $2 \
             AND {suspicion} ORDER BY jobs.run_at, jobs.id LIMIT $6 FOR UPDATE OF jobs, files SKIP LOCKED) \
             UPDATE jobs SET state = 'leased', attempts = attempts + 1, lease_token = lease_token + 1, \
             lease_owner = $3, lease_until = $4, deadline_at = $5, updated_at = $2, taking_in = 0, \
             file_version = (SELECT version + 1 FROM files WHERE files.id = jobs.file_id) \
             WHERE id IN (SELECT id FROM due) RETURNING id, lease_token, queue, tenant_id, file_id, payload, attempts, \
             max_attempts, lease_until",
        );
        let sql = sql.replace("{suspicion}", suspicion);
        let args = args![
            self.stage.queue(),
            self.now,
            self.owner.as_str(),
            self.now.saturating_add(self.lease_ms.min(self.deadline_ms)),
            self.now.saturating_add(self.deadline_ms),
            self.limit as i64,
        ];
        tx.rows_built(sql, args).await?.iter().map(leased).collect()
    }
}

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

pub(super) async fn forget(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<(), CatalogError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let sql = format!("DELETE FROM jobs WHERE id IN ({})", places(1, jobs.len()));
    tx.run_built(sql, jobs.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
    Ok(())
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

    pub async fn claim_stage(&self, claim: StageClaim) -> Result<Vec<StageJob>, CatalogError> {
        self.write(ClaimStage { claim, tells: self.tells }).await
    }
}
