//! Rows that cannot be read: damaged, or written by hand or by another version. Loops and lists skip such a row and
//! record it here with its id, so that other work continues. A row that can be read again is removed from this list.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// How long an unreadable row waits before the next try. It may be repaired, or read by another version.
pub(crate) const RETRY_MS: i64 = 3_600_000;
/// Beyond this number unreadable rows are still skipped, but not listed.
const LISTED_MAX: i64 = 10_000;

/// Extra rows that a list reads, so that a few unreadable rows do not make a page look like the last one.
pub(crate) const SPARE_ROWS: usize = 20;

/// A table that loops and lists read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    Files,
    Jobs,
    Outbox,
    Cleanups,
    Batches,
    Notifications,
    Quotas,
    TextParts,
    Chunks,
    Sweeps,
    SweepRuns,
    Deletions,
    ServiceKeys,
    AuditLog,
}

impl Table {
    pub const ALL: [Table; 14] = [
        Table::Files,
        Table::Jobs,
        Table::Outbox,
        Table::Cleanups,
        Table::Batches,
        Table::Notifications,
        Table::Quotas,
        Table::TextParts,
        Table::Chunks,
        Table::Sweeps,
        Table::SweepRuns,
        Table::Deletions,
        Table::ServiceKeys,
        Table::AuditLog,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Table::Files => "files",
            Table::Jobs => "jobs",
            Table::Outbox => "outbox",
            Table::Cleanups => "pending_cleanups",
            Table::Batches => "upload_batches",
            Table::Notifications => "notifications",
            Table::Quotas => "quotas",
            Table::TextParts => "text_parts",
            Table::Chunks => "chunks",
            Table::Sweeps => "sweeps",
            Table::SweepRuns => "sweep_runs",
            Table::Deletions => "deletion_log",
            Table::ServiceKeys => "service_keys",
            Table::AuditLog => "audit_log",
        }
    }
}

/// A row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    pub table: String,
    pub id: String,
    pub error: String,
}

/// Lists unreadable rows, given as ids and errors.
pub(crate) async fn record(
    tx: &mut Tx<'_>,
    table: Table,
    found: &[(String, String)],
) -> Result<(), CatalogError> {
    for some in found.chunks(tx.dialect().rows_max()) {
        let mut args = args![table.as_str(), LISTED_MAX];
        let mut rows = Vec::with_capacity(some.len());
        for (id, error) in some {
            rows.push(format!(
                "SELECT CAST($1 AS TEXT), CAST(${} AS TEXT), CAST(${} AS TEXT)",
                args.len() + 1,
                args.len() + 2
            ));
            args.extend(args![id.as_str(), clip(error, ERROR_TEXT_BYTES_MAX)]);
        }
        let sql = format!(
            "INSERT INTO unreadable_rows (table_name, row_id, error) SELECT * FROM ({}) AS found \
             WHERE (SELECT COUNT(*) FROM unreadable_rows) < $2 \
             ON CONFLICT (table_name, row_id) DO NOTHING RETURNING row_id, error",
            rows.join(" UNION ALL ")
        );
        // Logged once per row, because only new rows are returned.
        for row in tx.rows_built(sql, args).await? {
            let (id, error) = (row.text("row_id")?, row.text("error")?);
            tracing::error!(
                table = table.as_str(),
                id,
                error,
                action = "set_aside",
                "unreadable row skipped"
            );
        }
    }
    Ok(())
}

/// The readable rows, and the ids and errors of the others.
pub(crate) fn split<T>(
    rows: &[Row],
    id: &str,
    decode: impl Fn(&Row) -> Result<T, CatalogError>,
) -> (Vec<T>, Vec<(String, String)>) {
    let (mut readable, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match decode(row) {
            Ok(one) => readable.push(one),
            Err(error) => {
                let id = row.text(id).unwrap_or_else(|_| "(id is not text)".into());
                unreadable.push((id, error.to_string()));
            }
        }
    }
    (readable, unreadable)
}

/// The cursor of the next page, if a page was full and no row of it was readable: there may be more rows. Otherwise none.
pub(crate) fn next_cursor<T, P>(
    page: &[T],
    rows: &[Row],
    limit: usize,
    cursor: impl Fn(&Row) -> Result<P, CatalogError>,
) -> Option<P> {
    let looks_like_the_last = page.is_empty() && rows.len() >= limit;
    looks_like_the_last.then(|| rows.iter().rev().find_map(|row| cursor(row).ok())).flatten()
}

/// The cursor of a row in an order of times and ids. It works for rows that cannot be decoded, too.
pub(crate) fn cursor_of(row: &Row, time: &str) -> Result<(UnixMs, String), CatalogError> {
    Ok((row.int(time)?, row.text("id")?))
}

struct RecordUnreadable {
    table: Table,
    found: Vec<(String, String)>,
}

