//! pgvector, where the administrator has put it into the database: chunks then have an `embedding` beside the bytes of
//! their vector, which stay the truth, and the database compares. It is never installed by us, and may go at any time.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::error::CatalogError;
use super::schema::POSTGRES_LOCK;
use super::sql::{Dialect, Row, Tx, args};
use super::writer::{Verdict, Write};
use super::{Backend, Catalog};

/// What a `vector` of pgvector holds at most.
pub const DIMENSIONS_MAX: usize = 16_000;

/// Sums of squares that 32 bits hold with all their digits.
const SQUARES: std::ops::Range<f64> = 1e-30..1e30;

/// Before, `ANALYZE` of a table failed that has vectors of several models.
const OLDEST: [u32; 3] = [0, 6, 1];

/// How a database stands with pgvector, as it is found now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pgvector {
    /// SQLite, or nobody has run `CREATE EXTENSION vector`.
    Absent,
    /// It is there and cannot be used, and this is why.
    Unfit(String),
    /// This version is there; the next start, or `migrate`, makes use of it.
    Unprepared(String),
    /// The database compares vectors, by this version.
    Ready(String),
}

/// One lock for the index alone: making it may take longer than a start waits for the schema's.
const INDEX_LOCK: i64 = POSTGRES_LOCK + 1;

/// Gives chunks their `embedding`, under the lock of the schema: of many processes that start together each finds it.
struct AddColumn;

impl Write for AddColumn {
    type Answer = Pgvector;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Pgvector>, CatalogError> {
        tx.rows("SELECT CAST(pg_advisory_xact_lock($1) AS TEXT)", args![POSTGRES_LOCK]).await?;
        let found = look(tx).await?;
        if !matches!(found, Pgvector::Unprepared(_)) {
            return Ok(Verdict::Rollback(found));
        }
        // While this waits for a long reader, all others wait behind it. Search can do without for once.
        tx.run("SET LOCAL lock_timeout = '2s'", args![]).await?;
        tx.run("ALTER TABLE chunks ADD COLUMN IF NOT EXISTS embedding vector", args![]).await?;
        Ok(Verdict::Commit(look(tx).await?))
    }
}

/// Makes "which vectors are not copied" a cheap question. Whoever comes while another is at it goes on without.
struct AddIndex;

impl Write for AddIndex {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        let sql = "SELECT CAST(pg_try_advisory_xact_lock($1) AS TEXT) AS locked, \
            CAST(to_regclass('chunks_to_copy') IS NULL AS TEXT) AS missing, \
            CAST(COALESCE((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('chunks')), \
                false) AS TEXT) AS owned";
        let Some(row) = tx.row(sql, args![INDEX_LOCK]).await? else { return Ok(Verdict::Rollback(())) };
        for condition in ["locked", "missing", "owned"] {
            if row.text(condition)? != "true" {
                return Ok(Verdict::Rollback(()));
            }
        }
        tx.run("SET LOCAL lock_timeout = '2s'", args![]).await?;
        tx.run("SET LOCAL statement_timeout = 0", args![]).await?;
        let sql = "CREATE INDEX IF NOT EXISTS chunks_to_copy ON chunks (file_id, ordinal) \
                   WHERE vector IS NOT NULL AND embedding IS NULL";
        tx.run(sql, args![]).await?;
        Ok(Verdict::Commit(()))
    }
}

async fn look(tx: &mut Tx<'_>) -> Result<Pgvector, CatalogError> {
    if tx.dialect() == Dialect::Sqlite {
        return Ok(Pgvector::Absent);
    }
    let sql = "SELECT CAST(extension.extversion AS TEXT) AS version, CAST(place.nspname AS TEXT) AS schema, \
        CAST(pg_type_is_visible(kind.oid) AS TEXT) AS visible, CAST(current_user AS TEXT) AS role, \
        COALESCE((SELECT CASE WHEN atttypid = kind.oid THEN 'ours' ELSE 'another' END FROM pg_attribute \
            WHERE attrelid = to_regclass('chunks') AND attname = 'embedding' AND NOT attisdropped), 'none') AS embedding, \
        CAST(COALESCE((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('chunks')), \
            false) AS TEXT) AS owned \
        FROM pg_extension AS extension JOIN pg_namespace AS place ON place.oid = extension.extnamespace \
        JOIN pg_type AS kind ON kind.typnamespace = extension.extnamespace AND kind.typname = 'vector' \
        WHERE extension.extname = 'vector'";
    tx.row(sql, args![]).await?.map_or(Ok(Pgvector::Absent), |row| judge(&row))
}

