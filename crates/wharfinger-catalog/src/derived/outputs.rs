//! Outputs of stages: parts of the text in the store, chunks and vectors in the catalog. They are deleted with the file.
//! Objects of failed attempts are deleted when a later attempt succeeds.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Change, Cleanup, File, Pin};
use wharfinger_lifecycle::id::{FileId, JobId};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::stage_end::{StageOutput, TextPart};

use crate::Catalog;
use crate::changes::Committer;
use crate::cleanups::pending;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::jobs::stage_ends::StageEnd;
use crate::unreadable::Table;

/// A worker that lost its lease may put objects for a while. This is assumed to be longer.
const STRAGGLER_MS_MAX: i64 = 15 * 60_000;

/// Writes cleanups for the objects of deleted files, and deletes the outputs of their stages.
pub(crate) async fn delete_for(
    tx: &mut Tx<'_>,
    changes: &[&Change],
    committer: &Committer,
) -> Result<(), CatalogError> {
    let ended = changes.iter().filter_map(|change| Some((*change, change.cleanup.as_ref()?)));
    let ended: Vec<(&Change, &Cleanup)> = ended.collect();
    let Some(now) = ended.iter().map(|(change, _)| change.after.updated_at).max() else { return Ok(()) };
    let of_original = |(change, cleanup): &(&Change, &Cleanup)| {
        let file = change.after.clone();
        let new = pending::NewCleanup::of(file, Some(&committer.actor), &committer.rows, now);
        (new, cleanup.reason.as_str(), cleanup.finish_at)
    };
    pending::insert_all(tx, &ended.iter().map(of_original).collect::<Vec<_>>(), now).await?;
    let processed: BTreeMap<String, (&Change, &Cleanup)> = ended
        .iter()
        .filter(|(change, _)| change.before.confirmed_at.is_some())
        .map(|(change, cleanup)| (change.after.id.to_string(), (*change, *cleanup)))
        .collect();
    if processed.is_empty() {
        return Ok(());
    }
    let ids = || processed.keys().flat_map(|id| args![id.as_str()]).collect();
    let list = places(1, processed.len());
    for table in ["chunks", "text_parts", "stage_outputs"] {
        tx.run_built(format!("DELETE FROM {table} WHERE file_id IN ({list})"), ids()).await?;
    }
    let sql =
        format!("DELETE FROM objects WHERE file_id IN ({list}) AND kind = 'derived' RETURNING key, file_id");
    let mut cleanups = Vec::new();
    for row in tx.rows_built(sql, ids()).await? {
        if let Some((change, cleanup)) = processed.get(&row.text("file_id")?) {
            cleanups.push(cleanup_of_derived(
                &row,
                &change.after,
                committer,
                (cleanup.reason.as_str(), cleanup.finish_at),
                now,
            )?);
        }
    }
    pending::insert_all(tx, &cleanups, now).await
}

/// The cleanup of a derived object whose row was deleted.
fn cleanup_of_derived<'r>(
    row: &Row,
    file: &File,
    committer: &Committer,
    (reason, finish_at): (&'r str, UnixMs),
    now: UnixMs,
) -> Result<(pending::NewCleanup, &'r str, UnixMs), CatalogError> {
    let key = ObjectKey::parse(&row.text("key")?)
        .map_err(|_| CatalogError::Corrupt("objects holds an invalid key".into()))?;
    let file = File { key, size: 0, part_size: None, ..file.clone() };
    let new = pending::NewCleanup::of(file, Some(&committer.actor), &committer.rows, now);
    Ok((new, reason, finish_at.max(now.saturating_add(STRAGGLER_MS_MAX))))
}

