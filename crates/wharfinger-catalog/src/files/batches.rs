//! Batches of uploads. Adding to a batch takes a shared lock of its row, ending it an exclusive one. So no file is added
//! to an ended batch, and no batch ends while a file is being added.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{Batch, BatchError, BatchStatus};
use wharfinger_lifecycle::file::{self, File};
use wharfinger_lifecycle::id::{BatchId, FileId};

use crate::Catalog;
use crate::RowSettings;
use crate::changes::Committer;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::rows::{self, select_files};
use crate::fresh_id;
use crate::outbox::archive;
use crate::outbox::notifications::{self, NewNotification};
use crate::quota::charges::tenant_of;
use crate::unreadable::{self, Table, cursor_of, next_cursor};

/// How a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchEnding {
    Completed,
    Cancelled,
    Expired,
}

/// The outcome of ending a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchEndOutcome {
    /// The batch has ended. The checks of its unconfirmed files are due now; `unconfirmed` is their number.
    Ended {
        batch: Batch,
        unconfirmed: u64,
    },
    /// Nothing happened; the batch is as it was.
    Refused {
        batch: Batch,
        refusal: BatchError,
    },
    NotFound,
}

/// How many files of a batch are confirmed and unconfirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchTotals {
    pub(crate) confirmed: u64,
    /// Registered files, and those that were reclaimed unconfirmed.
    pub(crate) unconfirmed: u64,
    pub(crate) unconfirmed_bytes: u64,
}

macro_rules! select_batch {
    ($rest:literal) => {
        concat!(
            "SELECT id, tenant_id, user_id, status, version, created_at, expires_at, ended_at FROM upload_batches ",
            $rest
        )
    };
}

pub(crate) fn decode(row: &Row) -> Result<Batch, CatalogError> {
    let status = row.text("status")?;
    Ok(Batch {
        id: row.parsed("id")?,
        tenant: tenant_of(row)?,
        user: rows::user_of(row)?,
        status: BatchStatus::parse(&status)
            .ok_or_else(|| CatalogError::Corrupt(format!("a batch's status is {status:?}")))?,
        version: row.int("version")?,
        created_at: row.int("created_at")?,
        expires_at: row.int("expires_at")?,
        ended_at: row.maybe_int("ended_at")?,
    })
}

pub(crate) async fn insert(tx: &mut Tx<'_>, batch: &Batch) -> Result<(), CatalogError> {
    tx.run(
        "INSERT INTO upload_batches (id, tenant_id, user_id, status, version, created_at, expires_at, ended_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        args![
            batch.id.to_string(),
            batch.tenant.as_str(),
            batch.user.as_str(),
            batch.status.as_str(),
            batch.version,
            batch.created_at,
            batch.expires_at,
            batch.ended_at,
        ],
    )
    .await?;
    Ok(())
}

/// The batch cannot end before this transaction ends. SQLite has one writer and needs no lock.
pub(crate) async fn lock_shared(tx: &mut Tx<'_>, id: BatchId) -> Result<Option<Batch>, CatalogError> {
    let sql = tx.dialect().pick(select_batch!("WHERE id = $1"), select_batch!("WHERE id = $1 FOR SHARE"));
    tx.row(sql, args![id.to_string()]).await?.as_ref().map(decode).transpose()
}

/// The batch cannot end or grow before this transaction ends.
async fn lock_exclusive(tx: &mut Tx<'_>, id: BatchId) -> Result<Option<Batch>, CatalogError> {
    let sql = tx.dialect().pick(select_batch!("WHERE id = $1"), select_batch!("WHERE id = $1 FOR UPDATE"));
    tx.row(sql, args![id.to_string()]).await?.as_ref().map(decode).transpose()
}

/// An ended batch is deleted with the last of its files.
pub(crate) async fn delete_if_empty(tx: &mut Tx<'_>, id: BatchId) -> Result<(), CatalogError> {
    tx.run(
        "DELETE FROM upload_batches WHERE id = $1 AND status <> 'active' \
         AND NOT EXISTS (SELECT 1 FROM files WHERE batch_id = $1)",
        args![id.to_string()],
    )
    .await?;
    Ok(())
}

async fn totals(tx: &mut Tx<'_>, id: BatchId) -> Result<BatchTotals, CatalogError> {
    let row = tx
        .row(
            "SELECT COUNT(CASE WHEN pipeline_status NOT IN ('registered', 'deleted') THEN 1 END) AS confirmed, \
             COUNT(CASE WHEN pipeline_status = 'registered' OR (end_reason = 'reclaimed' AND confirmed_at IS NULL) THEN 1 END) AS unconfirmed, \
             CAST(COALESCE(SUM(CASE WHEN pipeline_status = 'registered' OR (end_reason = 'reclaimed' AND confirmed_at IS NULL) THEN size END), 0) \
             AS BIGINT) AS unconfirmed_bytes FROM files WHERE batch_id = $1",
            args![id.to_string()],
        )
        .await?
        .ok_or_else(|| CatalogError::Corrupt("a COUNT returned no row".into()))?;
    Ok(BatchTotals {
        confirmed: row.bytes("confirmed")?,
        unconfirmed: row.bytes("unconfirmed")?,
        unconfirmed_bytes: row.bytes("unconfirmed_bytes")?,
    })
}

struct EndBatch {
    id: BatchId,
    ending: BatchEnding,
    committer: Committer,
    now: UnixMs,
    notification_id: Uuid,
}

