//! Begins stuck files anew, many in one transaction: a job that is missing or unsound is replaced, so that whoever held
//! the old one holds nothing; a file that was begun anew too often has failed.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Change, File};
use wharfinger_lifecycle::id::{FileId, JobId, TenantId};
use wharfinger_lifecycle::limits::reason;
use wharfinger_lifecycle::processing::{self, Plan};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;
use wharfinger_lifecycle::transition::Refusal;

use crate::Catalog;
use crate::Tells;
use crate::database::sql::{Arg, Row, Tx, args, places};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;
use crate::files::stage_changes;
use crate::fresh_id;
use crate::jobs::stuck_files::{FAULT, STAGE_QUEUES};

/// The files to look at and who does. What they are found to be is decided under their locks.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub files: Vec<FileId>,
    pub of: Recoverable,
    pub actor: String,
    pub plan: Plan,
    pub now: UnixMs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recoverable {
    /// What has not got on for too long, and not more often than the plan has it.
    Overdue,
    /// Whatever a person names, at any time and however often it was begun anew.
    Named,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// It waits again for the stage that stopped.
    Queued { from: Status, retry_count: u32 },
    /// It was begun anew too often: a dead letter.
    GivenUp { tenant: TenantId, why: String },
    /// Its job is sound and waits: left alone.
    Waits,
    /// A worker is at it and in time: left alone.
    InWork { until: UnixMs },
    /// It got on, or is no longer there.
    MovedOn,
    /// Its row cannot be read: set aside.
    Unreadable,
}

struct RecoverFiles {
    recovery: Recovery,
    job_max_attempts: u32,
    tells: Tells,
}

impl Write for RecoverFiles {
    type Answer = Vec<(FileId, Recovered)>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let Recovery { files: ids, actor, now, .. } = &self.recovery;
        let stage_changes::LockedFiles { readable: mut files, unreadable } =
            stage_changes::lock_files(tx, ids).await?;
        let mut jobs = lock_jobs(tx, ids).await?;
        let mut faults = faults(tx, ids, *now).await?;
        let mut moves = Moves::default();
        let mut recovered = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(file) = files.remove(id) else {
                let is_there = unreadable.contains(id);
                recovered.push((*id, if is_there { Recovered::Unreadable } else { Recovered::MovedOn }));
                continue;
            };
            let jobs = jobs.remove(id).unwrap_or_default();
            let fault = faults.remove(id);
            let decided = self.decide(&file, &jobs, fault, &mut moves);
            recovered
                .push((*id, decided.map_err(|refusal| CatalogError::Corrupt(format!("{id}: {refusal}")))?));
        }
        if moves.changes.is_empty() && unreadable.is_empty() {
            return Ok(Verdict::Rollback(recovered));
        }
        moves.end_jobs(tx).await?;
        moves.insert_jobs(tx, self.job_max_attempts, *now).await?;
        stage_changes::write(tx, &moves.changes, actor, self.tells).await?;
        Ok(Verdict::Commit(recovered))
    }
}

impl RecoverFiles {
    fn decide(
        &self,
        file: &File,
        jobs: &[Job],
        fault: Option<String>,
        moves: &mut Moves,
    ) -> Result<Recovered, Refusal> {
        let Recovery { of, plan, now, .. } = &self.recovery;
        let is_due = *of == Recoverable::Named || file.next_look_at.is_some_and(|at| at <= *now);
        if !file.status.is_working() || !is_due {
            return Ok(Recovered::MovedOn);
        }
        let Some(fault) = fault else {
            let until = jobs.iter().find_map(|job| job.lease_until);
            return Ok(until.map_or(Recovered::Waits, |until| Recovered::InWork { until }));
        };
        // Whoever notices that a worker did not come back counts it, or poison would go unnoticed here.
        let lost = jobs.iter().map(|job| job.lost_after(*now)).max().unwrap_or(0);
        let tenant = file.tenant.clone();
        let is_lost = lost > 0 && processing::lost_worker_pause_ms(lost).is_none();
        let change = match of {
            Recoverable::Overdue if is_lost => {
                processing::fail(file, &processing::lost_workers(lost, file.stage), plan, *now)?
            }
            Recoverable::Overdue => processing::recover_or_give_up(file, &fault, plan, *now)?,
            Recoverable::Named => processing::recover(file, &fault, plan, *now)?,
        };
        let attempts = jobs.iter().map(|job| job.attempts).max().unwrap_or(0);
        let recovered = match (change.enqueues, &change.after.error) {
            (Some(_), _) => Recovered::Queued { from: file.status, retry_count: change.after.retry_count },
            (None, why) => Recovered::GivenUp { tenant, why: why.clone().unwrap_or_default() },
        };
        let mut job = NewJob::of(&change, fault, (lost, is_lost), attempts);
        if *of == Recoverable::Named {
            job.run_at = *now;
        }
        moves.jobs.push(job);
        moves.changes.push(change);
        Ok(recovered)
    }
}