/// Stores the output of a stage, in the transaction that ends the stage.
pub(crate) async fn store(
    tx: &mut Tx<'_>,
    file: &File,
    end: &StageEnd,
    output: &StageOutput,
    committer: &Committer,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let id = file.id.to_string();
    if let (Some(said), Some(stage)) = (&output.details, file.stage) {
        tx.run(
            "INSERT INTO stage_outputs (file_id, stage, done_at, output) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (file_id, stage) DO UPDATE SET done_at = excluded.done_at, output = excluded.output",
            args![id.as_str(), stage.as_str(), now, said.as_str()],
        )
        .await?;
    }
    let Some(parts) = &output.text else { return Ok(()) };
    tx.run("DELETE FROM text_parts WHERE file_id = $1", args![id.as_str()]).await?;
    for (n, part) in parts.iter().enumerate() {
        tx.run(
            "INSERT INTO text_parts (file_id, part, key, etag, object_version, bytes) \
             VALUES ($1, $2, $3, $4, $5, $6)",
            args![
                id.as_str(),
                n as i64,
                part.key.as_str(),
                part.pin.etag.as_str(),
                part.pin.version_id.as_deref(),
                crate::database::sql::signed(part.bytes),
            ],
        )
        .await?;
    }
    // Objects of earlier attempts are not used any more.
    let sql = "DELETE FROM objects WHERE file_id = $1 AND kind = 'derived' AND made_by <> $2 RETURNING key";
    let replaced = tx.rows(sql, args![id, attempt_id(end.job, end.token)]).await?;
    let cleanups =
        replaced.iter().map(|row| cleanup_of_derived(row, file, committer, ("superseded", now), now));
    pending::insert_all(tx, &cleanups.collect::<Result<Vec<_>, _>>()?, now).await
}

/// The id of an attempt.
fn attempt_id(job: JobId, token: i64) -> String {
    format!("{job}.{token}")
}

/// Whether a lease is still valid. Locks the job, so that it stays valid until the end of the transaction.
pub(crate) async fn holds_lease(tx: &mut Tx<'_>, job: JobId, token: i64) -> Result<bool, CatalogError> {
    let sql = tx.dialect().pick(
        "SELECT id FROM jobs WHERE id = $1 AND lease_token = $2 AND state = 'leased'",
        "SELECT id FROM jobs WHERE id = $1 AND lease_token = $2 AND state = 'leased' FOR SHARE",
    );
    Ok(tx.row(sql, args![job.to_string(), token]).await?.is_some())
}

/// Inserts the rows of objects that an attempt is about to put.
struct AddObjects {
    job: JobId,
    token: i64,
    file: FileId,
    keys: Vec<ObjectKey>,
    now: UnixMs,
}

impl Write for AddObjects {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        if !holds_lease(tx, self.job, self.token).await? {
            return Ok(TxOutcome::Rollback(false));
        }
        for key in &self.keys {
            tx.run(
                "INSERT INTO objects (key, file_id, kind, created_at, made_by) VALUES ($1, $2, 'derived', $3, $4) \
                 ON CONFLICT (key) DO NOTHING",
                args![key.as_str(), self.file.to_string(), self.now, attempt_id(self.job, self.token)],
            )
            .await?;
        }
        Ok(TxOutcome::Commit(true))
    }
}

pub(crate) fn decode_part(row: &Row) -> Result<TextPart, CatalogError> {
    let key = row.text("key")?;
    Ok(TextPart {
        key: ObjectKey::parse(&key)
            .map_err(|_| CatalogError::Corrupt(format!("text_parts has the invalid key {key:?}")))?,
        pin: Pin { etag: row.text("etag")?, version_id: row.maybe_text("object_version")? },
        bytes: row.bytes("bytes")?,
    })
}

impl Catalog {
    /// Inserts the rows of objects that an attempt is about to put. False: it has lost its lease.
    pub async fn add_derived_objects(
        &self,
        (job, token): (JobId, i64),
        file: FileId,
        keys: Vec<ObjectKey>,
        now: UnixMs,
    ) -> Result<bool, CatalogError> {
        self.write(AddObjects { job, token, file, keys, now }).await
    }

    /// The parts of the text of a file. Empty before it was extracted.
    pub async fn text_parts(&self, file: FileId) -> Result<Vec<TextPart>, CatalogError> {
        let mut reader = self.reader().await?;
        let rows = reader
            .tx(&self.faults)
            .rows(
                "SELECT file_id, key, etag, object_version, bytes FROM text_parts WHERE file_id = $1 ORDER BY part",
                args![file.to_string()],
            )
            .await?;
        drop(reader);
        // A text with a missing part is not usable.
        self.all_readable(Table::TextParts, "file_id", &rows, decode_part).await
    }

    /// The outputs of stages for these files: file, stage and a JSON object.
    pub async fn stage_outputs(
        &self,
        files: &[FileId],
    ) -> Result<Vec<(FileId, String, String)>, CatalogError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT file_id, stage, output FROM stage_outputs WHERE file_id IN ({})",
            places(1, files.len())
        );
        let args = files.iter().flat_map(|id| args![id.to_string()]).collect();
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        rows.iter().map(|row| Ok((row.parsed("file_id")?, row.text("stage")?, row.text("output")?))).collect()
    }
}
