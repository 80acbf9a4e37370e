//! Scans that compare the store with the catalog: key ranges, the progress in each, and the findings. Progress and findings
//! are written in one transaction, so that a resumed scan counts nothing twice.

use wharfinger_lifecycle::UnixMs;

use crate::Catalog;
use crate::database::sql::signed;
use crate::database::sql::{Arg, Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::fresh_id;
use crate::orphans::blobs::MUST_EXIST;
use crate::outbox::lines;

/// The keys after one and up to another, in one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRange {
    pub ordinal: i64,
    pub folder: String,
    pub after: String,
    pub upto: String,
    /// The last compared key.
    pub at: String,
    pub is_done: bool,
    pub totals: ScanTotals,
}

impl ScanRange {
    pub fn new(ordinal: i64, folder: &str, after: String, upto: String) -> ScanRange {
        let at = after.clone();
        ScanRange {
            ordinal,
            folder: folder.to_owned(),
            after,
            upto,
            at,
            is_done: false,
            totals: ScanTotals::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanTotals {
    pub listed: u64,
    /// Orphans that can be deleted.
    pub found: u64,
    /// Objects of others, without a row.
    pub foreign: u64,
    /// Rows without their object.
    pub missing: u64,
}

impl std::ops::AddAssign for ScanTotals {
    fn add_assign(&mut self, other: ScanTotals) {
        self.listed += other.listed;
        self.found += other.found;
        self.foreign += other.foreign;
        self.missing += other.missing;
    }
}

/// A scan that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanScan {
    pub id: String,
    pub premise: String,
    /// Its findings are only shown. Nothing is deleted for them.
    pub is_dry_run: bool,
    pub started_at: UnixMs,
    pub ranges: Vec<ScanRange>,
}

/// An object without a live row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanBlob {
    pub key: String,
    pub size: u64,
    /// By the clock of the store.
    pub modified_at: UnixMs,
}

/// A step of progress in a range, with its findings.
#[derive(Clone, Debug)]
pub struct ScanProgress {
    pub scan: String,
    pub ordinal: i64,
    /// The last compared key before this step. If the range has another one, another process continues this scan.
    pub from: String,
    pub to: String,
    pub listed: u64,
    pub foreign: u64,
    pub found: Vec<OrphanBlob>,
    /// Keys of objects that were not in the store.
    pub missing: Vec<String>,
    pub now: UnixMs,
}

struct BeginScan {
    scan: OrphanScan,
}

impl Write for BeginScan {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        tx.run("DELETE FROM orphan_scan_ranges", args![]).await?;
        tx.run("DELETE FROM orphan_scans WHERE ended_at IS NULL", args![]).await?;
        let id = self.scan.id.as_str();
        tx.run(
            "INSERT INTO orphan_scans (id, premise, dry_run, started_at, queued) VALUES ($1, $2, $3, $4, 0)",
            args![id, self.scan.premise.as_str(), i64::from(self.scan.is_dry_run), self.scan.started_at],
        )
        .await?;
        for range in &self.scan.ranges {
            tx.run(
                "INSERT INTO orphan_scan_ranges (scan_id, ordinal, folder, after_key, upto_key, at_key, done, \
                 listed, found, foreign_objects, missing) VALUES ($1, $2, $3, $4, $5, $4, 0, 0, 0, 0, 0)",
                args![
                    id,
                    range.ordinal,
                    range.folder.as_str(),
                    range.after.as_str(),
                    range.upto.as_str()
                ],
            )
            .await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

const FOUND_COLUMNS: usize = 5;

impl Write for ScanProgress {
    type Answer = Result<Vec<String>, CatalogError>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let moved = tx
            .run(
                "UPDATE orphan_scan_ranges SET at_key = $4, listed = listed + $5, found = found + $6, \
                 foreign_objects = foreign_objects + $7, missing = missing + $8 \
                 WHERE scan_id = $1 AND ordinal = $2 AND at_key = $3 AND done = 0",
                args![
                    self.scan.as_str(),
                    self.ordinal,
                    self.from.as_str(),
                    self.to.as_str(),
                    signed(self.listed),
                    self.found.len() as i64,
                    signed(self.foreign),
                    self.missing.len() as i64,
                ],
            )
            .await?;
        if moved == 0 {
            return Ok(TxOutcome::Rollback(Err(CatalogError::Stale)));
        }
        self.insert_found(tx).await?;
        Ok(TxOutcome::Commit(Ok(self.insert_missing(tx).await?)))
    }
}

impl ScanProgress {
    async fn insert_found(&self, tx: &mut Tx<'_>) -> Result<(), CatalogError> {
        for found in self.found.chunks(tx.dialect().rows_max()) {
            let mut args = Vec::new();
            let mut rows = Vec::with_capacity(found.len());
            for blob in found {
                rows.push(format!("({})", places(args.len() + 1, FOUND_COLUMNS)));
                args.extend(args![
                    blob.key.as_str(),
                    signed(blob.size),
                    blob.modified_at,
                    self.scan.as_str(),
                    self.now
                ]);
            }
            let sql = format!(
                "INSERT INTO orphan_blobs (key, size, modified_at, scan_id, found_at) VALUES {} \
                 ON CONFLICT (key) DO UPDATE SET size = excluded.size, modified_at = excluded.modified_at, \
                 scan_id = excluded.scan_id, queued_at = NULL",
                rows.join(", ")
            );
            tx.run_built(sql, args).await?;
        }
        Ok(())
    }