/// A job of a stage, under its lock.
struct Job {
    /// None where it is not leased.
    lease_until: Option<UnixMs>,
    is_late: bool,
    attempts: i64,
    lost: i64,
}

impl Job {
    fn of(row: &Row) -> Result<Job, CatalogError> {
        let (lease_until, deadline_at) = (row.maybe_int("lease_until")?, row.maybe_int("deadline_at")?);
        let is_leased = row.text("state")? == "leased";
        Ok(Job {
            lease_until: lease_until.filter(|_| is_leased),
            is_late: is_leased && deadline_at <= lease_until,
            attempts: row.int("attempts")?,
            lost: row.int("lost_leases")?,
        })
    }

    /// Workers in a row that did not come back, a lease that is over by now among them. One that was only slow has.
    fn lost_after(&self, now: UnixMs) -> i64 {
        match self.lease_until {
            Some(until) if until <= now => {
                if self.is_late {
                    0
                } else {
                    self.lost + 1
                }
            }
            _ => self.lost,
        }
    }
}

fn listed(ids: &[FileId]) -> Vec<Arg> {
    ids.iter().flat_map(|id| args![id.to_string()]).collect()
}

/// After the files, as everybody who holds both locks them.
async fn lock_jobs(tx: &mut Tx<'_>, ids: &[FileId]) -> Result<BTreeMap<FileId, Vec<Job>>, CatalogError> {
    let lock = tx.dialect().pick("", "FOR UPDATE");
    let sql = format!(
        "SELECT file_id, state, lease_until, deadline_at, attempts, lost_leases FROM jobs \
         WHERE file_id IN ({}) AND queue IN ({}) ORDER BY id {lock}",
        places(1, ids.len()),
        *STAGE_QUEUES
    );
    let mut jobs: BTreeMap<FileId, Vec<Job>> = BTreeMap::new();
    for row in tx.rows_built(sql, listed(ids)).await? {
        // A job that cannot be read is no sound one.
        if let (Ok(file), Ok(job)) = (row.parsed("file_id"), Job::of(&row)) {
            jobs.entry(file).or_default().push(job);
        }
    }
    Ok(jobs)
}

/// Asked once the locks are held: what is sound now stays so until the end of the transaction.
async fn faults(
    tx: &mut Tx<'_>,
    ids: &[FileId],
    now: UnixMs,
) -> Result<BTreeMap<FileId, String>, CatalogError> {
    let sql =
        format!("SELECT f.id, {} AS fault FROM files f WHERE f.id IN ({})", *FAULT, places(2, ids.len()));
    let mut args = args![now];
    args.extend(listed(ids));
    let mut faults = BTreeMap::new();
    for row in tx.rows_built(sql, args).await? {
        if let Some(fault) = row.maybe_text("fault")? {
            faults.insert(row.parsed("id")?, fault);
        }
    }
    Ok(faults)
}

