//! Chunks of a file's text and their vectors. A stage writes them in several transactions, each of which checks its lease.

use std::sync::Arc;

use wharfinger_lifecycle::id::{FileId, JobId};

use crate::Catalog;
use crate::database::sql::{Arg, Row, Tx, args, places, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::derived::outputs::holds_lease;
use crate::derived::pgvector::literal;
use crate::error::CatalogError;
use crate::unreadable::Table;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRow {
    pub ordinal: u64,
    pub text: String,
    /// In characters of the whole text.
    pub start: u64,
    pub end: u64,
}

/// The vector of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkVector {
    pub ordinal: u64,
    pub vector: Vec<f32>,
}

/// Keeps a statement far below the maximum number of values of both databases.
const ROWS_PER_STATEMENT: usize = 200;

/// Inserts chunks. The first call of an attempt deletes those of earlier attempts.
struct PutChunks {
    job: JobId,
    token: i64,
    file: FileId,
    chunks: Vec<ChunkRow>,
    is_first: bool,
}

impl Write for PutChunks {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        if !holds_lease(tx, self.job, self.token).await? {
            return Ok(TxOutcome::Rollback(false));
        }
        if self.is_first {
            tx.run("DELETE FROM chunks WHERE file_id = $1", args![self.file.to_string()]).await?;
        }
        for chunks in self.chunks.chunks(ROWS_PER_STATEMENT) {
            let mut args = args![self.file.to_string()];
            let mut rows = Vec::with_capacity(chunks.len());
            for chunk in chunks {
                rows.push(format!("($1, {})", places(args.len() + 1, 4)));
                args.extend(args![
                    chunk.ordinal as i64,
                    chunk.text.as_str(),
                    chunk.start as i64,
                    chunk.end as i64
                ]);
            }
            let sql = format!(
                "INSERT INTO chunks (file_id, ordinal, text, start_char, end_char) VALUES {}",
                rows.join(", ")
            );
            tx.run_built(sql, args).await?;
        }
        Ok(TxOutcome::Commit(true))
    }
}

#[derive(Clone)]
struct SetVectors {
    job: JobId,
    token: i64,
    file: FileId,
    vectors: Arc<[ChunkVector]>,
    model: Arc<str>,
    /// The schema of pgvector, if the database compares vectors.
    pgvector_schema: Option<Arc<str>>,
}

impl Write for SetVectors {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        if !holds_lease(tx, self.job, self.token).await? {
            return Ok(TxOutcome::Rollback(false));
        }
        let blob = tx.dialect().pick("BLOB", "BYTEA");
        let (columns, types, copied): (_, &[&str], _) = match &self.pgvector_schema {
            Some(schema) => (
                "ordinal, vector, embedding",
                &["BIGINT", blob, "TEXT"],
                format!(", embedding = CAST(new.embedding AS {schema}.vector)"),
            ),
            None => ("ordinal, vector", &["BIGINT", blob], String::new()),
        };
        for vectors in self.vectors.chunks(ROWS_PER_STATEMENT) {
            let sql = format!(
                "WITH new ({columns}) AS (VALUES {}) UPDATE chunks SET vector = new.vector, model = $2{copied} \
                 FROM new WHERE chunks.file_id = $1 AND chunks.ordinal = new.ordinal",
                typed_rows(3, types, vectors.len())
            );
            let mut args = args![self.file.to_string(), &*self.model];
            for one in vectors {
                args.extend(args![one.ordinal as i64, to_bytes(&one.vector)]);
                if self.pgvector_schema.is_some() {
                    args.extend(args![literal(&one.vector)]);
                }
            }
            tx.run_built(sql, args).await?;
        }
        Ok(TxOutcome::Commit(true))
    }
}

fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(crate) fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

fn decode(row: &Row) -> Result<ChunkRow, CatalogError> {
    Ok(ChunkRow {
        ordinal: row.bytes("ordinal")?,
        text: row.text("text")?,
        start: row.bytes("start_char")?,
        end: row.bytes("end_char")?,
    })
}

