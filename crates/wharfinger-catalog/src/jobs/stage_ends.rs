//! How a stage's attempt ends: the file's next state and its job's next queue in one transaction, fenced by the lease's
//! token and the file's version. Each of a batch has an outcome of its own.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{self, Change, File};
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::limits::reason;
use wharfinger_lifecycle::processing::{self, Plan};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;
use wharfinger_lifecycle::transition::Refusal;

use crate::Catalog;
use crate::Tells;
use crate::database::sql::{Row, Tx, args, places, typed_rows};
use crate::database::writer::{Verdict, Write};
use crate::derived::outputs::{self, TextPart};
use crate::error::CatalogError;
use crate::files::stage_changes;
use crate::jobs::stage_claims::forget;
use crate::jobs::stuck_files::STAGE_QUEUES;
use crate::unreadable::{self, Table};

/// When something has been away for so long, waiting for it spends attempts.
const OUTAGE_MS_MAX: i64 = 6 * 3_600_000;

#[derive(Clone, Debug)]
pub struct StageEnd {
    pub job: JobId,
    pub token: i64,
    pub how: Ending,
}

#[derive(Clone, Debug)]
pub enum Ending {
    Done(Output),
    /// Try again then, if an attempt is left.
    Retry {
        why: String,
        at: UnixMs,
    },
    /// Something that all files need is away: no attempt is spent, unless it has been away for too long.
    PutOff {
        why: String,
        at: UnixMs,
    },
    /// The file's own object could not be read: it waits as long as it has waited so far, within bounds. Other files
    /// do not wait. No attempt is spent, unless it has lasted for too long.
    Refused {
        why: String,
        jitter_ms: i64,
    },
    /// Trying again would not help.
    Failed {
        why: String,
    },
    /// Infected: nobody is to get at it.
    Quarantined {
        why: String,
    },
    /// The worker has to stop, and the file has no part in that: no attempt is spent.
    GivenBack,
}

/// What a stage has left for those after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// A JSON object to be kept, if there is something to say.
    pub said: Option<String>,
    /// The text that was extracted, in order.
    pub text: Option<Vec<TextPart>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Next(Stage),
    Ready,
    Retried,
    Failed,
    Quarantined,
    /// The token was not the current one: nothing was changed.
    LeaseLost,
}

struct EndStages {
    ends: Vec<StageEnd>,
    actor: String,
    plan: Plan,
    storage: outputs::Storage,
    tells: Tells,
    now: UnixMs,
}

impl Write for EndStages {
    type Answer = Vec<Ended>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let ids: Vec<JobId> = self.ends.iter().map(|end| end.job).collect();
        let (mut jobs, mut files) = lock(tx, &ids).await?;
        let mut moves = Moves::default();
        let mut ended = Vec::with_capacity(self.ends.len());
        for end in &self.ends {
            let held = jobs.remove(&end.job).filter(|job| job.token == end.token);
            let pair = held.and_then(|job| files.remove(&job.file).map(|file| (job, file)));
            let Some((job, file)) = pair.filter(|(job, file)| job.file_version == file.version) else {
                ended.push(Ended::LeaseLost);
                continue;
            };
            if let Ending::Done(output) = &end.how {
                outputs::keep(tx, &file, end, output, &self.storage, self.now).await?;
            }
            let decided = self.decide(&job, &file, &end.how, &mut moves);
            ended.push(decided.map_err(|refusal| CatalogError::Corrupt(format!("{}: {refusal}", file.id)))?);
        }
        moves.write(tx, self).await?;
        Ok(Verdict::Commit(ended))
    }
}

