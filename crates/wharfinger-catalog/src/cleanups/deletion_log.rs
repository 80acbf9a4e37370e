//! The log of deleted objects. Before a delete, the row of `pending_cleanups` is the record. When the store reports the
//! object as deleted, one transaction moves the row here. All derived objects of a file share one line.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::fresh_id;

/// The reason in the line of an aborted multipart upload.
pub const REASON_UNFINISHED_UPLOAD: &str = "unfinished_upload";

struct Line {
    key: String,
    objects: i64,
    size: i64,
    reason: String,
    tenant: String,
    file: String,
}

const COLUMNS: usize = 8;

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
        let (reason, tenant) = (row.text("reason")?, row.text("tenant_id")?);
        let line = lines.entry(id).or_insert(Line { key, objects: 0, size: 0, reason, tenant, file });
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
                line.tenant.as_str(),
                line.file.as_str(),
                now,
            ]);
        }
        let sql = format!(
            "INSERT INTO deletion_log (id, key, objects, size, reason, tenant_id, file_id, deleted_at) VALUES {} \
             ON CONFLICT (id) DO UPDATE SET objects = deletion_log.objects + excluded.objects, \
             size = deletion_log.size + excluded.size, deleted_at = excluded.deleted_at",
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
}

struct LogAborted {
    upload: AbortedUpload,
    now: UnixMs,
}

impl Write for LogAborted {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        let AbortedUpload { key, file } = &self.upload;
        let line = Line {
            key: key.to_string(),
            objects: 0,
            size: 0,
            reason: REASON_UNFINISHED_UPLOAD.to_owned(),
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

impl Catalog {
    pub async fn log_aborted_upload(&self, upload: AbortedUpload, now: UnixMs) -> Result<(), CatalogError> {
        self.write(LogAborted { upload, now }).await
    }

    /// Deletes the oldest lines from before a time; returns how many.
    pub async fn purge_deletion_log(&self, before: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeLog { before, limit }).await
    }
}
