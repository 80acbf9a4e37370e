//! Changing files: committing decided changes, and forgetting tombstones.

use wharfinger_lifecycle::file::{Change, File};
use wharfinger_lifecycle::id::{CleanupId, JobId};
use wharfinger_lifecycle::stage::{Stage, show_list};
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::Tells;
use crate::cleanups::pending;
use crate::database::sql::{Tx, args};
use crate::database::writer::{Verdict, Write};
use crate::derived::outputs;
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::batches;
use crate::files::retention;
use crate::fresh_id;
use crate::jobs::delayed::{self, NewJob};
use crate::outbox::archive;
use crate::outbox::notices::{self, NewNotice};
use crate::quota::charges;
use crate::quota::gate::{self, Gate};

/// A decided change with the name of who made it.
pub(crate) struct Commit {
    pub(crate) change: Change,
    pub(crate) actor: String,
    pub(crate) storage_type: &'static str,
    pub(crate) cleanup_max_attempts: u32,
    pub(crate) job_max_attempts: u32,
    pub(crate) cleanup_id: CleanupId,
    pub(crate) notice_id: uuid::Uuid,
    pub(crate) beside_redis: bool,
    pub(crate) tells: Tells,
}

impl Write for Commit {
    type Answer = Result<(), CatalogError>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let (before, after) = (&self.change.before, &self.change.after);
        let held = match self.beside_redis && self.change.refunded_bytes() > 0 {
            true => Some(gate::hold(tx, &after.tenant).await?),
            false => None,
        };
        if update(tx, before.version, after).await? == 0 {
            return Ok(Verdict::Rollback(Err(CatalogError::Stale)));
        }
        let now = after.updated_at;
        remember_steps(tx, &self.change, &self.actor).await?;
        archive::changed(tx, std::slice::from_ref(&self.change), &self.actor, self.tells).await?;
        if self.change.ends_jobs {
            delayed::end_for_file(tx, after.id).await?;
        } else if let Some(run_at) = self.change.moves_jobs_to {
            delayed::move_for_file(tx, after.id, run_at, now).await?;
        }
        if let Some(stage) = self.change.enqueues {
            let job = NewJob::of_stage(stage, after, self.job_max_attempts, now);
            delayed::insert(tx, JobId(fresh_id(now)), &job, now).await?;
        }
        if let Some(cleanup) = &self.change.cleanup {
            let order = pending::Order {
                id: self.cleanup_id,
                file: after.clone(),
                storage_type: self.storage_type,
                max_attempts: self.cleanup_max_attempts,
            };
            pending::insert(tx, &order, cleanup.reason.as_str(), cleanup.finish_at, now).await?;
            if !before.stages.is_empty() {
                outputs::end_for_file(tx, &order, cleanup, now).await?;
            }
        }
        if let Some(notice) = self.change.notice {
            let told = NewNotice::of_change(self.notice_id, &self.change, notice);
            notices::insert(tx, &[told], self.tells).await?;
        }
        self.settle_accounts(tx, held).await?;
        Ok(Verdict::Commit(Ok(())))
    }
}

impl Commit {
    async fn settle_accounts(&self, tx: &mut Tx<'_>, held: Option<Gate>) -> Result<(), CatalogError> {
        let (before, after) = (&self.change.before, &self.change.after);
        counters::changed(tx, std::slice::from_ref(&self.change)).await?;
        if after.charged_bytes > before.charged_bytes {
            return Err(CatalogError::Corrupt(format!("file {} would be charged anew", after.id)));
        }
        match self.change.refunded_bytes() {
            0 => Ok(()),
            bytes => charges::give_back(tx, &after.tenant, bytes, held, after.updated_at).await,
        }
    }
}

struct DateFailures;

impl Write for DateFailures {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        let sql =
            "UPDATE files SET failed_at = updated_at WHERE pipeline_status = 'failed' AND failed_at IS NULL";
        Ok(match tx.run(sql, args![]).await? {
            0 => Verdict::Rollback(()),
            _ => Verdict::Commit(()),
        })
    }
}

/// Removes a tombstone that nobody needs, with everything that hangs on it.
struct Forget {
    file: File,
}