impl EndStages {
    fn decide(&self, job: &Held, file: &File, how: &Ending, moves: &mut Moves) -> Result<Ended, Refusal> {
        match how {
            Ending::Done(_) => {
                let change = processing::finish(file, &self.plan, self.now)?;
                let ended = match change.enqueues {
                    Some(stage) => {
                        moves.onward.push((job.id, stage));
                        Ended::Next(stage)
                    }
                    None => {
                        moves.over.push(job.id);
                        Ended::Ready
                    }
                };
                moves.changes.push(change);
                Ok(ended)
            }
            Ending::Retry { why, at } if job.attempts < job.max_attempts => {
                moves.changes.push(processing::retry(file, why, &self.plan, self.now)?);
                moves.back.push(Back {
                    job: job.id,
                    why: Some(why.clone()),
                    at: *at,
                    unspent: 0,
                    lost: 0,
                    put_off_since: None,
                });
                Ok(Ended::Retried)
            }
            Ending::PutOff { .. } | Ending::Refused { .. } => {
                let since = job.put_off_since.unwrap_or(self.now);
                let (why, at) = match how {
                    Ending::Refused { why, jitter_ms } => {
                        let waited_ms = self.now.saturating_sub(since);
                        (why, self.now + processing::refused_pause_ms(waited_ms) + jitter_ms)
                    }
                    Ending::PutOff { why, at } => (why, *at),
                    _ => unreachable!("matched above"),
                };
                let is_over = self.now.saturating_sub(since) >= OUTAGE_MS_MAX;
                if is_over && job.attempts >= job.max_attempts {
                    return self.bury(job, file, "attempts used up", why, moves);
                }
                moves.changes.push(processing::retry(file, why, &self.plan, self.now)?);
                let unspent = i64::from(!is_over);
                let why = Some(why.clone());
                moves.back.push(Back { job: job.id, why, at, unspent, lost: 0, put_off_since: Some(since) });
                Ok(Ended::Retried)
            }
            Ending::Retry { why, .. } => self.bury(job, file, "attempts used up", why, moves),
            Ending::Failed { why } => self.bury(job, file, why, why, moves),
            Ending::Quarantined { why } => {
                moves.changes.push(file::quarantine(file, why, self.now)?);
                moves.over.push(job.id);
                Ok(Ended::Quarantined)
            }
            Ending::GivenBack => {
                moves.changes.push(processing::retry(file, "given back", &self.plan, self.now)?);
                moves.back.push(Back {
                    job: job.id,
                    why: None,
                    at: self.now,
                    unspent: 1,
                    lost: job.lost,
                    put_off_since: job.put_off_since,
                });
                Ok(Ended::Retried)
            }
        }
    }

    fn bury(
        &self,
        job: &Held,
        file: &File,
        reason: &str,
        why: &str,
        moves: &mut Moves,
    ) -> Result<Ended, Refusal> {
        moves.changes.push(processing::fail(file, why, &self.plan, self.now)?);
        moves.dead.push((job.id, reason.to_owned(), why.to_owned()));
        Ok(Ended::Failed)
    }
}

/// A leased job under its lock.
struct Held {
    id: JobId,
    token: i64,
    file: FileId,
    file_version: i64,
    attempts: i64,
    max_attempts: i64,
    lost: i64,
    is_late: bool,
    put_off_since: Option<UnixMs>,
}

fn held(row: &Row) -> Result<Held, CatalogError> {
    Ok(Held {
        id: row.parsed("id")?,
        token: row.int("lease_token")?,
        file: row.parsed("file_id")?,
        file_version: row.maybe_int("file_version")?.unwrap_or(0),
        attempts: row.int("attempts")?,
        max_attempts: row.int("max_attempts")?,
        lost: row.int("lost_leases")?,
        put_off_since: row.maybe_int("put_off_since")?,
        is_late: row.maybe_int("deadline_at")? <= row.maybe_int("lease_until")?,
    })
}

