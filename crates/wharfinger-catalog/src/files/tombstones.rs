//! Removes the rows of ended files that are not needed any more, with everything that belongs to them.

use std::collections::BTreeSet;

use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;

use crate::Catalog;
use crate::database::sql::{Tx, args, places, tuples};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::batches;

struct Forget {
    tombstones: Vec<File>,
}

impl Write for Forget {
    type Answer = Vec<FileId>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let mut gone: Vec<&File> = Vec::new();
        for some in self.tombstones.chunks(tx.dialect().rows_max()) {
            let ids = forget(tx, some).await?;
            gone.extend(some.iter().filter(|file| ids.contains(&file.id.to_string())));
        }
        if gone.is_empty() {
            return Ok(TxOutcome::Rollback(Vec::new()));
        }
        counters::gone(tx, &gone).await?;
        for batch in gone.iter().filter_map(|file| file.batch).collect::<BTreeSet<_>>() {
            batches::forget_if_empty(tx, batch).await?;
        }
        Ok(TxOutcome::Commit(gone.iter().map(|file| file.id).collect()))
    }
}

/// Answers the ids of those that are gone. A tombstone stays while its bytes are charged or wait for their cleanup, and
/// while it is not as it was read.
async fn forget(tx: &mut Tx<'_>, tombstones: &[File]) -> Result<Vec<String>, CatalogError> {
    let count = tombstones.len();
    // The ids once more by themselves: SQLite finds rows by a list of ids, not by a list of pairs.
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
    /// Answers those of these tombstones that are gone now.
    pub async fn purge_tombstones(&self, mut tombstones: Vec<File>) -> Result<Vec<FileId>, CatalogError> {
        if tombstones.is_empty() {
            return Ok(Vec::new());
        }
        tombstones.sort_by_key(|file| file.id);
        self.write(Forget { tombstones }).await
    }
}