    /// Returns those that no earlier scan had found. Rows are checked again: a file may have been deleted since.
    async fn insert_missing(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, CatalogError> {
        let mut new = Vec::new();
        for keys in self.missing.chunks(tx.dialect().rows_max()) {
            let of_keys = |from: usize| places(from, keys.len());
            let with_keys = |mut args: Vec<Arg>| {
                args.extend(keys.iter().flat_map(|key| args![key.as_str()]));
                args
            };
            let known = format!("UPDATE missing_blobs SET scan_id = $1 WHERE key IN ({})", of_keys(2));
            tx.run_built(known, with_keys(args![self.scan.as_str()])).await?;
            let added = format!(
                "INSERT INTO missing_blobs (key, file_id, scan_id, found_at) \
                 SELECT o.key, o.file_id, CAST($1 AS TEXT), CAST($2 AS BIGINT) \
                 FROM objects o JOIN files f ON f.id = o.file_id WHERE o.key IN ({}) AND {MUST_EXIST} \
                 ON CONFLICT (key) DO NOTHING RETURNING key",
                of_keys(3)
            );
            let rows = tx.rows_built(added, with_keys(args![self.scan.as_str(), self.now])).await?;
            for row in &rows {
                new.push(row.text("key")?);
            }
        }
        Ok(new)
    }
}

/// Ends a range, and deletes findings of earlier scans that this scan did not find again.
struct FinishRange {
    scan: String,
    ordinal: i64,
    limit: usize,
}

impl Write for FinishRange {
    type Answer = Result<bool, CatalogError>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let range = tx
            .row(
                "SELECT after_key, upto_key FROM orphan_scan_ranges WHERE scan_id = $1 AND ordinal = $2",
                args![self.scan.as_str(), self.ordinal],
            )
            .await?;
        let Some(range) = range else { return Ok(TxOutcome::Rollback(Err(CatalogError::Stale))) };
        let bounds =
            args![range.text("after_key")?, range.text("upto_key")?, self.scan.as_str(), self.limit as i64];
        // Orphans with a cleanup are deleted with it.
        let orphans = tx
            .run(
                "DELETE FROM orphan_blobs WHERE key IN (SELECT key FROM orphan_blobs WHERE key > $1 AND key <= $2 \
                 AND scan_id <> $3 AND queued_at IS NULL LIMIT $4)",
                bounds.clone(),
            )
            .await?;
        let missing = tx
            .run(
                "DELETE FROM missing_blobs WHERE key IN (SELECT key FROM missing_blobs WHERE key > $1 AND key <= $2 \
                 AND scan_id <> $3 LIMIT $4)",
                bounds,
            )
            .await?;
        if orphans.max(missing) as usize >= self.limit {
            return Ok(TxOutcome::Commit(Ok(false)));
        }
        tx.run(
            "UPDATE orphan_scan_ranges SET done = 1 WHERE scan_id = $1 AND ordinal = $2",
            args![self.scan.as_str(), self.ordinal],
        )
        .await?;
        Ok(TxOutcome::Commit(Ok(true)))
    }
}

struct EndScan {
    scan: String,
    now: UnixMs,
    alert: Option<String>,
}

impl Write for EndScan {
    type Answer = Result<(), CatalogError>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let scan = self.scan.as_str();
        let ended = tx
            .run(
                "UPDATE orphan_scans SET ended_at = $2 WHERE id = $1 AND ended_at IS NULL",
                args![scan, self.now],
            )
            .await?;
        if ended == 0 {
            return Ok(TxOutcome::Rollback(Err(CatalogError::Stale)));
        }
        tx.run("DELETE FROM orphan_scan_ranges WHERE scan_id = $1", args![scan]).await?;
        tx.run("DELETE FROM orphan_scans WHERE id <> $1", args![scan]).await?;
        if let Some(message) = self.alert.clone() {
            lines::alert(tx, message, self.now).await?;
        }
        Ok(TxOutcome::Commit(Ok(())))
    }
}

fn decode_range(row: &Row) -> Result<ScanRange, CatalogError> {
    Ok(ScanRange {
        ordinal: row.int("ordinal")?,
        folder: row.text("folder")?,
        after: row.text("after_key")?,
        upto: row.text("upto_key")?,
        at: row.text("at_key")?,
        is_done: row.int("done")? != 0,
        totals: ScanTotals {
            listed: row.bytes("listed")?,
            found: row.bytes("found")?,
            foreign: row.bytes("foreign_objects")?,
            missing: row.bytes("missing")?,
        },
    })
}

impl Catalog {
    /// The scan that has not ended, if there is one.
    pub async fn unfinished_scan(&self) -> Result<Option<OrphanScan>, CatalogError> {
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let row = tx
            .row("SELECT id, premise, dry_run, started_at FROM orphan_scans WHERE ended_at IS NULL", args![])
            .await?;
        let Some(row) = row else { return Ok(None) };
        let id = row.text("id")?;
        let ranges = tx
            .rows(
                "SELECT ordinal, folder, after_key, upto_key, at_key, done, listed, found, foreign_objects, missing \
                 FROM orphan_scan_ranges WHERE scan_id = $1 ORDER BY ordinal",
                args![id.as_str()],
            )
            .await?;
        Ok(Some(OrphanScan {
            id,
            premise: row.text("premise")?,
            is_dry_run: row.int("dry_run")? != 0,
            started_at: row.int("started_at")?,
            ranges: ranges.iter().map(decode_range).collect::<Result<_, _>>()?,
        }))
    }