impl Write for RecordUnreadable {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        record(tx, self.table, &self.found).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Removes rows from the list that are deleted or readable.
struct RemoveFromList {
    rows: Vec<UnreadableRow>,
}

impl Write for RemoveFromList {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        for row in &self.rows {
            tx.run(
                "DELETE FROM unreadable_rows WHERE table_name = $1 AND row_id = $2",
                args![row.table.as_str(), row.id.as_str()],
            )
            .await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

/// How a row of each table is decoded, and which column has its id.
type Decoder = fn(&Row) -> Result<(), CatalogError>;

fn decoders() -> [(Table, &'static str, Decoder); 14] {
    [
        (Table::Files, "id", |row| crate::files::rows::decode(row).map(drop)),
        (Table::Jobs, "id", |row| crate::jobs::claims::leased(row).map(drop)),
        (Table::Outbox, "id", |row| crate::outbox::lines::decode_any(row).map(drop)),
        (Table::Cleanups, "id", |row| crate::cleanups::pending::decode_claim(row).map(drop)),
        (Table::Batches, "id", |row| crate::files::batches::decode(row).map(drop)),
        (Table::Notifications, "id", |row| crate::outbox::notifications::decode(row).map(drop)),
        (Table::Sweeps, "name", |row| crate::sweeps::decode(row).map(drop)),
        (Table::SweepRuns, "id", |row| crate::sweep_runs::decode(row).map(drop)),
        (Table::Deletions, "id", |row| crate::cleanups::deletion_log::decode(row).map(drop)),
        (Table::Quotas, "tenant_id", |row| crate::quota::charges::tenant_of(row).map(drop)),
        (Table::TextParts, "file_id", |row| crate::derived::outputs::decode_part(row).map(drop)),
        (Table::Chunks, "file_id", crate::derived::chunks::check_readable),
        (Table::ServiceKeys, "id", |row| crate::service_keys::decode(row).map(drop)),
        (Table::AuditLog, "id", |row| crate::audit_log::decode(row).map(drop)),
    ]
}

impl Catalog {
    /// The readable ones of these rows. The others are listed and left out.
    pub(crate) async fn readable<T>(
        &self,
        table: Table,
        id: &str,
        rows: &[Row],
        decode: impl Fn(&Row) -> Result<T, CatalogError>,
    ) -> Vec<T> {
        let (readable, others) = split(rows, id, decode);
        if !others.is_empty()
            && !self.is_read_only
            && let Err(error) = self.write(RecordUnreadable { table, found: others }).await
        {
            tracing::warn!(error = %error, "cannot record unreadable rows");
        }
        readable
    }

    /// The same for a page of at most `limit` entries.
    pub(crate) async fn readable_page<T>(
        &self,
        table: Table,
        rows: &[Row],
        limit: usize,
        decode: impl Fn(&Row) -> Result<T, CatalogError>,
    ) -> Vec<T> {
        let mut page = self.readable(table, "id", rows, decode).await;
        page.truncate(limit);
        page
    }

    /// All of these rows. If some cannot be read, they are listed and the call fails with the first error.
    pub(crate) async fn all_readable<T>(
        &self,
        table: Table,
        id: &str,
        rows: &[Row],
        decode: impl Fn(&Row) -> Result<T, CatalogError>,
    ) -> Result<Vec<T>, CatalogError> {
        if let Some(error) = rows.iter().find_map(|row| decode(row).err()) {
            self.readable(table, id, rows, decode).await;
            return Err(error);
        }
        rows.iter().map(decode).collect()
    }

    /// The list of unreadable rows, by table.
    pub async fn unreadable_rows(&self, limit: usize) -> Result<Vec<UnreadableRow>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql =
            "SELECT table_name, row_id, error FROM unreadable_rows ORDER BY table_name, row_id LIMIT $1";
        let rows = reader.tx(&self.faults).rows(sql, args![limit as i64]).await?;
        let decode = |row: &Row| {
            Ok(UnreadableRow {
                table: row.text("table_name")?,
                id: row.text("row_id")?,
                error: row.text("error")?,
            })
        };
        rows.iter().map(decode).collect()
    }

    /// How many unreadable rows of each table are listed.
    pub async fn count_unreadable(&self) -> Result<BTreeMap<String, u64>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT table_name, COUNT(*) AS listed FROM unreadable_rows GROUP BY table_name";
        let rows = reader.tx(&self.faults).rows(sql, args![]).await?;
        rows.iter().map(|row| Ok((row.text("table_name")?, row.bytes("listed")?))).collect()
    }

    /// Reads all listed rows again and removes deleted and readable ones from the list; returns how many are left.
    pub async fn recheck_unreadable(&self) -> Result<u64, CatalogError> {
        let listed = self.unreadable_rows(LISTED_MAX as usize).await?;
        let mut unreadable = Vec::new();
        for (table, id, decode) in decoders() {
            let ids: Vec<&str> =
                listed.iter().filter(|row| row.table == table.as_str()).map(|row| row.id.as_str()).collect();
            let mut reader = self.reader().await?;
            let mut tx = reader.tx(&self.faults);
            // The id of a file matches all of its chunks.
            let ids_per_query = if id == "file_id" { 1 } else { tx.dialect().rows_max() };
            for ids in ids.chunks(ids_per_query) {
                let sql =
                    format!("SELECT * FROM {} WHERE {id} IN ({})", table.as_str(), places(1, ids.len()));
                let rows = tx.rows_built(sql, ids.iter().flat_map(|id| args![*id]).collect()).await?;
                let (_, others) = split(&rows, id, decode);
                unreadable.extend(others.into_iter().map(|(id, _)| (table.as_str(), id)));
            }
        }
        let is_unreadable =
            |row: &UnreadableRow| unreadable.iter().any(|(table, id)| *table == row.table && *id == row.id);
        let (left, resolved): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_unreadable);
        if !resolved.is_empty() {
            self.write(RemoveFromList { rows: resolved }).await?;
        }
        Ok(left.len() as u64)
    }
}
