//! Batches of uploads. Whoever adds to a batch shares its row, whoever ends it has it alone: a file is never added to
//! a batch that has ended, and a batch never ends over a file that is just being added.

use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{Batch, BatchStatus, BatchError};
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
use crate::outbox::notices::{self, NewNotice};
use crate::quota::charges::tenant_of;
use crate::unreadable::{self, Table, behind, place};

/// How a batch is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchEnding {
    Completed,
    Cancelled,
    Expired,
}

/// What came of ending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchEndOutcome {
    /// So many files were still waited for and are due now.
    Ended {
        batch: Batch,
        unconfirmed: u64,
    },
    /// Nothing happened: the batch as it is.
    Refused {
        batch: Batch,
        refusal: BatchError,
    },
    NotFound,
}

/// What the files of a batch have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) confirmed: u64,
    /// They wait, or were reclaimed.
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

/// Nobody ends it until this transaction has. SQLite has one writer, and that is us.
pub(crate) async fn hold(tx: &mut Tx<'_>, id: BatchId) -> Result<Option<Batch>, CatalogError> {
    let sql = tx.dialect().pick(select_batch!("WHERE id = $1"), select_batch!("WHERE id = $1 FOR SHARE"));
    tx.row(sql, args![id.to_string()]).await?.as_ref().map(decode).transpose()
}

/// Nobody adds to it or ends it until this transaction has ended.
async fn lock(tx: &mut Tx<'_>, id: BatchId) -> Result<Option<Batch>, CatalogError> {
    let sql = tx.dialect().pick(select_batch!("WHERE id = $1"), select_batch!("WHERE id = $1 FOR UPDATE"));
    tx.row(sql, args![id.to_string()]).await?.as_ref().map(decode).transpose()
}

/// An ended batch goes with the last of its files.
pub(crate) async fn forget_if_empty(tx: &mut Tx<'_>, id: BatchId) -> Result<(), CatalogError> {
    tx.run(
        "DELETE FROM upload_batches WHERE id = $1 AND status <> 'active' \
         AND NOT EXISTS (SELECT 1 FROM files WHERE batch_id = $1)",
        args![id.to_string()],
    )
    .await?;
    Ok(())
}

async fn totals(tx: &mut Tx<'_>, id: BatchId) -> Result<Totals, CatalogError> {
    let row = tx
        .row(
            "SELECT COUNT(CASE WHEN pipeline_status NOT IN ('registered', 'deleted') THEN 1 END) AS confirmed, \
             COUNT(CASE WHEN pipeline_status = 'registered' OR (end_reason = 'reclaimed' AND confirmed_at IS NULL) THEN 1 END) AS unconfirmed, \
             CAST(COALESCE(SUM(CASE WHEN pipeline_status = 'registered' OR (end_reason = 'reclaimed' AND confirmed_at IS NULL) THEN size END), 0) \
             AS BIGINT) AS unconfirmed_bytes FROM files WHERE batch_id = $1",
            args![id.to_string()],
        )
        .await?
        .ok_or_else(|| CatalogError::Corrupt("a count without a row".into()))?;
    Ok(Totals {
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
    notice_id: Uuid,
}

impl Write for EndBatch {
    type Answer = BatchEndOutcome;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<BatchEndOutcome>, CatalogError> {
        let Committer { actor, rows: RowSettings { targets, .. } } = &self.committer;
        let Some(before) = lock(tx, self.id).await? else { return Ok(TxOutcome::Rollback(BatchEndOutcome::NotFound)) };
        let totals = totals(tx, self.id).await?;
        let decided = match self.ending {
            BatchEnding::Completed => before.complete(totals.unconfirmed, self.now),
            BatchEnding::Cancelled => before.cancel(self.now),
            BatchEnding::Expired => before.expire(self.now),
        };
        let batch = match decided {
            Ok(batch) => batch,
            Err(refusal) => return Ok(TxOutcome::Rollback(BatchEndOutcome::Refused { batch: before, refusal })),
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
            BatchEnding::Cancelled | BatchEnding::Expired => self.call_off(tx).await?,
        };
        if self.ending == BatchEnding::Expired {
            let told = NewNotice::of_expired_batch(self.notice_id, &batch, &totals, self.now);
            notices::insert(tx, &[told], *targets).await?;
        }
        archive::batch_turned(tx, &batch, actor, self.now, *targets).await?;
        counters::noticed(tx, &batch.tenant, &batch.user).await?;
        Ok(TxOutcome::Commit(BatchEndOutcome::Ended { batch, unconfirmed }))
    }
}

/// Files that are locked in one statement.
const CALLED_OFF_AT_ONCE: usize = 500;

impl EndBatch {
    /// The checks of all files that are still waited for are due now.
    async fn call_off(&self, tx: &mut Tx<'_>) -> Result<u64, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE");
        let sql = format!(
            "{} WHERE batch_id = $1 AND pipeline_status = 'registered' AND id > $2 ORDER BY id LIMIT $3 {lock}",
            select_files!("")
        );
        let (mut after, mut changes) = (String::new(), Vec::new());
        // All of them are locked before anything else is: counters are what their clients lock last.
        loop {
            let args = args![self.id.to_string(), after.as_str(), CALLED_OFF_AT_ONCE as i64];
            let found = tx.rows_built(sql.clone(), args).await?;
            let (files, others) = unreadable::split(&found, "id", rows::decode);
            unreadable::record(tx, Table::Files, &others).await?;
            changes.extend(files.iter().map(|file| file::make_check_due(file, self.now)));
            match found.last() {
                Some(last) if found.len() == CALLED_OFF_AT_ONCE => after = last.text("id")?,
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

    /// In the order in which they were added, the dead among them.
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
            match behind(&page, &rows, limit, |row| row.text("id")) {
                Some(next) => after = next,
                None => return Ok(page),
            }
        }
    }

    /// Ends a batch: one transaction with what follows for its files, and for an expired one with its notice.
    pub async fn end_batch(
        &self,
        id: BatchId,
        ending: BatchEnding,
        actor: &str,
        now: UnixMs,
    ) -> Result<BatchEndOutcome, CatalogError> {
        let (committer, notice_id) = (self.committer(actor), fresh_id(now));
        self.write(EndBatch { id, ending, committer, now, notice_id }).await
    }

    /// Active batches whose time is over and when it was, oldest first, after a place in that order.
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
            match behind(&page, &rows, limit, |row| place(row, "expires_at")) {
                Some(next) => (at, id) = next,
                None => return Ok(page),
            }
        }
    }
}
