//! Deletes the rows of deleted files that are not needed any more, with their related rows.

use std::collections::BTreeSet;

use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;

use crate::Catalog;
use crate::database::sql::{Tx, args, places, tuples};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::batches;

struct PurgeTombstones {
    tombstones: Vec<File>,
}

impl Write for PurgeTombstones {
    type Answer = Vec<FileId>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let mut deleted: Vec<&File> = Vec::new();
        for some in self.tombstones.chunks(tx.dialect().rows_max()) {
            let ids = purge_tombstones(tx, some).await?;
            deleted.extend(some.iter().filter(|file| ids.contains(&file.id.to_string())));
        }
        if deleted.is_empty() {
            return Ok(TxOutcome::Rollback(Vec::new()));
        }
        counters::removed(tx, &deleted).await?;
        for batch in deleted.iter().filter_map(|file| file.batch).collect::<BTreeSet<_>>() {
            batches::delete_if_empty(tx, batch).await?;
        }
        Ok(TxOutcome::Commit(deleted.iter().map(|file| file.id).collect()))
    }
}

/// Returns the ids of the deleted rows. A tombstone stays while it is charged, while a cleanup of its bytes waits, and if
/// it has changed since it was read.
async fn purge_tombstones(tx: &mut Tx<'_>, tombstones: &[File]) -> Result<Vec<String>, CatalogError> {
    let count = tombstones.len();
    // The list of ids is there for SQLite, which uses the index for it, but not for a list of pairs.
    let sql = format!(
        "DELETE FROM files WHERE id IN ({}) AND (id, version) IN (VALUES {}) AND pipeline_status = 'deleted' \
         AND charged_bytes = 0 AND NOT EXISTS (SELECT 1 FROM pending_cleanups WHERE document_id = files.id) \
         RETURNING id",
        places(1, count),
        tuples(count + 1, count, 2)
    );
    let ids = tombstones.iter().flat_map(|file| args![file.id.to_string()]);
    let pairs = tombstones.iter().flat_map(|file| args![file.id.to_string(), file.version]);
    let rows = tx.rows_built(sql, ids.chain(pairs).collect()).await?;
    let ids: Vec<String> = rows.iter().map(|row| row.text("id")).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        return Ok(ids);
    }
    for table in ["objects", "file_history", "jobs", "stage_outputs"] {
        let sql = format!("DELETE FROM {table} WHERE file_id IN ({})", places(1, ids.len()));
        tx.run_built(sql, ids.iter().flat_map(|id| args![id.as_str()]).collect()).await?;
    }
    Ok(ids)
}

impl Catalog {
    /// Returns those of these tombstones that were deleted now.
    pub async fn purge_tombstones(&self, mut tombstones: Vec<File>) -> Result<Vec<FileId>, CatalogError> {
        if tombstones.is_empty() {
            return Ok(Vec::new());
        }
        tombstones.sort_by_key(|file| file.id);
        self.write(PurgeTombstones { tombstones }).await
    }
}