impl Write for Forget {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<bool>, CatalogError> {
        let id = self.file.id.to_string();
        let gone = tx
            .run(
                "DELETE FROM files WHERE id = $1 AND version = $2 AND pipeline_status = 'deleted' \
                 AND charged_bytes = 0 \
                 AND NOT EXISTS (SELECT 1 FROM pending_cleanups WHERE document_id = $1)",
                args![id.as_str(), self.file.version],
            )
            .await?;
        if gone == 0 {
            return Ok(Verdict::Rollback(false));
        }
        for sql in [
            "DELETE FROM objects WHERE file_id = $1",
            "DELETE FROM file_history WHERE file_id = $1",
            "DELETE FROM jobs WHERE file_id = $1",
            "DELETE FROM stage_outputs WHERE file_id = $1",
        ] {
            tx.run(sql, args![id.as_str()]).await?;
        }
        counters::gone(tx, std::slice::from_ref(&self.file)).await?;
        if let Some(batch) = self.file.batch {
            batches::forget_if_empty(tx, batch).await?;
        }
        Ok(Verdict::Commit(true))
    }
}

async fn update(tx: &mut Tx<'_>, expected_version: i64, file: &File) -> Result<u64, CatalogError> {
    tx.run(
        "UPDATE files SET pipeline_status = $3, version = $4, charged_bytes = $5, retry_count = $6, \
         error = $7, etag = $8, object_version = $9, end_reason = $10, url_dead_at = $11, \
         next_look_at = $12, updated_at = $13, confirmed_at = $14, ready_at = $15, checksum_sha256 = $16, \
         stages = $17, stage = $18, failed_at = $19, warned_at = $20 WHERE id = $1 AND version = $2",
        args![
            file.id.to_string(),
            expected_version,
            file.status.as_str(),
            file.version,
            signed(file.charged_bytes),
            i64::from(file.retry_count),
            file.error.as_deref(),
            file.pin.as_ref().map(|pin| pin.etag.as_str()),
            file.pin.as_ref().and_then(|pin| pin.version_id.as_deref()),
            file.ended.map(|reason| reason.as_str()),
            file.url_dead_at,
            file.next_look_at,
            file.updated_at,
            file.confirmed_at,
            file.ready_at,
            file.checksum_sha256.as_deref(),
            show_list(&file.stages),
            file.stage.map(Stage::as_str),
            file.failed_at,
            file.warned_at,
        ],
    )
    .await
}

/// All steps of a change in one statement; the last has the file's new version.
async fn remember_steps(tx: &mut Tx<'_>, change: &Change, actor: &str) -> Result<(), CatalogError> {
    let Change { after: file, steps, .. } = change;
    if steps.is_empty() {
        return Ok(());
    }
    let mut args = args![file.id.to_string(), file.updated_at, actor];
    let mut rows = Vec::with_capacity(steps.len());
    for (n, step) in steps.iter().enumerate() {
        let at = args.len();
        rows.push(format!("($1, ${}, $2, ${}, ${}, ${}, $3)", at + 1, at + 2, at + 3, at + 4));
        let version = change.version_of_step(n);
        args.extend(args![version, step.from.map(Status::as_str), step.to.as_str(), step.reason.as_str()]);
    }
    let sql = format!(
        "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) VALUES {}",
        rows.join(", ")
    );
    tx.run_built(sql, args).await?;
    let reached = (change.after.id, change.before.version, change.after.version);
    retention::cut_histories(tx, std::iter::once(reached)).await
}

/// Sizes are bounded far below `i64::MAX` before they get here.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Catalog {
    /// Commits a decided change, or answers [`CatalogError::Stale`] if the row is no longer what was read.
    pub async fn commit(&self, change: Change, actor: &str) -> Result<(), CatalogError> {
        let now = change.after.updated_at;
        self.write(Commit {
            change,
            actor: actor.to_owned(),
            storage_type: self.storage_type,
            cleanup_max_attempts: self.cleanup_max_attempts,
            job_max_attempts: self.job_max_attempts,
            cleanup_id: CleanupId(fresh_id(now)),
            notice_id: fresh_id(now),
            beside_redis: self.beside_redis,
            tells: self.tells,
        })
        .await?
    }

    /// Says of failures that an older program wrote when they were.
    pub async fn date_failures(&self) -> Result<(), CatalogError> {
        self.write(DateFailures).await
    }

    /// False if the tombstone was not ready to be forgotten after all.
    pub async fn forget(&self, file: File) -> Result<bool, CatalogError> {
        self.write(Forget { file }).await
    }
}
