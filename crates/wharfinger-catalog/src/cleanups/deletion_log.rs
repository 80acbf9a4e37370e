//! The log of deleted objects. Before a delete, the row of `pending_cleanups` is the record. When the store reports the
//! object as deleted, one transaction moves the row here. All derived objects of a file share one line.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;

use crate::Catalog;
use crate::Scope;
use crate::cleanups::pending::tenant_condition;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::fresh_id;
use crate::unreadable::{SPARE_ROWS, Table};

/// The reason in the line of an aborted multipart upload.
pub const REASON_UNFINISHED_UPLOAD: &str = "unfinished_upload";

struct Line {
    key: String,
    objects: i64,
    size: i64,
    reason: String,
    ordered_by: Option<String>,
    tenant: String,
    file: String,
}

const COLUMNS: usize = 9;

/// Logs finished cleanups, given as their rows.
pub(crate) async fn record(tx: &mut Tx<'_>, done: &[Row], now: UnixMs) -> Result<(), CatalogError> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for row in done {
        let (key, file) = (row.text("file_path")?, row.text("document_id")?);
        let derived = ObjectKey::parse(&key).ok().and_then(|key| key.derived_folder());
        let (id, key) = match derived {
            Some(folder) => (format!("{file}-derived"), folder),
            None => (row.text("id")?, key),
        };
        let (reason, ordered_by) = (row.text("reason")?, row.maybe_text("ordered_by")?);
        let tenant = row.text("tenant_id")?;
        let line = Line { key, objects: 0, size: 0, reason, ordered_by, tenant, file };
        let line = lines.entry(id).or_insert(line);
        line.objects += 1;
        line.size = line.size.saturating_add(row.int("size")?);
    }
    insert(tx, &lines, now).await
}

async fn insert(tx: &mut Tx<'_>, lines: &BTreeMap<String, Line>, now: UnixMs) -> Result<(), CatalogError> {
    let all: Vec<_> = lines.iter().collect();
    for some in all.chunks(tx.dialect().rows_max()) {
        let mut args = Vec::with_capacity(some.len() * COLUMNS);
        let mut rows = Vec::with_capacity(some.len());
        for (id, line) in some {
            rows.push(format!("({})", places(args.len() + 1, COLUMNS)));
            args.extend(args![
                id.as_str(),
                line.key.as_str(),
                line.objects,
                line.size,
                line.reason.as_str(),
                line.ordered_by.as_deref(),
                line.tenant.as_str(),
                line.file.as_str(),
                now,
            ]);
        }
        // Derived objects are deleted at several times: the line has the reason of the last one.
        let sql = format!(
            "INSERT INTO deletion_log (id, key, objects, size, reason, ordered_by, tenant_id, file_id, deleted_at) \
             VALUES {} ON CONFLICT (id) DO UPDATE SET objects = deletion_log.objects + excluded.objects, \
             size = deletion_log.size + excluded.size, reason = excluded.reason, \
             ordered_by = excluded.ordered_by, deleted_at = excluded.deleted_at",
            rows.join(", ")
        );
        tx.run_built(sql, args).await?;
    }
    Ok(())
}

/// A multipart upload that was aborted in the store.
#[derive(Clone, Debug)]
pub struct AbortedUpload {
    pub key: ObjectKey,
    pub file: Option<FileId>,
    /// The sweep that aborted it.
    pub ordered_by: &'static str,
}

struct LogAborted {
    upload: AbortedUpload,
    now: UnixMs,
}

impl Write for LogAborted {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let AbortedUpload { key, file, ordered_by } = &self.upload;
        let line = Line {
            key: key.to_string(),
            objects: 0,
            size: 0,
            reason: REASON_UNFINISHED_UPLOAD.to_owned(),
            ordered_by: Some((*ordered_by).to_owned()),
            tenant: key.owner().map_or_else(String::new, |(tenant, _)| tenant.to_string()),
            file: file.map_or_else(String::new, |file| file.to_string()),
        };
        insert(tx, &BTreeMap::from([(fresh_id(self.now).to_string(), line)]), self.now).await?;
        Ok(TxOutcome::Commit(()))
    }
}

struct PurgeLog {
    before: UnixMs,
    limit: usize,
}

impl Write for PurgeLog {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let deleted = tx
            .run(
                "DELETE FROM deletion_log WHERE id IN (SELECT id FROM deletion_log WHERE deleted_at < $1 \
                 ORDER BY deleted_at, id LIMIT $2)",
                args![self.before, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(deleted))
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    pub cursor: DeletionCursor,
    /// The key of the object. Of derived objects: their folder.
    pub key: String,
    /// How many objects were deleted: 0 for an aborted upload.
    pub objects: u64,
    /// In bytes, as far as it is known. That of derived objects is not.
    pub size: u64,
    pub reason: String,
    /// The sweep, check, worker or caller that ordered the delete.
    pub ordered_by: Option<String>,
    /// Empty: the key names no tenant, or no file.
    pub tenant: String,
    pub file: String,
}

/// The position of a line in the log, which starts with the last delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionCursor {
    pub deleted_at: UnixMs,
    pub id: String,
}

impl fmt::Display for DeletionCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.deleted_at, self.id)
    }
}

impl FromStr for DeletionCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<DeletionCursor, ()> {
        let (deleted_at, id) = text.split_once('.').ok_or(())?;
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        match (1..=64).contains(&id.len()) && id.chars().all(is_id) {
            true => Ok(DeletionCursor { deleted_at: deleted_at.parse().map_err(|_| ())?, id: id.to_owned() }),
            false => Err(()),
        }
    }
}

pub(crate) fn decode(row: &Row) -> Result<Deletion, CatalogError> {
    Ok(Deletion {
        cursor: DeletionCursor { deleted_at: row.int("deleted_at")?, id: row.text("id")? },
        key: row.text("key")?,
        objects: row.bytes("objects")?,
        size: row.bytes("size")?,
        reason: row.text("reason")?,
        ordered_by: row.maybe_text("ordered_by")?,
        tenant: row.text("tenant_id")?,
        file: row.text("file_id")?,
    })
}

impl Catalog {
    pub async fn log_aborted_upload(&self, upload: AbortedUpload, now: UnixMs) -> Result<(), CatalogError> {
        self.write(LogAborted { upload, now }).await
    }

    /// Deletes the oldest lines from before a time; returns how many.
    pub async fn purge_deletion_log(&self, before: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeLog { before, limit }).await
    }

    /// What was deleted since a time, newest first, older than `before`.
    pub async fn deletions(
        &self,
        scope: &Scope,
        since: UnixMs,
        before: Option<DeletionCursor>,
        limit: usize,
    ) -> Result<Vec<Deletion>, CatalogError> {
        // Ids have no letter behind this one.
        let before = before.unwrap_or(DeletionCursor { deleted_at: i64::MAX, id: "~".into() });
        let mut args = args![since, before.deleted_at, before.id, (limit + SPARE_ROWS) as i64];
        let sql = format!(
            "SELECT id, key, objects, size, reason, ordered_by, tenant_id, file_id, deleted_at FROM deletion_log \
             WHERE deleted_at >= $1 AND (deleted_at, id) < ($2, $3){} ORDER BY deleted_at DESC, id DESC LIMIT $4",
            tenant_condition(scope, &mut args)
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        drop(reader);
        Ok(self.readable_page(Table::Deletions, &rows, limit, decode).await)
    }
}
