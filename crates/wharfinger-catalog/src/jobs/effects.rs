//! Effects of file changes on jobs. Each kind of effect needs few statements for many changes.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Change, JobEffect, JobRetry, NewStageJob};
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::stage::Stage;

use crate::database::sql::{Tx, args, places, typed_rows};
use crate::error::CatalogError;
use crate::fresh_id;

/// All effects of a set of changes, by kind.
#[derive(Default)]
struct Effects<'c> {
    without_jobs: Vec<FileId>,
    new: Vec<(&'c Change, &'c NewStageJob)>,
    rescheduled: Vec<(FileId, UnixMs)>,
    next_stages: Vec<(JobId, Stage)>,
    removed: Vec<JobId>,
    retried: Vec<&'c JobRetry>,
    dead: Vec<(JobId, &'c str, &'c str)>,
    redriven: Vec<JobId>,
}

pub(crate) async fn apply(
    tx: &mut Tx<'_>,
    changes: &[&Change],
    max_attempts: u32,
) -> Result<(), CatalogError> {
    let Some(now) = changes.iter().map(|change| change.after.updated_at).max() else { return Ok(()) };
    let effects = Effects::of(changes);
    let rows_max = tx.dialect().rows_max();
    for some in effects.without_jobs.chunks(rows_max) {
        delete_jobs_of(tx, some).await?;
    }
    for some in effects.new.chunks(rows_max) {
        insert(tx, some, max_attempts).await?;
    }
    for some in effects.rescheduled.chunks(rows_max) {
        reschedule(tx, some, now).await?;
    }
    for some in effects.next_stages.chunks(rows_max) {
        start_next_stages(tx, some, now).await?;
    }
    for some in effects.removed.chunks(rows_max) {
        remove(tx, some).await?;
    }
    for some in effects.retried.chunks(rows_max) {
        retry(tx, some, now).await?;
    }
    for some in effects.dead.chunks(rows_max) {
        mark_dead(tx, some, now).await?;
    }
    for some in effects.redriven.chunks(rows_max) {
        redrive(tx, some, now).await?;
    }
    Ok(())
}

