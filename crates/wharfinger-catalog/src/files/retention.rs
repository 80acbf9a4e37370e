//! Deletes rows that would pile up: batches without files, counters that are zero, and outbox lines that are never
//! delivered. Each call deletes a bounded number.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::BatchId;

use crate::Catalog;
use crate::database::sql::{Tx, args, tuples};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::outbox::lines::Destination;

/// Batches that ended before a time and have no files, one page in the order of their ends.
struct PurgeBatches {
    after: (UnixMs, String),
    before: UnixMs,
    limit: usize,
}

/// How many were deleted, and the cursor of the next page. None: that was the last page.
type PurgedPage = (u64, Option<(UnixMs, String)>);

impl Write for PurgeBatches {
    type Answer = PurgedPage;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<PurgedPage>, CatalogError> {
        let rows = tx
            .rows(
                "SELECT id, ended_at, CAST(CASE WHEN EXISTS (SELECT 1 FROM files WHERE files.batch_id = upload_batches.id) \
                 THEN 0 ELSE 1 END AS BIGINT) AS is_empty FROM upload_batches WHERE status <> 'active' \
                 AND ended_at < $1 AND (ended_at, id) > ($2, $3) ORDER BY ended_at, id LIMIT $4",
                args![self.before, self.after.0, self.after.1.as_str(), self.limit as i64],
            )
            .await?;
        let mut deleted = 0;
        for row in &rows {
            // An ended batch accepts no more files.
            if row.int("is_empty")? == 1 && row.parsed::<BatchId>("id").is_ok() {
                let sql = "DELETE FROM upload_batches WHERE id = $1 AND status <> 'active'";
                deleted += tx.run(sql, args![row.text("id")?]).await?;
            }
        }
        let next = match rows.last() {
            Some(last) if rows.len() == self.limit => Some((last.int("ended_at")?, last.text("id")?)),
            _ => None,
        };
        Ok(TxOutcome::Commit((deleted, next)))
    }
}

/// Counters of statuses in which a user has no files.
struct PurgeCounters {
    limit: usize,
}

impl Write for PurgeCounters {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
        let sql = format!(
            "SELECT tenant_id, user_id, status, stage FROM file_counts WHERE files = 0 AND charged_bytes = 0 \
             ORDER BY tenant_id, user_id, status, stage LIMIT $1 {lock}"
        );
        let rows = tx.rows_built(sql, args![self.limit as i64]).await?;
        let mut deleted = 0;
        for some in rows.chunks(tx.dialect().rows_max()) {
            let mut args = args![];
            for row in some {
                for column in ["tenant_id", "user_id", "status", "stage"] {
                    args.extend(args![row.text(column)?]);
                }
            }
            let sql = format!(
                "DELETE FROM file_counts WHERE (tenant_id, user_id, status, stage) IN (VALUES {}) \
                 AND files = 0 AND charged_bytes = 0",
                tuples(1, some.len(), 4)
            );
            deleted += tx.run_built(sql, args).await?;
        }
        Ok(TxOutcome::Commit(deleted))
    }
}

/// Lines that were written before a time and are not delivered.
struct PurgeLines {
    destination: Destination,
    before: UnixMs,
    limit: usize,
}

impl Write for PurgeLines {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let deleted = tx
            .run(
                "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE destination = $1 AND created_at < $2 \
                 ORDER BY created_at LIMIT $3)",
                args![self.destination.as_str(), self.before, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(deleted))
    }
}

impl Catalog {
    /// Deletes one page of batches without files that ended before a time.
    pub async fn purge_empty_batches(
        &self,
        after: Option<(UnixMs, String)>,
        before: UnixMs,
        limit: usize,
    ) -> Result<PurgedPage, CatalogError> {
        let after = after.unwrap_or((i64::MIN, String::new()));
        self.write(PurgeBatches { after, before, limit }).await
    }

    /// Deletes counters that are zero; returns how many.
    pub async fn purge_zero_counters(&self, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeCounters { limit }).await
    }

    /// Deletes undelivered lines from before a time; returns how many.
    pub async fn purge_old_outbox_lines(
        &self,
        destination: Destination,
        before: UnixMs,
        limit: usize,
    ) -> Result<u64, CatalogError> {
        self.write(PurgeLines { destination, before, limit }).await
    }
}