fn judge(row: &Row) -> Result<Pgvector, CatalogError> {
    let version = row.text("version")?;
    let unfit = |why: String| Ok(Pgvector::Unfit(format!("pgvector {version} {why}")));
    if !is_new_enough(&version) {
        let [major, minor, patch] = OLDEST;
        return unfit(format!("is too old; {major}.{minor}.{patch} or newer is needed"));
    }
    if row.text("visible")? != "true" {
        let schema = row.text("schema")?;
        return unfit(format!("is in the schema `{schema}`, which is not on the search path of this user"));
    }
    match (row.text("embedding")?.as_str(), row.text("owned")?.as_str()) {
        ("ours", _) => Ok(Pgvector::Ready(version)),
        ("none", "true") => Ok(Pgvector::Unprepared(version)),
        ("none", _) => {
            let role = row.text("role")?;
            unfit(format!(
                "needs a column, and `{role}` does not own the tables: run `wharfinger migrate` as who does"
            ))
        }
        _ => unfit("finds a column `embedding` in `chunks` that is not its own".into()),
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let [major, minor, patch] = [(); 3].map(|()| numbers.next().unwrap_or(Some(0)));
    matches!((major, minor, patch), (Some(major), Some(minor), Some(patch)) if [major, minor, patch] >= OLDEST)
}

/// A vector as pgvector reads it; none of what it does not take, or would be wrong about because the squares of its
/// numbers are too small or too large for 32 bits.
pub(super) fn literal(vector: &[f32]) -> Option<String> {
    let square: f64 = vector.iter().map(|number| f64::from(*number).powi(2)).sum();
    if !(1..=DIMENSIONS_MAX).contains(&vector.len()) || !(square == 0.0 || SQUARES.contains(&square)) {
        return None;
    }
    let mut text = String::with_capacity(vector.len() * 14 + 1);
    for number in vector {
        text.push(if text.is_empty() { '[' } else { ',' });
        write!(text, "{number:e}").expect("a String takes everything");
    }
    text.push(']');
    Some(text)
}

impl Catalog {
    /// How the database stands with pgvector. Changes nothing.
    pub async fn pgvector(&self) -> Result<Pgvector, CatalogError> {
        let mut reader = self.reader().await?;
        look(&mut reader.tx(&self.faults)).await
    }

    /// Whether this process lets the database compare vectors, since it has migrated.
    pub fn has_pgvector(&self) -> bool {
        self.has_pgvector.load(Ordering::Relaxed)
    }

    /// Makes use of pgvector where it is there. Nothing depends on that, so that no trouble with it stops a start.
    pub(super) async fn prepare_pgvector(&self) {
        if matches!(self.backend, Backend::Sqlite { .. }) {
            return;
        }
        let found = self.write(AddColumn).await;
        match &found {
            Ok(Pgvector::Unfit(why)) => tracing::warn!("search does without the database: {why}"),
            Ok(_) => {}
            Err(error) => tracing::warn!(error = %error, "search does without pgvector until the next start"),
        }
        let is_ready = matches!(found, Ok(Pgvector::Ready(_)));
        self.has_pgvector.store(is_ready, Ordering::Relaxed);
        if is_ready && let Err(error) = self.write(AddIndex).await {
            tracing::warn!(error = %error, "vectors are looked for without their index until the next start");
        }
    }

    /// After an error of a statement with `embedding` in it: whether pgvector has gone from under us. From then on this
    /// process does without.
    pub(super) async fn has_lost_pgvector(&self, error: &CatalogError) -> bool {
        // PostgreSQL's word for what it does not know is that the statement is wrong.
        if !matches!(error, CatalogError::Corrupt(_)) {
            return false;
        }
        let is_lost = matches!(self.pgvector().await, Ok(found) if !matches!(found, Pgvector::Ready(_)));
        if is_lost && self.has_pgvector.swap(false, Ordering::Relaxed) {
            tracing::warn!("pgvector has gone from the database: search does without until the next start");
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_and_what_is_no_version_are_told_apart() {
        for version in ["0.6.1", "0.6.2", "0.7", "0.10.0", "1", "1.0.0"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["", "0.6", "0.6.0", "0.5.9", "0.6.x", "unpackaged"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }

    #[test]
    fn only_what_pgvector_takes_is_written_for_it() {
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