impl<'c> Effects<'c> {
    fn of(changes: &[&'c Change]) -> Effects<'c> {
        let mut effects = Effects::default();
        for change in changes.iter().copied() {
            let file = change.after.id;
            match &change.job {
                JobEffect::Keep => {}
                JobEffect::RemoveAll => effects.without_jobs.push(file),
                JobEffect::ReplaceAll(job) => {
                    effects.without_jobs.push(file);
                    effects.new.push((change, job));
                }
                JobEffect::RescheduleAll(at) => effects.rescheduled.push((file, *at)),
                JobEffect::NextStage { job, stage } => effects.next_stages.push((*job, *stage)),
                JobEffect::Remove { job } => effects.removed.push(*job),
                JobEffect::Retry(retry) => effects.retried.push(retry),
                JobEffect::DeadLetter { job, reason, error } => effects.dead.push((*job, reason, error)),
                JobEffect::Redrive { job } => effects.redriven.push(*job),
            }
        }
        effects
    }
}

async fn delete_jobs_of(tx: &mut Tx<'_>, files: &[FileId]) -> Result<(), CatalogError> {
    let sql = format!("DELETE FROM jobs WHERE file_id IN ({})", places(1, files.len()));
    tx.run_built(sql, files.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
    Ok(())
}

pub(crate) async fn remove(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<(), CatalogError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let sql = format!("DELETE FROM jobs WHERE id IN ({})", places(1, jobs.len()));
    tx.run_built(sql, jobs.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
    Ok(())
}

async fn insert(
    tx: &mut Tx<'_>,
    new: &[(&Change, &NewStageJob)],
    max_attempts: u32,
) -> Result<(), CatalogError> {
    let mut args = args![i64::from(max_attempts)];
    let mut rows = Vec::with_capacity(new.len());
    for (change, job) in new {
        let now = change.after.updated_at;
        rows.push(format!("({}, 0, $1)", places(args.len() + 1, 12)));
        args.extend(args![
            JobId(fresh_id(now)).to_string(),
            job.stage.queue(),
            change.after.tenant.as_str(),
            change.after.id.to_string(),
            if job.dead_reason.is_some() { "dead" } else { "waiting" },
            job.attempts,
            job.lost_leases,
            job.dead_reason.as_deref(),
            job.last_error.as_deref(),
            job.run_at,
            now,
            now,
        ]);
    }
    let sql = format!(
        "INSERT INTO jobs (id, queue, tenant_id, file_id, state, attempts, lost_leases, dead_reason, last_error, \
         run_at, created_at, updated_at, lease_token, max_attempts) VALUES {}",
        rows.join(", ")
    );
    tx.run_built(sql, args).await?;
    Ok(())
}

/// A leased job waits again under a new token: a delayed check that ran too early reschedules itself.
async fn reschedule(
    tx: &mut Tx<'_>,
    rescheduled: &[(FileId, UnixMs)],
    now: UnixMs,
) -> Result<(), CatalogError> {
    let sql = format!(
        "WITH new (file_id, run_at) AS (VALUES {}) UPDATE jobs SET state = 'waiting', rank = NULL, run_at = new.run_at, \
         updated_at = $1, attempts = 0, lease_token = lease_token + 1, lease_owner = NULL, lease_until = NULL, \
         deadline_at = NULL FROM new WHERE jobs.file_id = new.file_id AND jobs.state IN ('waiting', 'leased')",
        typed_rows(2, &["TEXT", "BIGINT"], rescheduled.len())
    );
    let mut args = args![now];
    args.extend(rescheduled.iter().flat_map(|(file, at)| args![file.to_string(), *at]));
    tx.run_built(sql, args).await?;
    Ok(())
}

/// The job of a file moves to the queue of the next stage.
async fn start_next_stages(
    tx: &mut Tx<'_>,
    next: &[(JobId, Stage)],
    now: UnixMs,
) -> Result<(), CatalogError> {
    let sql = format!(
        "WITH new (id, queue) AS (VALUES {}) \
         UPDATE jobs SET queue = new.queue, state = 'waiting', rank = NULL, run_at = $1, updated_at = $1, created_at = $1, \
         attempts = 0, lost_leases = 0, redrives = 0, put_off_since = NULL, last_error = NULL, lease_owner = NULL, \
         lease_until = NULL, deadline_at = NULL FROM new WHERE jobs.id = new.id",
        typed_rows(2, &["TEXT", "TEXT"], next.len())
    );
    let mut args = args![now];
    args.extend(next.iter().flat_map(|(id, stage)| args![id.to_string(), stage.queue()]));
    tx.run_built(sql, args).await?;
    Ok(())
}

async fn retry(tx: &mut Tx<'_>, retried: &[&JobRetry], now: UnixMs) -> Result<(), CatalogError> {
    const TYPES: [&str; 6] = ["TEXT", "BIGINT", "BIGINT", "TEXT", "BIGINT", "BIGINT"];
    let sql = format!(
        "WITH new (id, run_at, unspent, error, lost_leases, put_off_since) AS (VALUES {}) \
         UPDATE jobs SET state = 'waiting', rank = NULL, run_at = new.run_at, updated_at = $1, \
         attempts = attempts - new.unspent, last_error = COALESCE(new.error, last_error), \
         lost_leases = new.lost_leases, put_off_since = new.put_off_since, lease_owner = NULL, lease_until = NULL, \
         deadline_at = NULL, claim_id = NULL FROM new WHERE jobs.id = new.id",
        typed_rows(2, &TYPES, retried.len())
    );
    let mut args = args![now];
    for retry in retried {
        args.extend(args![
            retry.job.to_string(),
            retry.run_at,
            retry.uncounted_attempts,
            retry.error.as_deref(),
            retry.lost_leases,
            retry.put_off_since,
        ]);
    }
    tx.run_built(sql, args).await?;
    Ok(())
}

async fn mark_dead(tx: &mut Tx<'_>, dead: &[(JobId, &str, &str)], now: UnixMs) -> Result<(), CatalogError> {
    let sql = format!(
        "WITH new (id, reason, error) AS (VALUES {}) UPDATE jobs SET state = 'dead', updated_at = $1, \
         dead_reason = new.reason, last_error = new.error, lease_owner = NULL, lease_until = NULL, deadline_at = NULL \
         FROM new WHERE jobs.id = new.id",
        typed_rows(2, &["TEXT", "TEXT", "TEXT"], dead.len())
    );
    let mut args = args![now];
    args.extend(dead.iter().flat_map(|(job, reason, error)| args![job.to_string(), *reason, *error]));
    tx.run_built(sql, args).await?;
    Ok(())
}

async fn redrive(tx: &mut Tx<'_>, jobs: &[JobId], now: UnixMs) -> Result<(), CatalogError> {
    let sql = format!(
        "UPDATE jobs SET state = 'waiting', rank = NULL, redrives = redrives + 1, attempts = 0, lost_leases = 0, \
         put_off_since = NULL, run_at = $1, updated_at = $1, created_at = $1, dead_reason = NULL, \
         lease_token = lease_token + 1 WHERE id IN ({})",
        places(2, jobs.len())
    );
    let mut args = args![now];
    args.extend(jobs.iter().flat_map(|id| args![id.to_string()]));
    tx.run_built(sql, args).await?;
    Ok(())
}