impl Write for EndBatch {
    type Answer = BatchEndOutcome;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<BatchEndOutcome>, CatalogError> {
        let Committer { actor, rows: RowSettings { targets, .. } } = &self.committer;
        let Some(before) = lock_exclusive(tx, self.id).await? else {
            return Ok(TxOutcome::Rollback(BatchEndOutcome::NotFound));
        };
        let totals = totals(tx, self.id).await?;
        let decided = match self.ending {
            BatchEnding::Completed => before.complete(totals.unconfirmed, self.now),
            BatchEnding::Cancelled => before.cancel(self.now),
            BatchEnding::Expired => before.expire(self.now),
        };
        let batch = match decided {
            Ok(batch) => batch,
            Err(refusal) => {
                return Ok(TxOutcome::Rollback(BatchEndOutcome::Refused { batch: before, refusal }));
            }
        };
        let changed = tx
            .run(
                "UPDATE upload_batches SET status = $3, version = $4, ended_at = $5 WHERE id = $1 AND version = $2",
                args![
                    batch.id.to_string(),
                    before.version,
                    batch.status.as_str(),
                    batch.version,
                    batch.ended_at
                ],
            )
            .await?;
        if changed == 0 {
            return Err(CatalogError::Stale);
        }
        let unconfirmed = match self.ending {
            BatchEnding::Completed => 0,
            BatchEnding::Cancelled | BatchEnding::Expired => self.make_checks_due(tx).await?,
        };
        if self.ending == BatchEnding::Expired {
            let notification =
                NewNotification::of_expired_batch(self.notification_id, &batch, &totals, self.now);
            notifications::insert(tx, &[notification], *targets).await?;
        }
        archive::batch_changed(tx, &batch, actor, self.now, *targets).await?;
        counters::record_other_change(tx, &batch.tenant, &batch.user).await?;
        Ok(TxOutcome::Commit(BatchEndOutcome::Ended { batch, unconfirmed }))
    }
}

/// Files that are locked by one statement.
const FILES_PER_STATEMENT: usize = 500;

impl EndBatch {
    /// Makes the checks of all unconfirmed files due now; returns how many.
    async fn make_checks_due(&self, tx: &mut Tx<'_>) -> Result<u64, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE");
        let sql = format!(
            "{} WHERE batch_id = $1 AND pipeline_status = 'registered' AND id > $2 ORDER BY id LIMIT $3 {lock}",
            select_files!("")
        );
        let (mut after, mut changes) = (String::new(), Vec::new());
        // All files are locked before jobs and counters, because other transactions lock these last.
        loop {
            let args = args![self.id.to_string(), after.as_str(), FILES_PER_STATEMENT as i64];
            let found = tx.rows_built(sql.clone(), args).await?;
            let (files, others) = unreadable::split(&found, "id", rows::decode);
            unreadable::record(tx, Table::Files, &others).await?;
            changes.extend(files.iter().map(|file| file::make_check_due(file, self.now)));
            match found.last() {
                Some(last) if found.len() == FILES_PER_STATEMENT => after = last.text("id")?,
                _ => break,
            }
        }
        self.committer.apply_locked(tx, &changes).await?;
        Ok(changes.len() as u64)
    }
}

impl Catalog {
    pub async fn batch(&self, id: BatchId) -> Result<Option<Batch>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = select_batch!("WHERE id = $1");
        let row = reader.tx(&self.faults).row(sql, args![id.to_string()]).await?;
        row.as_ref().map(decode).transpose()
    }

    /// In the order of their ids, deleted ones included.
    pub async fn batch_files(
        &self,
        id: BatchId,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<File>, CatalogError> {
        let mut after = after.map_or_else(String::new, |id| id.to_string());
        let sql = select_files!("WHERE batch_id = $1 AND id > $2 ORDER BY id LIMIT $3");
        loop {
            let mut reader = self.reader().await?;
            let args = args![id.to_string(), after.as_str(), limit as i64];
            let rows = reader.tx(&self.faults).rows(sql, args).await?;
            drop(reader);
            let page = self.readable(Table::Files, "id", &rows, rows::decode).await;
            match next_cursor(&page, &rows, limit, |row| row.text("id")) {
                Some(next) => after = next,
                None => return Ok(page),
            }
        }
    }

    /// Ends a batch and makes the checks of its unconfirmed files due. The same transaction notifies the owner of an
    /// expired batch.
    pub async fn end_batch(
        &self,
        id: BatchId,
        ending: BatchEnding,
        actor: &str,
        now: UnixMs,
    ) -> Result<BatchEndOutcome, CatalogError> {
        let (committer, notification_id) = (self.committer(actor), fresh_id(now));
        self.write(EndBatch { id, ending, committer, now, notification_id }).await
    }

    /// A page of active batches that have expired, with the time of that, oldest first.
    pub async fn overdue_batches(
        &self,
        now: UnixMs,
        after: Option<(UnixMs, BatchId)>,
        limit: usize,
    ) -> Result<Vec<(UnixMs, BatchId)>, CatalogError> {
        let (mut at, mut id) = after.map_or((i64::MIN, String::new()), |(at, id)| (at, id.to_string()));
        let decode = |row: &Row| Ok((row.int("expires_at")?, row.parsed("id")?));
        loop {
            let mut reader = self.reader().await?;
            let rows = reader
                .tx(&self.faults)
                .rows(
                    "SELECT expires_at, id FROM upload_batches WHERE status = 'active' AND expires_at <= $1 \
                     AND (expires_at, id) > ($2, $3) ORDER BY expires_at, id LIMIT $4",
                    args![now, at, id.as_str(), limit as i64],
                )
                .await?;
            drop(reader);
            let page = self.readable(Table::Batches, "id", &rows, decode).await;
            match next_cursor(&page, &rows, limit, |row| cursor_of(row, "expires_at")) {
                Some(next) => (at, id) = next,
                None => return Ok(page),
            }
        }
    }
}
