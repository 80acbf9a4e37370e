//! Copies vectors to the column that pgvector compares: those that were written before pgvector was installed, or by a
//! process that does not use it. A search finds vectors without a copy, too, but slower.

use std::sync::Arc;

use crate::Catalog;
use crate::database::sql::{Tx, args, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::derived::pgvector::{DIMENSIONS_MAX, literal};
use crate::derived::search::decode;
use crate::error::CatalogError;
use crate::unreadable::{self, Table};

/// A vector may have 64 kB, and three times as much as text.
const PAGE_VECTORS: usize = 100;
/// The maximum of pgvector.
const VECTOR_BYTES_MAX: i64 = (DIMENSIONS_MAX * size_of::<f32>()) as i64;

/// The file and the ordinal of a chunk. Plain values, because the row may be unreadable.
pub type CopyCursor = (String, i64);

struct CopyVectors {
    after: Option<CopyCursor>,
    pgvector_schema: Arc<str>,
}

impl Write for CopyVectors {
    type Answer = Option<CopyCursor>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let (id, ordinal) = self.after.clone().unwrap_or((String::new(), -1));
        // Locked rows are being copied, deleted or rewritten by another transaction.
        let sql = "SELECT file_id, ordinal, vector FROM chunks WHERE vector IS NOT NULL AND embedding IS NULL \
                   AND octet_length(vector) <= $4 AND file_id >= $1 AND (file_id > $1 OR ordinal > $2) \
                   ORDER BY file_id, ordinal LIMIT $3 FOR UPDATE SKIP LOCKED";
        let rows = tx.rows(sql, args![id, ordinal, PAGE_VECTORS as i64, VECTOR_BYTES_MAX]).await?;
        let (page, others) = unreadable::split(&rows, "file_id", decode);
        unreadable::record(tx, Table::Chunks, &others).await?;
        let mut args = args![];
        for one in &page {
            if let Some(literal) = literal(&one.vector) {
                args.extend(args![one.file.to_string(), one.ordinal as i64, literal]);
            }
        }
        if !args.is_empty() {
            let sql = format!(
                "WITH new (file_id, ordinal, embedding) AS (VALUES {}) \
                 UPDATE chunks SET embedding = CAST(new.embedding AS {}.vector) FROM new \
                 WHERE chunks.file_id = new.file_id AND chunks.ordinal = new.ordinal",
                typed_rows(1, &["TEXT", "BIGINT", "TEXT"], args.len() / 3),
                self.pgvector_schema
            );
            tx.run_built(sql, args).await?;
        }
        // Not the last readable row: the page may have none, and then the later vectors were never copied.
        let last = rows.last().map(|row| Ok::<_, CatalogError>((row.text("file_id")?, row.int("ordinal")?)));
        Ok(TxOutcome::Commit(last.transpose()?))
    }
}

impl Catalog {
    /// Copies a page of vectors after a cursor; returns the next cursor. None: nothing is left, or pgvector is not used.
    pub async fn copy_vectors(&self, after: Option<CopyCursor>) -> Result<Option<CopyCursor>, CatalogError> {
        let Some(pgvector_schema) = self.pgvector_schema() else { return Ok(None) };
        match self.write(CopyVectors { after, pgvector_schema }).await {
            Err(error) if self.has_lost_pgvector(&error).await => Ok(None),
            other => other,
        }
    }

    /// How many vectors are not copied yet. Only valid if [`Catalog::pgvector`] is ready.
    pub async fn vectors_to_copy(&self) -> Result<u64, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT COUNT(*) AS chunks FROM chunks WHERE vector IS NOT NULL AND embedding IS NULL \
                   AND octet_length(vector) <= $1";
        let row = reader.tx(&self.faults).row(sql, args![VECTOR_BYTES_MAX]).await?;
        row.map_or(Ok(0), |row| row.bytes("chunks"))
    }
}
