//! pgvector, if the administrator has installed it. Chunks then have a column `embedding` beside the bytes of their
//! vector, and the database compares vectors. The bytes stay the source of truth. pgvector may be removed at any time
//! (`tests/conformance/losing_pgvector.rs`).

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError};

use sqlx::postgres::PgPool;

use crate::Backend;
use crate::Catalog;
use crate::database::sql::{Dialect, Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::migrations::migrate::{MigrationSession, POSTGRES_LOCK};

/// The maximum of a `vector` of pgvector.
pub const DIMENSIONS_MAX: usize = 16_000;

/// Sums of squares in this range keep their precision in 32-bit floats.
const SQUARES: std::ops::Range<f64> = 1e-30..1e30;

/// In older versions `ANALYZE` fails for a table with vectors of different lengths.
const VERSION_MIN: [u32; 3] = [0, 6, 1];

/// The state of pgvector in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PgvectorState {
    /// SQLite, or `CREATE EXTENSION vector` was not run.
    Absent,
    /// It is installed and cannot be used, for this reason.
    Unusable(String),
    /// This version is installed. The next start, or `migrate`, will use it.
    NotPrepared(String),
    /// This version compares vectors.
    Ready(String),
}

/// A separate lock for the index. A start waits for the lock of the schema, and must not wait for this build.
const INDEX_LOCK: i64 = POSTGRES_LOCK + 1;

/// The state of pgvector, and its schema, quoted.
struct Detected {
    state: PgvectorState,
    schema: Option<String>,
}

/// Adds the column `embedding` to chunks, unless another process has done so.
struct AddColumn;

impl Write for AddColumn {
    type Answer = Detected;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Detected>, CatalogError> {
        let found = detect(tx).await?;
        let (PgvectorState::NotPrepared(_), Some(schema)) = (&found.state, &found.schema) else {
            return Ok(TxOutcome::Rollback(found));
        };
        // While this waits for a lock, all other users of the table wait behind it. Search works without pgvector, too.
        tx.run("SET LOCAL lock_timeout = '2s'", args![]).await?;
        let sql = format!("ALTER TABLE chunks ADD COLUMN IF NOT EXISTS embedding {schema}.vector");
        tx.run_built(sql, args![]).await?;
        Ok(TxOutcome::Commit(detect(tx).await?))
    }
}

async fn detect(tx: &mut Tx<'_>) -> Result<Detected, CatalogError> {
    let absent = Detected { state: PgvectorState::Absent, schema: None };
    if tx.dialect() == Dialect::Sqlite {
        return Ok(absent);
    }
    let sql = "SELECT CAST(extension.extversion AS TEXT) AS version, CAST(place.nspname AS TEXT) AS schema, \
        CAST(quote_ident(place.nspname) AS TEXT) AS quoted, \
        CAST(has_schema_privilege(place.oid, 'USAGE') AS TEXT) AS usable, CAST(current_user AS TEXT) AS role, \
        COALESCE((SELECT CASE WHEN atttypid = kind.oid THEN 'ours' ELSE 'another' END FROM pg_attribute \
            WHERE attrelid = to_regclass('chunks') AND attname = 'embedding' AND NOT attisdropped), 'none') AS embedding, \
        CAST(COALESCE((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('chunks')), \
            false) AS TEXT) AS owned \
        FROM pg_extension AS extension JOIN pg_namespace AS place ON place.oid = extension.extnamespace \
        JOIN pg_type AS kind ON kind.typnamespace = extension.extnamespace AND kind.typname = 'vector' \
        WHERE extension.extname = 'vector'";
    let Some(row) = tx.row(sql, args![]).await? else { return Ok(absent) };
    Ok(Detected { state: state_of(&row)?, schema: Some(row.text("quoted")?) })
}