/// Files first and jobs after them, each in the order of their ids, as every verb does that holds both.
async fn lock(
    tx: &mut Tx<'_>,
    ids: &[JobId],
) -> Result<(BTreeMap<JobId, Held>, BTreeMap<FileId, File>), CatalogError> {
    let listed = |ids: &[JobId]| ids.iter().flat_map(|id| args![id.to_string()]).collect();
    let sql = format!("SELECT file_id FROM jobs WHERE id IN ({})", places(1, ids.len()));
    let rows = tx.rows_built(sql, listed(ids)).await?;
    let files: Vec<FileId> = rows.iter().filter_map(|row| row.parsed("file_id").ok()).collect();
    let files = stage_changes::lock_files(tx, &files).await?.readable;
    let lock = tx.dialect().pick("", "FOR UPDATE");
    let sql = format!(
        "SELECT id, lease_token, file_id, file_version, attempts, max_attempts, lost_leases, deadline_at, lease_until, \
         put_off_since \
         FROM jobs WHERE id IN ({}) AND state = 'leased' ORDER BY id {lock}",
        places(1, ids.len())
    );
    let rows = tx.rows_built(sql, listed(ids)).await?;
    let (jobs, others) = unreadable::split(&rows, "id", held);
    unreadable::record(tx, Table::Jobs, &others).await?;
    Ok((jobs.into_iter().map(|job| (job.id, job)).collect(), files))
}

/// A job that waits again.
struct Back {
    job: JobId,
    why: Option<String>,
    at: UnixMs,
    /// Attempts that do not count.
    unspent: i64,
    lost: i64,
    put_off_since: Option<UnixMs>,
}

/// All that a transaction does to files and their jobs.
#[derive(Default)]
struct Moves {
    changes: Vec<Change>,
    onward: Vec<(JobId, Stage)>,
    over: Vec<JobId>,
    back: Vec<Back>,
    dead: Vec<(JobId, String, String)>,
}

impl Moves {
    async fn write(&self, tx: &mut Tx<'_>, ending: &EndStages) -> Result<(), CatalogError> {
        let now = ending.now;
        self.move_onward(tx, now).await?;
        forget(tx, &self.over).await?;
        for back in &self.back {
            tx.run(
                "UPDATE jobs SET state = 'waiting', rank = NULL, run_at = $2, updated_at = $3, attempts = attempts - $4, \
                 last_error = COALESCE($5, last_error), lost_leases = $6, put_off_since = $7, lease_owner = NULL, \
                 lease_until = NULL, deadline_at = NULL WHERE id = $1",
                args![
                    back.job.to_string(),
                    back.at,
                    now,
                    back.unspent,
                    back.why.as_deref().map(reason),
                    back.lost,
                    back.put_off_since
                ],
            )
            .await?;
        }
        for (job, of_death, why) in &self.dead {
            tx.run(
                "UPDATE jobs SET state = 'dead', updated_at = $2, dead_reason = $3, last_error = $4, \
                 lease_owner = NULL, lease_until = NULL, deadline_at = NULL WHERE id = $1",
                args![job.to_string(), now, reason(of_death), reason(why)],
            )
            .await?;
        }
        stage_changes::write(tx, &self.changes, &ending.actor, ending.tells).await
    }

    /// The job goes on with its file: a file has one job from its confirmation to its end.
    async fn move_onward(&self, tx: &mut Tx<'_>, now: UnixMs) -> Result<(), CatalogError> {
        for some in self.onward.chunks(tx.dialect().rows_max()) {
            let sql = format!(
                "WITH new (id, queue) AS (VALUES {}) \
                 UPDATE jobs SET queue = new.queue, state = 'waiting', rank = NULL, run_at = $1, updated_at = $1, created_at = $1, \
                 attempts = 0, lost_leases = 0, redrives = 0, put_off_since = NULL, last_error = NULL, lease_owner = NULL, \
                 lease_until = NULL, deadline_at = NULL FROM new WHERE jobs.id = new.id",
                typed_rows(2, &["TEXT", "TEXT"], some.len())
            );
            let mut args = args![now];
            args.extend(some.iter().flat_map(|(id, stage)| args![id.to_string(), stage.queue()]));
            tx.run_built(sql, args).await?;
        }
        Ok(())
    }
}

/// Takes back what workers did not come back from: that was an attempt. A file that loses its workers again and again has
/// failed.
struct TakeBack {
    ending: EndStages,
    jobs: Vec<JobId>,
    retry_at: UnixMs,
}

