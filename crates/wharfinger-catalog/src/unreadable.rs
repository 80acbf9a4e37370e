//! Rows that cannot be read: damaged, or written by hand or by another version. Each is set aside where it is found and
//! listed here with its id, and everything else goes on. One that can be read again is dropped from the list.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// How long something waits that cannot be read. It may be repaired, or read by another version.
pub(crate) const RETRY_MS: i64 = 3_600_000;
/// Far more than anybody looks through; beyond it rows are still set aside, only not listed.
const LISTED_MAX: i64 = 10_000;

/// A list reads so many rows more than it shows: some that cannot be read do not make a page look like the last.
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
}

impl Table {
    pub const ALL: [Table; 10] = [
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

/// Lists rows, each by its id with what is wrong with it.
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
        // Each once, however often it is found.
        for row in tx.rows_built(sql, args).await? {
            let (id, error) = (row.text("row_id")?, row.text("error")?);
            tracing::error!(table = table.as_str(), id, error, action = "set_aside", "a row cannot be read");
        }
    }
    Ok(())
}

/// Those that can be read, and the ids and faults of the others.
pub(crate) fn split<T>(
    rows: &[Row],
    id: &str,
    decode: impl Fn(&Row) -> Result<T, CatalogError>,
) -> (Vec<T>, Vec<(String, String)>) {
    let (mut readable, mut others) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match decode(row) {
            Ok(one) => readable.push(one),
            Err(error) => {
                let id = row.text(id).unwrap_or_else(|_| "an id that is no text".into());
                others.push((id, error.to_string()));
            }
        }
    }
    (readable, others)
}

/// Where to read on behind a full page of which nothing can be read: there may be more behind it. None where the page
/// speaks for itself.
pub(crate) fn behind<T, P>(
    page: &[T],
    rows: &[Row],
    limit: usize,
    place: impl Fn(&Row) -> Result<P, CatalogError>,
) -> Option<P> {
    let looks_like_the_last = page.is_empty() && rows.len() >= limit;
    looks_like_the_last.then(|| rows.iter().rev().find_map(|row| place(row).ok())).flatten()
}

/// A place in an order of times and ids, also of rows that cannot be read otherwise.
pub(crate) fn place(row: &Row, time: &str) -> Result<(UnixMs, String), CatalogError> {
    Ok((row.int(time)?, row.text("id")?))
}

struct Record {
    table: Table,
    found: Vec<(String, String)>,
}

impl Write for Record {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        record(tx, self.table, &self.found).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Drops rows from the list that are gone or can be read.
struct Unlist {
    rows: Vec<UnreadableRow>,
}

impl Write for Unlist {
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

/// How a row of each table is read, and by which column it is known.
type Decoder = fn(&Row) -> Result<(), CatalogError>;

fn decoders() -> [(Table, &'static str, Decoder); 10] {
    [
        (Table::Files, "id", |row| crate::files::rows::decode(row).map(drop)),
        (Table::Jobs, "id", |row| crate::jobs::claims::leased(row).map(drop)),
        (Table::Outbox, "id", |row| crate::outbox::lines::decode_any(row).map(drop)),
        (Table::Cleanups, "id", |row| crate::cleanups::pending::decode_claim(row).map(drop)),
        (Table::Batches, "id", |row| crate::files::batches::decode(row).map(drop)),
        (Table::Notifications, "id", |row| crate::outbox::notices::decode(row).map(drop)),
        (Table::Sweeps, "name", |row| crate::sweeps::decode(row).map(drop)),
        (Table::Quotas, "tenant_id", |row| crate::quota::charges::tenant_of(row).map(drop)),
        (Table::TextParts, "file_id", |row| crate::derived::outputs::decode_part(row).map(drop)),
        (Table::Chunks, "file_id", crate::derived::chunks::is_readable),
    ]
}

impl Catalog {
    /// Those of these rows that can be read; the others are listed, and left out.
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
            && let Err(error) = self.write(Record { table, found: others }).await
        {
            tracing::warn!(error = %error, "cannot list rows that cannot be read");
        }
        readable
    }

    /// The same for a page of a list that has at most `limit` entries.
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

    /// All of these rows, for those who cannot do without one of them. If some cannot be read they are listed, and the
    /// first one's fault is the answer.
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

    /// Rows that could not be read, by table.
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

    /// How many rows of each table could not be read.
    pub async fn count_unreadable(&self) -> Result<BTreeMap<String, u64>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT table_name, COUNT(*) AS listed FROM unreadable_rows GROUP BY table_name";
        let rows = reader.tx(&self.faults).rows(sql, args![]).await?;
        rows.iter().map(|row| Ok((row.text("table_name")?, row.bytes("listed")?))).collect()
    }

    /// Looks at all listed rows again, and drops those that are gone or can be read; answers how many are left.
    pub async fn recheck_unreadable(&self) -> Result<u64, CatalogError> {
        let listed = self.unreadable_rows(LISTED_MAX as usize).await?;
        let mut still = Vec::new();
        for (table, id, decode) in decoders() {
            let ids: Vec<&str> =
                listed.iter().filter(|row| row.table == table.as_str()).map(|row| row.id.as_str()).collect();
            let mut reader = self.reader().await?;
            let mut tx = reader.tx(&self.faults);
            // One id may stand for all chunks of a file.
            let together = if id == "file_id" { 1 } else { tx.dialect().rows_max() };
            for ids in ids.chunks(together) {
                let sql =
                    format!("SELECT * FROM {} WHERE {id} IN ({})", table.as_str(), places(1, ids.len()));
                let rows = tx.rows_built(sql, ids.iter().flat_map(|id| args![*id]).collect()).await?;
                let (_, others) = split(&rows, id, decode);
                still.extend(others.into_iter().map(|(id, _)| (table.as_str(), id)));
            }
        }
        let is_still =
            |row: &UnreadableRow| still.iter().any(|(table, id)| *table == row.table && *id == row.id);
        let (left, gone): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_still);
        if !gone.is_empty() {
            self.write(Unlist { rows: gone }).await?;
        }
        Ok(left.len() as u64)
    }
}