fn state_of(row: &Row) -> Result<PgvectorState, CatalogError> {
    let version = row.text("version")?;
    let unfit = |why: String| Ok(PgvectorState::Unusable(format!("pgvector {version} {why}")));
    if !is_new_enough(&version) {
        let [major, minor, patch] = VERSION_MIN;
        return unfit(format!("is too old; {major}.{minor}.{patch} or newer is needed"));
    }
    if row.text("usable")? != "true" {
        let (schema, role) = (row.text("schema")?, row.text("role")?);
        return unfit(format!(
            "is in schema `{schema}`. Run as its owner: GRANT USAGE ON SCHEMA {schema} TO {role}"
        ));
    }
    match (row.text("embedding")?.as_str(), row.text("owned")?.as_str()) {
        ("ours", _) => Ok(PgvectorState::Ready(version)),
        ("none", "true") => Ok(PgvectorState::NotPrepared(version)),
        ("none", _) => {
            let role = row.text("role")?;
            unfit(format!(
                "needs a new column, and `{role}` does not own the tables. Run `wharfinger migrate` as their owner"
            ))
        }
        _ => unfit("cannot be used: `chunks` has a column `embedding` of another type".into()),
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let [major, minor, patch] = [(); 3].map(|()| numbers.next().unwrap_or(Some(0)));
    matches!((major, minor, patch), (Some(major), Some(minor), Some(patch)) if [major, minor, patch] >= VERSION_MIN)
}

/// A vector as text for pgvector. None if pgvector does not accept it, or if the sum of its squares is too small or too
/// large for exact 32-bit results.
pub(crate) fn literal(vector: &[f32]) -> Option<String> {
    let square: f64 = vector.iter().map(|number| f64::from(*number).powi(2)).sum();
    if !(1..=DIMENSIONS_MAX).contains(&vector.len()) || !(square == 0.0 || SQUARES.contains(&square)) {
        return None;
    }
    let mut text = String::with_capacity(vector.len() * 14 + 1);
    for number in vector {
        text.push(if text.is_empty() { '[' } else { ',' });
        write!(text, "{number:e}").expect("writing to a String does not fail");
    }
    text.push(']');
    Some(text)
}

impl Catalog {
    /// The state of pgvector. Changes nothing.
    pub async fn pgvector(&self) -> Result<PgvectorState, CatalogError> {
        let mut reader = self.reader().await?;
        Ok(detect(&mut reader.tx(&self.faults)).await?.state)
    }

    /// Whether this process uses pgvector. The migration decides it; it ends if pgvector is removed.
    pub fn has_pgvector(&self) -> bool {
        self.pgvector_schema().is_some()
    }

    /// The schema of pgvector's type and operators. Statements have to name it, because the search path has only our schema.
    pub(crate) fn pgvector_schema(&self) -> Option<Arc<str>> {
        self.pgvector_schema.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_pgvector_schema(&self, schema: Option<Arc<str>>) -> Option<Arc<str>> {
        std::mem::replace(&mut *self.pgvector_schema.write().unwrap_or_else(PoisonError::into_inner), schema)
    }

    /// Prepares the use of pgvector, if it is installed. Search works without it, so errors do not stop a start.
    pub(crate) async fn prepare_pgvector(&self) {
        let Backend::Postgres(pool) = &self.backend else { return };
        let found = self.write(AddColumn).await;
        match &found {
            Ok(Detected { state: PgvectorState::Unusable(why), .. }) => {
                tracing::warn!(reason = %why, "search does not use pgvector");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(error = %error, "search does not use pgvector until the next start"),
        }
        let schema = match found {
            Ok(Detected { state: PgvectorState::Ready(_), schema }) => schema.map(Arc::from),
            _ => None,
        };
        let is_ready = schema.is_some();
        self.set_pgvector_schema(schema);
        if is_ready && let Err(error) = self.add_copy_index(pool).await {
            tracing::warn!(error = %error, "cannot build the index of vectors to copy");
        }
    }

    /// Builds the index that finds vectors to copy. If another process is building it, this one continues without it.
    async fn add_copy_index(&self, pool: &PgPool) -> Result<(), CatalogError> {
        let sql = "SELECT CAST(EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('chunks_to_copy') \
                AND indisvalid) AS TEXT) AS there, \
            CAST(COALESCE((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('chunks')), \
                false) AS TEXT) AS owned";
        let row = {
            let mut reader = self.reader().await?;
            reader.tx(&self.faults).row(sql, args![]).await?
        };
        let Some(row) = row else { return Ok(()) };
        if row.text("there")? == "true" || row.text("owned")? != "true" {
            return Ok(());
        }
        let mut session = MigrationSession::begin(self, pool).await?;
        if !session.lock(INDEX_LOCK).await? {
            return Ok(());
        }
        let create = "CREATE INDEX CONCURRENTLY IF NOT EXISTS chunks_to_copy ON chunks (file_id, ordinal) \
            WHERE vector IS NOT NULL AND embedding IS NULL";
        session.build("chunks_to_copy", create.to_owned()).await
    }

    /// After an error of a statement with `embedding`: whether pgvector was removed. If so, this process stops using it.
    pub(crate) async fn has_lost_pgvector(&self, error: &CatalogError) -> bool {
        // PostgreSQL reports unknown types and operators as errors of the statement.
        if !matches!(error, CatalogError::Corrupt(_)) {
            return false;
        }
        let is_lost = matches!(self.pgvector().await, Ok(found) if !matches!(found, PgvectorState::Ready(_)));
        if is_lost && self.set_pgvector_schema(None).is_some() {
            tracing::warn!(
                "pgvector was removed from the database: search does not use it until the next start"
            );
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_invalid_versions_are_not_new_enough() {
        for version in ["0.6.1", "0.6.2", "0.7", "0.10.0", "1", "1.0.0"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["", "0.6", "0.6.0", "0.5.9", "0.6.x", "unpackaged"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }

    #[test]
    fn only_vectors_that_pgvector_accepts_become_text() {
        assert_eq!(literal(&[1.0, -0.5, 3.4e14, 0.0]).as_deref(), Some("[1e0,-5e-1,3.4e14,0e0]"));
        assert!(literal(&vec![1.0; DIMENSIONS_MAX]).is_some());
        assert_eq!(literal(&[0.0, -0.0]).as_deref(), Some("[0e0,-0e0]"));
        for other in [
            vec![],
            vec![1.0; DIMENSIONS_MAX + 1],
            vec![1.0, f32::NAN],
            vec![f32::INFINITY],
            vec![1e-40; 9],
            vec![1e30],
        ] {
            assert_eq!(literal(&other), None);
        }
    }
}
