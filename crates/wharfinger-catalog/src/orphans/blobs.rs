//! Orphans and missing objects: the rows that a scan compares with the store, the cleanups of orphans, and the reports of
//! both.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::CleanupId;
use wharfinger_lifecycle::key::{self, DERIVED, ObjectKey, UPLOADS};

use crate::Catalog;
use crate::Scope;
use crate::database::sql::signed;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::dashboard::COUNTED_MAX;
use crate::files::rows::{AbandonedRule, is_abandoned};
use crate::fresh_id;
use crate::orphans::scans::OrphanBlob;

/// The reason in the cleanup of an orphan.
pub const REASON_ORPHAN: &str = "orphan_blob";

/// The condition of a row `o` of a file `f` whose object must exist: the original of a confirmed file, or a stored part of
/// its text.
pub(crate) const MUST_EXIST: &str = "f.pipeline_status NOT IN ('registered', 'deleted') AND (o.kind = 'original' \
    OR EXISTS (SELECT 1 FROM text_parts t WHERE t.file_id = o.file_id AND t.key = o.key))";

/// The condition of an object `b` that may not be deleted: its row has a file that is not deleted, or no file, which is
/// damage.
const HAS_LIVE_ROW: &str = "EXISTS (SELECT 1 FROM objects o LEFT JOIN files f ON f.id = o.file_id \
    WHERE o.key = b.key AND f.pipeline_status IS DISTINCT FROM 'deleted')";

/// What the catalog expects of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// It must exist.
    Required,
    /// It may exist: its upload is not confirmed, or its stage has not ended.
    Pending,
    /// Its file is deleted: it must not exist, unless its cleanup waits.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRow {
    pub key: String,
    pub state: ObjectState,
}

/// A sample of the keys of all objects, and an estimate of their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySample {
    pub keys: Vec<String>,
    pub objects: u64,
}

/// The size of a sample: in keys for SQLite, in pages for PostgreSQL.
const SAMPLE_KEYS: i64 = 256;
const SAMPLE_PAGES: i64 = 64;

/// Writes cleanups for the next orphans of a scan, unless they have a live row by now.
struct QueueOrphans {
    scan: String,
    after: String,
    limit: usize,
    ordered_by: &'static str,
    storage_type: &'static str,
    max_attempts: u32,
    now: UnixMs,
}

/// The result for a batch of orphans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuedOrphans {
    pub queued: u64,
    /// Those that have a live row or a cleanup by now.
    pub skipped: u64,
    /// The last key that was checked. None: there were no more.
    pub last: Option<String>,
}

const CLEANUP_COLUMNS: usize = 10;

impl Write for QueueOrphans {
    type Answer = QueuedOrphans;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        // Another scan with the same orphans waits for this transaction, and then skips them.
        let lock = tx.dialect().pick("", "FOR UPDATE OF b");
        let sql = format!(
            "SELECT b.key, b.size, CAST(CASE WHEN {HAS_LIVE_ROW} \
             OR EXISTS (SELECT 1 FROM pending_cleanups p WHERE p.file_path = b.key AND p.storage_type = $4) \
             THEN 0 ELSE 1 END AS BIGINT) AS is_orphan FROM orphan_blobs b \
             WHERE b.scan_id = $1 AND b.queued_at IS NULL AND b.key > $2 \
             AND EXISTS (SELECT 1 FROM orphan_scans s WHERE s.id = $1 AND s.dry_run = 0) \
             ORDER BY b.key LIMIT $3 {lock}"
        );
        let args = args![self.scan.as_str(), self.after.as_str(), self.limit as i64, self.storage_type];
        let rows = tx.rows_built(sql, args).await?;
        let Some(last) = rows.last() else { return Ok(TxOutcome::Rollback(QueuedOrphans::default())) };
        let last = last.text("key")?;
        let (mut orphans, mut skipped) = (Vec::new(), Vec::new());
        for row in &rows {
            let key = row.text("key")?;
            match ObjectKey::from_listing(&key) {
                Ok(key) if row.int("is_orphan")? != 0 => orphans.push((key, row.int("size")?)),
                _ => skipped.push(key),
            }
        }
        self.insert_cleanups(tx, &orphans).await?;
        for skipped in skipped.chunks(tx.dialect().rows_max()) {
            let sql = format!("DELETE FROM orphan_blobs WHERE key IN ({})", places(1, skipped.len()));
            tx.run_built(sql, skipped.iter().flat_map(|key| args![key.as_str()]).collect()).await?;
        }
        let queued = orphans.len() as u64;
        tx.run(
            "UPDATE orphan_scans SET queued = queued + $2 WHERE id = $1",
            args![self.scan.as_str(), signed(queued)],
        )
        .await?;
        Ok(TxOutcome::Commit(QueuedOrphans { queued, skipped: skipped.len() as u64, last: Some(last) }))
    }
}