/// Fails if the chunk, or its vector if it has one, cannot be read.
pub(crate) fn check_readable(row: &Row) -> Result<(), CatalogError> {
    decode(row)?;
    row.parsed::<FileId>("file_id")?;
    row.maybe_blob("vector").map(drop)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkBytes {
    pub text: u64,
    /// How many chunks have a vector.
    pub vectors: u64,
    pub vector_bytes: u64,
}

impl Catalog {
    /// False if the lease is lost.
    pub async fn put_chunks(
        &self,
        (job, token): (JobId, i64),
        file: FileId,
        chunks: Vec<ChunkRow>,
        is_first: bool,
    ) -> Result<bool, CatalogError> {
        self.write(PutChunks { job, token, file, chunks, is_first }).await
    }

    /// False if the lease is lost.
    pub async fn set_vectors(
        &self,
        (job, token): (JobId, i64),
        file: FileId,
        vectors: Vec<ChunkVector>,
        model: &str,
    ) -> Result<bool, CatalogError> {
        let (vectors, model) = (Arc::from(vectors), Arc::from(model));
        let set = SetVectors { job, token, file, vectors, model, pgvector_schema: self.pgvector_schema() };
        match self.write(set.clone()).await {
            Err(error) if set.pgvector_schema.is_some() && self.has_lost_pgvector(&error).await => {
                self.write(SetVectors { pgvector_schema: None, ..set }).await
            }
            other => other,
        }
    }

    /// A page of chunks, from an ordinal on.
    pub async fn chunks(&self, file: FileId, from: u64, limit: usize) -> Result<Vec<ChunkRow>, CatalogError> {
        let sql = "SELECT file_id, ordinal, text, start_char, end_char FROM chunks \
                   WHERE file_id = $1 AND ordinal >= $2 ORDER BY ordinal LIMIT $3";
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        self.chunks_by(sql, args![file.to_string(), from, limit as i64]).await
    }

    /// The same, without chunks that already have a vector of this model.
    pub async fn chunks_to_embed(
        &self,
        file: FileId,
        model: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<ChunkRow>, CatalogError> {
        let sql = "SELECT file_id, ordinal, text, start_char, end_char FROM chunks WHERE file_id = $1 AND ordinal >= $2 \
                   AND (vector IS NULL OR model IS DISTINCT FROM $4) ORDER BY ordinal LIMIT $3";
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        self.chunks_by(sql, args![file.to_string(), from, limit as i64, model]).await
    }

    async fn chunks_by(&self, sql: &'static str, args: Vec<Arg>) -> Result<Vec<ChunkRow>, CatalogError> {
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows(sql, args).await?;
        drop(reader);
        self.all_readable(Table::Chunks, "file_id", &rows, decode).await
    }

    /// The size of the chunks of a file, with the vectors of a model.
    pub async fn chunk_bytes(&self, file: FileId, model: &str) -> Result<ChunkBytes, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT CAST(COALESCE(SUM(OCTET_LENGTH(text)), 0) AS BIGINT) AS text_bytes, \
                   CAST(COALESCE(SUM(CASE WHEN model = $2 THEN OCTET_LENGTH(vector) END), 0) AS BIGINT) AS vector_bytes, \
                   COUNT(CASE WHEN model = $2 AND vector IS NOT NULL THEN 1 END) AS vectors \
                   FROM chunks WHERE file_id = $1";
        let row = reader.tx(&self.faults).row(sql, args![file.to_string(), model]).await?;
        row.map_or(Ok(ChunkBytes::default()), |row| {
            Ok(ChunkBytes {
                text: row.bytes("text_bytes")?,
                vectors: row.bytes("vectors")?,
                vector_bytes: row.bytes("vector_bytes")?,
            })
        })
    }

    pub async fn chunk_count(&self, file: FileId) -> Result<u64, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT COUNT(*) AS chunks FROM chunks WHERE file_id = $1";
        let row = reader.tx(&self.faults).row(sql, args![file.to_string()]).await?;
        row.map_or(Ok(0), |row| row.bytes("chunks"))
    }
}