/// The job that takes the place of whatever a file had.
struct NewJob {
    file: FileId,
    tenant: TenantId,
    stage: Stage,
    fault: String,
    /// Of a dead letter.
    dead_reason: Option<String>,
    run_at: UnixMs,
    attempts: i64,
    lost: i64,
}

impl NewJob {
    fn of(change: &Change, fault: String, (lost, is_lost): (i64, bool), attempts: i64) -> NewJob {
        let after = &change.after;
        let is_dead = change.enqueues.is_none();
        let reason = match is_lost {
            true => processing::lost_workers(lost, after.stage),
            false => "recoveries used up".to_owned(),
        };
        let pause_ms = processing::lost_worker_pause_ms(lost).unwrap_or(0);
        NewJob {
            file: after.id,
            tenant: after.tenant.clone(),
            stage: after.stage.unwrap_or(Stage::ALL[0]),
            fault,
            dead_reason: is_dead.then_some(reason),
            run_at: after.updated_at.saturating_add(pause_ms),
            attempts: if is_dead { attempts } else { 0 },
            lost,
        }
    }
}

#[derive(Default)]
struct Moves {
    changes: Vec<Change>,
    jobs: Vec<NewJob>,
}

impl Moves {
    /// Whoever still works under one of these has lost its lease.
    async fn end_jobs(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let ids: Vec<FileId> = self.changes.iter().map(|change| change.after.id).collect();
        let sql = format!(
            "DELETE FROM jobs WHERE file_id IN ({}) AND queue IN ({})",
            places(1, ids.len()),
            *STAGE_QUEUES
        );
        tx.run_built(sql, listed(&ids)).await?;
        Ok(())
    }

    async fn insert_jobs(&self, tx: &mut Tx<'_>, max_attempts: u32, now: UnixMs) -> Result<(), CatalogError> {
        for jobs in self.jobs.chunks(tx.dialect().rows_max()) {
            let mut args = args![now, i64::from(max_attempts)];
            let mut rows = Vec::with_capacity(jobs.len());
            for job in jobs {
                rows.push(format!("({}, 0, $2, $1, $1)", places(args.len() + 1, 10)));
                let state = if job.dead_reason.is_some() { "dead" } else { "waiting" };
                args.extend(args![
                    JobId(fresh_id(now)).to_string(),
                    job.stage.queue(),
                    job.tenant.as_str(),
                    job.file.to_string(),
                    state,
                    job.attempts,
                    job.lost,
                    job.dead_reason.as_deref().map(reason),
                    reason(&job.fault),
                    job.run_at,
                ]);
            }
            let sql = format!(
                "INSERT INTO jobs (id, queue, tenant_id, file_id, state, attempts, lost_leases, dead_reason, last_error, \
                 run_at, lease_token, max_attempts, created_at, updated_at) VALUES {}",
                rows.join(", ")
            );
            tx.run_built(sql, args).await?;
        }
        Ok(())
    }
}

/// What is scheduled for later runs now.
struct BringForward {
    file: FileId,
    now: UnixMs,
}

impl Write for BringForward {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        let sql = format!(
            "UPDATE jobs SET run_at = $2, updated_at = $2 WHERE file_id = $1 AND state = 'waiting' AND rank IS NULL AND run_at > $2 \
             AND queue IN ({})",
            *STAGE_QUEUES
        );
        tx.run_built(sql, args![self.file.to_string(), self.now]).await?;
        Ok(Verdict::Commit(()))
    }
}

impl Catalog {
    /// What became of each, in order: all in one transaction, or none.
    pub async fn recover(&self, recovery: Recovery) -> Result<Vec<(FileId, Recovered)>, CatalogError> {
        if recovery.files.is_empty() {
            return Ok(Vec::new());
        }
        let job_max_attempts = self.job_max_attempts;
        self.write(RecoverFiles { recovery, job_max_attempts, tells: self.tells }).await
    }

    /// A file that waits for its next attempt need not wait for the time of it.
    pub async fn bring_forward(&self, file: FileId, now: UnixMs) -> Result<(), CatalogError> {
        self.write(BringForward { file, now }).await
    }
}