impl QueueOrphans {
    async fn insert_cleanups(
        &self,
        tx: &mut Tx<'_>,
        orphans: &[(ObjectKey, i64)],
    ) -> Result<(), CatalogError> {
        for orphans in orphans.chunks(tx.dialect().rows_max()) {
            let mut args = Vec::new();
            let mut rows = Vec::with_capacity(orphans.len());
            for (key, size) in orphans {
                let n = args.len();
                let (head, now) = (places(n + 1, CLEANUP_COLUMNS), n + CLEANUP_COLUMNS);
                rows.push(format!("({head}, ${now}, ${now}, 0, 0, 0, 0, 0)"));
                args.extend(args![
                    CleanupId(fresh_id(self.now)).to_string(),
                    key.as_str(),
                    self.storage_type,
                    REASON_ORPHAN,
                    self.ordered_by,
                    key.owner().map_or_else(String::new, |(tenant, _)| tenant.to_string()),
                    key.file().map_or_else(String::new, |file| file.to_string()),
                    *size,
                    i64::from(self.max_attempts),
                    self.now,
                ]);
            }
            let sql = format!(
                "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, ordered_by, tenant_id, \
                 document_id, size, max_attempts, created_at, next_attempt_at, finish_at, attempts, in_parts, exhausted, lease_token, \
                 lease_until) VALUES {}",
                rows.join(", ")
            );
            tx.run_built(sql, args).await?;
            let sql =
                format!("UPDATE orphan_blobs SET queued_at = $1 WHERE key IN ({})", places(2, orphans.len()));
            let keys = orphans.iter().flat_map(|(key, _)| args![key.as_str()]);
            tx.run_built(sql, args![self.now].into_iter().chain(keys).collect()).await?;
        }
        Ok(())
    }
}

/// Deletes the rows of those orphans that have no cleanup any more; returns how many.
pub(crate) async fn delete_cleaned(tx: &mut Tx<'_>, keys: &[&str]) -> Result<u64, CatalogError> {
    let mut deleted = 0;
    for keys in keys.chunks(tx.dialect().rows_max()) {
        let sql = format!(
            "DELETE FROM orphan_blobs WHERE key IN ({}) \
             AND NOT EXISTS (SELECT 1 FROM pending_cleanups p WHERE p.file_path = orphan_blobs.key)",
            places(1, keys.len())
        );
        deleted += tx.run_built(sql, keys.iter().flat_map(|key| args![*key]).collect()).await?;
    }
    Ok(deleted)
}

/// The state of the cleanups of a scan. All orphan cleanups since the start of the scan count as waiting, those of a later
/// scan included: the rows of orphans belong to the last scan that found them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrphanCleanupCounts {
    pub queued: u64,
    pub deleted: u64,
    /// Waiting cleanups that failed at least once.
    pub failed: u64,
}

/// The orphans of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    pub count: u64,
    pub bytes: u64,
    pub samples: Vec<FoundOrphan>,
}