impl Write for TakeBack {
    type Answer = Vec<(FileId, Ended)>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let now = self.ending.now;
        let (jobs, mut files) = lock(tx, &self.jobs).await?;
        let mut moves = Moves::default();
        let mut taken = Vec::new();
        for job in jobs.values() {
            let still_over = tx
                .row(
                    "SELECT id FROM jobs WHERE id = $1 AND state = 'leased' AND lease_until <= $2",
                    args![job.id.to_string(), now],
                )
                .await?;
            let Some(file) = still_over.and_then(|_| files.remove(&job.file)) else { continue };
            if !file.status.is_working() || file.status == Status::Queued {
                moves.over.push(job.id);
                continue;
            }
            let ended = self.take(job, &file, &mut moves);
            taken.push((file.id, ended.map_err(|refusal| CatalogError::Corrupt(refusal.to_string()))?));
        }
        moves.write(tx, &self.ending).await?;
        Ok(Verdict::Commit(taken))
    }
}

impl TakeBack {
    fn take(&self, job: &Held, file: &File, moves: &mut Moves) -> Result<Ended, Refusal> {
        let stage = file.stage.map_or("its stage", Stage::as_str);
        let lost = if job.is_late { 0 } else { job.lost + 1 };
        let why = match job.is_late {
            true => format!("{stage} took longer than it may"),
            false => format!("the worker of {stage} did not come back"),
        };
        // A crash loop of minutes, or a neighbour, must not use up a file's chances: they come further and further apart.
        let at = match (lost, processing::lost_worker_pause_ms(lost)) {
            (0, _) => self.retry_at,
            (_, Some(pause_ms)) => self.ending.now.saturating_add(pause_ms),
            (_, None) => {
                let why = processing::lost_workers(lost, file.stage);
                return self.ending.bury(job, file, &why, &why, moves);
            }
        };
        let ended = self.ending.decide(job, file, &Ending::Retry { why, at }, moves)?;
        if let Some(back) = moves.back.last_mut().filter(|back| back.job == job.id) {
            back.lost = lost;
        }
        Ok(ended)
    }
}

/// Who ends stages, and when.
#[derive(Clone, Debug)]
pub struct EndBy<'a> {
    pub actor: &'a str,
    pub plan: &'a Plan,
    pub now: UnixMs,
}

impl Catalog {
    /// What came of each, in order.
    pub async fn end_stages(&self, ends: Vec<StageEnd>, by: EndBy<'_>) -> Result<Vec<Ended>, CatalogError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        self.write(self.ending(ends, by)).await
    }

    /// Jobs of stages whose lease or deadline is over and since when, the longest first, after a place in that order: one
    /// that cannot be taken back does not hide those behind it.
    pub async fn lost_stages(
        &self,
        now: UnixMs,
        after: Option<(UnixMs, JobId)>,
        limit: usize,
    ) -> Result<Vec<(UnixMs, JobId)>, CatalogError> {
        let (at, id) = after.map_or((i64::MIN, String::new()), |(at, id)| (at, id.to_string()));
        let sql = format!(
            "SELECT lease_until, id FROM jobs WHERE state = 'leased' AND lease_until <= $1 AND queue IN ({}) \
             AND (lease_until, id) > ($2, $3) ORDER BY lease_until, id LIMIT $4",
            *STAGE_QUEUES
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args![now, at, id, limit as i64]).await?;
        let decode = |row: &Row| Ok((row.int("lease_until")?, row.parsed("id")?));
        Ok(self.readable(Table::Jobs, "id", &rows, decode).await)
    }

    /// Takes back those of these whose lease or deadline is over.
    pub async fn take_back_stages(
        &self,
        jobs: Vec<JobId>,
        by: EndBy<'_>,
        retry_at: UnixMs,
    ) -> Result<Vec<(FileId, Ended)>, CatalogError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        self.write(TakeBack { ending: self.ending(Vec::new(), by), jobs, retry_at }).await
    }

    fn ending(&self, ends: Vec<StageEnd>, by: EndBy<'_>) -> EndStages {
        let storage =
            outputs::Storage { kind: self.storage_type, cleanup_max_attempts: self.cleanup_max_attempts };
        EndStages {
            ends,
            actor: by.actor.to_owned(),
            plan: by.plan.clone(),
            storage,
            tells: self.tells,
            now: by.now,
        }
    }
}
