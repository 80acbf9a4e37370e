//! Dead letters (`file-processing-dlq`): jobs of stages that are retried only when a person redrives them. Each belongs to
//! a failed file.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::Change;
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::processing::{self, PipelinePlan};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::Scope;
use crate::changes::Committer;
use crate::database::sql::{Arg, Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::files::locks;
use crate::jobs::effects;
use crate::unreadable::{SPARE_ROWS, Table};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub job: JobId,
    pub file: FileId,
    pub file_name: String,
    pub stage: Stage,
    pub reason: String,
    pub attempts: u32,
    pub last_error: Option<String>,
    pub died_at: UnixMs,
}

fn decode(row: &Row) -> Result<DeadLetter, CatalogError> {
    let queue = row.text("queue")?;
    Ok(DeadLetter {
        job: row.parsed("id")?,
        file: row.parsed("file_id")?,
        file_name: row.text("file_name")?,
        stage: Stage::of_queue(&queue)
            .ok_or_else(|| CatalogError::Corrupt(format!("a dead letter of {queue}")))?,
        reason: row.maybe_text("dead_reason")?.unwrap_or_default(),
        attempts: u32::try_from(row.int("attempts")?).unwrap_or(u32::MAX),
        last_error: row.maybe_text("last_error")?,
        died_at: row.int("updated_at")?,
    })
}

/// The job gets all its attempts again, and the file is queued. If the stage is not configured any more, see
/// [`processing::redrive`].
struct Redrive {
    letter: DeadLetter,
    committer: Committer,
    plan: PipelinePlan,
    redrives_max: Option<u32>,
    now: UnixMs,
}

/// The outcome of redriving a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveOutcome {
    /// The new status: queued, or ready if no stage of the file is configured any more.
    Done(Status),
    /// The dead letter or its file does not exist any more.
    NotFound,
    /// It has reached the limit of redrives.
    TooOften,
}

impl Write for Redrive {
    type Answer = RedriveOutcome;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<RedriveOutcome>, CatalogError> {
        let files = locks::lock_files(tx, &[self.letter.file]).await?;
        let Some(file) = files.readable.into_values().next().filter(|file| file.status == Status::Failed)
        else {
            return Ok(TxOutcome::Rollback(RedriveOutcome::NotFound));
        };
        let Some(redrives) = lock(tx, self.letter.job).await? else {
            return Ok(TxOutcome::Rollback(RedriveOutcome::NotFound));
        };
        if self.redrives_max.is_some_and(|max| redrives >= i64::from(max)) {
            return Ok(TxOutcome::Rollback(RedriveOutcome::TooOften));
        }
        let change = processing::redrive(&file, self.letter.job, &self.plan, self.now)
            .map_err(|refusal| CatalogError::Corrupt(refusal.to_string()))?;
        let status = change.after.status;
        self.committer.apply_locked(tx, &[change]).await?;
        Ok(TxOutcome::Commit(RedriveOutcome::Done(status)))
    }
}

/// Locks a dead letter; returns how often it was redriven. None: it does not exist.
async fn lock(tx: &mut Tx<'_>, job: JobId) -> Result<Option<i64>, CatalogError> {
    let sql = tx.dialect().pick(
        "SELECT redrives FROM jobs WHERE id = $1 AND state = 'dead'",
        "SELECT redrives FROM jobs WHERE id = $1 AND state = 'dead' FOR UPDATE",
    );
    tx.row(sql, args![job.to_string()]).await?.map(|row| row.int("redrives")).transpose()
}

/// Deletes the dead letter, and the stage of its file at which a redrive would start.
struct Discard {
    letter: DeadLetter,
    committer: Committer,
    now: UnixMs,
}

impl Write for Discard {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        let files = locks::lock_files(tx, &[self.letter.file]).await?;
        if lock(tx, self.letter.job).await?.is_none() {
            return Ok(TxOutcome::Rollback(false));
        }
        let failed = files.readable.values().filter(|file| file.status == Status::Failed);
        let changes: Vec<Change> =
            failed.map(|file| processing::discard(file, self.letter.job, self.now)).collect();
        self.committer.apply_locked(tx, &changes).await?;
        if changes.is_empty() {
            effects::remove(tx, &[self.letter.job]).await?;
        }
        Ok(TxOutcome::Commit(true))
    }
}

impl Catalog {
    /// Newest first, older than `before`.
    pub async fn dead_letters(
        &self,
        scope: &Scope,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, CatalogError> {
        let before = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let read = (limit + SPARE_ROWS) as i64;
        let mut letters =
            self.letters("jobs.id < $1 ORDER BY jobs.id DESC LIMIT $2", scope, args![before, read]).await?;
        letters.truncate(limit);
        Ok(letters)
    }

    pub async fn dead_letter(&self, scope: &Scope, job: JobId) -> Result<Option<DeadLetter>, CatalogError> {
        let found = self.letters("jobs.id = $1 LIMIT $2", scope, args![job.to_string(), 1i64]).await?;
        Ok(found.into_iter().next())
    }

    async fn letters(
        &self,
        rest: &'static str,
        scope: &Scope,
        mut args: Vec<Arg>,
    ) -> Result<Vec<DeadLetter>, CatalogError> {
        let owned = match scope {
            Scope::All => "",
            Scope::Tenant(tenant) => {
                args.extend(args![tenant.as_str()]);
                "files.tenant_id = $3 AND"
            }
            Scope::User(tenant, user) => {
                args.extend(args![tenant.as_str(), user.as_str()]);
                "files.tenant_id = $3 AND files.user_id = $4 AND"
            }
        };
        let queues: Vec<String> = Stage::ALL.iter().map(|stage| format!("'{}'", stage.queue())).collect();
        let sql = format!(
            "SELECT jobs.id, jobs.file_id, files.file_name, jobs.queue, jobs.dead_reason, jobs.attempts, \
             jobs.last_error, jobs.updated_at FROM jobs JOIN files ON files.id = jobs.file_id \
             WHERE jobs.state = 'dead' AND jobs.queue IN ({}) AND {owned} {rest}",
            queues.join(", ")
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        Ok(self.readable(Table::Jobs, "id", &rows, decode).await)
    }

    /// Processes a dead letter again, if it was redriven less than `redrives_max` times since its last successful stage.
    pub async fn redrive(
        &self,
        letter: DeadLetter,
        actor: &str,
        plan: &PipelinePlan,
        redrives_max: Option<u32>,
        now: UnixMs,
    ) -> Result<RedriveOutcome, CatalogError> {
        let (committer, plan) = (self.committer(actor), plan.clone());
        self.write(Redrive { letter, committer, plan, redrives_max, now }).await
    }

    /// Deletes the dead letter; the file stays failed.
    pub async fn discard(&self, letter: DeadLetter, actor: &str, now: UnixMs) -> Result<bool, CatalogError> {
        self.write(Discard { letter, committer: self.committer(actor), now }).await
    }
}