    /// Begins a scan and drops an unfinished one. Findings of earlier scans stay until the new scan ends their range.
    pub async fn begin_scan(
        &self,
        premise: &str,
        is_dry_run: bool,
        ranges: Vec<ScanRange>,
        now: UnixMs,
    ) -> Result<OrphanScan, CatalogError> {
        let (id, premise) = (fresh_id(now).to_string(), premise.to_owned());
        let scan = OrphanScan { id, premise, is_dry_run, started_at: now, ranges };
        self.write(BeginScan { scan: scan.clone() }).await?;
        Ok(scan)
    }

    /// Writes progress in a range; returns the missing objects that were not known before. `Stale`: another process
    /// continues this scan.
    pub async fn advance_scan(&self, progress: ScanProgress) -> Result<Vec<String>, CatalogError> {
        self.write(progress).await?
    }

    /// Deletes at most `limit` outdated findings of a range. True: no more are left, and the range is done.
    pub async fn finish_range(&self, scan: &str, ordinal: i64, limit: usize) -> Result<bool, CatalogError> {
        self.write(FinishRange { scan: scan.to_owned(), ordinal, limit }).await?
    }

    /// Ends a scan; `alert` is sent to operators.
    pub async fn end_scan(&self, scan: &str, alert: Option<String>, now: UnixMs) -> Result<(), CatalogError> {
        let alert = alert.filter(|_| self.rows.targets.slack);
        self.write(EndScan { scan: scan.to_owned(), now, alert }).await?
    }

    /// Some keys that a scan has found, in order.
    pub async fn found_keys(&self, scan: &str, limit: usize) -> Result<Vec<String>, CatalogError> {
        let mut reader = self.reader().await?;
        let sql =
            "SELECT key FROM orphan_blobs WHERE scan_id = $1 AND queued_at IS NULL ORDER BY key LIMIT $2";
        let rows = reader.tx(&self.faults).rows(sql, args![scan, limit as i64]).await?;
        rows.iter().map(|row| row.text("key")).collect()
    }

    pub async fn last_scan_at(&self) -> Result<Option<UnixMs>, CatalogError> {
        let mut reader = self.reader().await?;
        let row =
            reader.tx(&self.faults).row("SELECT MAX(ended_at) AS at FROM orphan_scans", args![]).await?;
        row.map_or(Ok(None), |row| row.maybe_int("at"))
    }
}