/// An orphan with the deleted file that it belonged to, if the file's row still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundOrphan {
    pub blob: OrphanBlob,
    pub file_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingBlob {
    pub key: String,
    pub file_id: String,
    pub file_name: String,
    pub size: u64,
    /// When its row was written.
    pub created_at: UnixMs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingBlobs {
    pub count: u64,
    pub samples: Vec<MissingBlob>,
}

/// The key prefixes of all objects of a scope.
fn folders(scope: &Scope) -> [String; 2] {
    match scope {
        Scope::All => [DERIVED.to_owned(), UPLOADS.to_owned()],
        Scope::Tenant(tenant) => key::owner_prefixes(tenant, None),
        Scope::User(tenant, user) => key::owner_prefixes(tenant, Some(user)),
    }
}

fn decode_orphan(row: &Row) -> Result<FoundOrphan, CatalogError> {
    let (key, size, modified_at) = (row.text("key")?, row.bytes("size")?, row.int("modified_at")?);
    Ok(FoundOrphan { blob: OrphanBlob { key, size, modified_at }, file_name: row.maybe_text("file_name")? })
}

fn decode_missing(row: &Row) -> Result<MissingBlob, CatalogError> {
    Ok(MissingBlob {
        key: row.text("key")?,
        file_id: row.text("file_id")?,
        file_name: row.text("file_name")?,
        size: row.bytes("size")?,
        created_at: row.int("created_at")?,
    })
}

impl Catalog {
    /// A page of object rows after one key and up to another, in byte order.
    pub async fn object_rows(
        &self,
        after: &str,
        upto: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRow>, CatalogError> {
        // An object row without a row in `files` is damage, and no reason to delete the object.
        let sql = format!(
            "SELECT o.key, CAST(CASE WHEN f.pipeline_status = 'deleted' THEN 2 WHEN {MUST_EXIST} THEN 0 ELSE 1 END \
             AS BIGINT) AS state FROM objects o LEFT JOIN files f ON f.id = o.file_id \
             WHERE o.key > $1 AND o.key <= $2 ORDER BY o.key LIMIT $3"
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args![after, upto, limit as i64]).await?;
        let decode = |row: &Row| {
            let state = match row.int("state")? {
                0 => ObjectState::Required,
                1 => ObjectState::Pending,
                _ => ObjectState::Ended,
            };
            Ok(ObjectRow { key: row.text("key")?, state })
        };
        rows.iter().map(decode).collect()
    }

    /// A sample of all keys, in order. Its cost does not grow with the catalog.
    pub async fn sample_keys(&self) -> Result<KeySample, CatalogError> {
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let sql = tx.dialect().pick(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < $1 - 1), \
             top (id) AS (SELECT COALESCE(MAX(rowid), 0) FROM objects) \
             SELECT key, (SELECT id FROM top) AS objects FROM objects WHERE rowid IN (SELECT (SELECT rowid FROM \
             objects WHERE rowid >= 1 + (SELECT id FROM top) * n.i / $1 ORDER BY rowid LIMIT 1) FROM n) ORDER BY key",
            "WITH pages AS (SELECT GREATEST(pg_relation_size('objects') / 8192, 1) AS n) \
             SELECT key, CAST(COUNT(*) OVER () * GREATEST((SELECT n FROM pages) / $1, 1) AS BIGINT) AS objects \
             FROM objects TABLESAMPLE SYSTEM (LEAST(100.0, 100.0 * $1 / (SELECT n FROM pages))) REPEATABLE (1) \
             ORDER BY key",
        );
        let size = tx.dialect().pick(SAMPLE_KEYS, SAMPLE_PAGES);
        let rows = tx.rows(sql, args![size]).await?;
        let keys = rows.iter().map(|row| row.text("key")).collect::<Result<_, _>>()?;
        let objects = rows.first().map_or(Ok(0), |row| row.bytes("objects"))?;
        Ok(KeySample { keys, objects })
    }

    /// Those of these keys that have a cleanup.
    pub async fn keys_with_cleanup(&self, keys: &[&str]) -> Result<Vec<String>, CatalogError> {
        let mut found = Vec::new();
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        for keys in keys.chunks(tx.dialect().rows_max()) {
            let sql = format!(
                "SELECT DISTINCT file_path FROM pending_cleanups WHERE storage_type = $1 AND file_path IN ({})",
                places(2, keys.len())
            );
            let args =
                args![self.rows.storage_type].into_iter().chain(keys.iter().flat_map(|key| args![*key]));
            for row in tx.rows_built(sql, args.collect()).await? {
                found.push(row.text("file_path")?);
            }
        }
        Ok(found)
    }

    /// Writes cleanups for at most `limit` orphans of a scan after a key. Each is checked against the rows again. Those of a
    /// dry run are never queued.
    pub async fn queue_orphans(
        &self,
        scan: &str,
        after: &str,
        limit: usize,
        ordered_by: &'static str,
        now: UnixMs,
    ) -> Result<QueuedOrphans, CatalogError> {
        self.write(QueueOrphans {
            scan: scan.to_owned(),
            after: after.to_owned(),
            limit,
            ordered_by,
            storage_type: self.rows.storage_type,
            max_attempts: self.rows.cleanup_max_attempts,
            now,
        })
        .await
    }

    pub async fn orphan_cleanup_counts(&self, scan: &str) -> Result<OrphanCleanupCounts, CatalogError> {
        let mut reader = self.reader().await?;
        // The reason is part of the text, as in the condition of the index: with a bound value the index is not used.
        let sql = format!(
            "SELECT s.queued, COUNT(p.id) AS waiting, COUNT(p.last_error) AS failed FROM orphan_scans s \
             LEFT JOIN pending_cleanups p ON p.reason = '{REASON_ORPHAN}' AND p.created_at >= s.started_at \
             WHERE s.id = $1 GROUP BY s.id, s.queued"
        );
        let rows = reader.tx(&self.faults).rows_built(sql, args![scan]).await?;
        rows.first().map_or(Ok(OrphanCleanupCounts::default()), |row| {
            let queued = row.bytes("queued")?;
            let deleted = queued.saturating_sub(row.bytes("waiting")?);
            Ok(OrphanCleanupCounts { queued, deleted, failed: row.bytes("failed")?.min(queued) })
        })
    }

    /// The known orphans of a scope that are not deleted yet and still have no live row, counted up to [`COUNTED_MAX`].
    pub async fn orphans(&self, scope: &Scope, samples: usize) -> Result<Orphans, CatalogError> {
        let mut orphans = Orphans::default();
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let is_orphan = format!("b.key > $1 AND b.key < $2 AND NOT {HAS_LIVE_ROW}");
        for folder in folders(scope) {
            let behind = key::end_of_folder(&folder);
            let sql = format!(
                "SELECT COUNT(*) AS count, CAST(COALESCE(SUM(size), 0) AS BIGINT) AS bytes FROM \
                 (SELECT b.size FROM orphan_blobs b WHERE {is_orphan} LIMIT $3) AS found"
            );
            let args = args![folder.as_str(), behind.as_str(), COUNTED_MAX as i64];
            for total in tx.rows_built(sql, args).await? {
                orphans.count += total.bytes("count")?;
                orphans.bytes += total.bytes("bytes")?;
            }
            let wanted = samples.saturating_sub(orphans.samples.len());
            if wanted == 0 {
                continue;
            }
            let sql = format!(
                "SELECT b.key, b.size, b.modified_at, (SELECT f.file_name FROM objects o JOIN files f \
                 ON f.id = o.file_id WHERE o.key = b.key) AS file_name \
                 FROM orphan_blobs b WHERE {is_orphan} ORDER BY b.key LIMIT $3"
            );
            let rows = tx.rows_built(sql, args![folder, behind, wanted as i64]).await?;
            orphans.samples.extend(rows.iter().map(decode_orphan).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(orphans)
    }

    /// Live rows whose objects were not in the store at the last scan.
    pub async fn missing_blobs(&self, scope: &Scope, samples: usize) -> Result<MissingBlobs, CatalogError> {
        let mut missing = MissingBlobs::default();
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let from_missing = format!(
            "FROM missing_blobs m JOIN objects o ON o.key = m.key JOIN files f ON f.id = o.file_id \
             WHERE m.key > $1 AND m.key < $2 AND {MUST_EXIST}"
        );
        for folder in folders(scope) {
            let behind = key::end_of_folder(&folder);
            let sql = format!("SELECT COUNT(*) AS count {from_missing}");
            for row in tx.rows_built(sql, args![folder.as_str(), behind.as_str()]).await? {
                missing.count += row.bytes("count")?;
            }
            let wanted = samples.saturating_sub(missing.samples.len());
            if wanted == 0 {
                continue;
            }
            let sql = format!(
                "SELECT m.key, o.file_id, f.file_name, o.created_at, CASE WHEN o.kind = 'original' THEN f.size \
                 ELSE COALESCE((SELECT t.bytes FROM text_parts t WHERE t.file_id = o.file_id AND t.key = o.key), 0) \
                 END AS size {from_missing} ORDER BY m.key LIMIT $3"
            );
            let rows = tx.rows_built(sql, args![folder, behind, wanted as i64]).await?;
            missing.samples.extend(rows.iter().map(decode_missing).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(missing)
    }

    /// How many uploads are abandoned, counted up to [`COUNTED_MAX`], and the creation time of the oldest.
    pub async fn count_abandoned(
        &self,
        scope: &Scope,
        by: AbandonedRule,
    ) -> Result<(u64, Option<UnixMs>), CatalogError> {
        let mut args = args![by.unchanged_since, by.now, by.min_rate_bytes, COUNTED_MAX as i64];
        let owned = scope.condition(&mut args);
        let sql = format!(
            "SELECT COUNT(*) AS count, MIN(created_at) AS oldest FROM (SELECT created_at FROM files WHERE {} {owned} \
             ORDER BY next_check_at, id LIMIT $4) AS abandoned",
            is_abandoned!()
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        rows.first().map_or(Ok((0, None)), |row| Ok((row.bytes("count")?, row.maybe_int("oldest")?)))
    }
}
