//! The schema: numbered steps make the tables, and a list names every index. A step is applied once, whole or not at
//! all. Databases that hold other tables, or a catalog of another version, are refused and left as they are.

use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;

use crate::database::sql::{Dialect, Tx, args};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;

/// Until the first release the first step is edited in place, and catalogs that were made before are refused.
pub(crate) const STEPS: &[&str] = &[include_str!("0001_initial.sql")];
const INDEXES: &str = include_str!("indexes.sql");
/// Names that `indexes.sql` had in an earlier release.
pub(crate) const DROPPED_INDEXES: &[&str] = &[];

/// The number of the newest step this program knows.
pub const SCHEMA_VERSION: i64 = STEPS.len() as i64;

/// The PostgreSQL schema of our tables, unless a setting names another.
pub const DEFAULT_SCHEMA: &str = "wharfinger";

/// Names in an error are enough to recognise an application by.
const NAMES_SHOWN_MAX: usize = 5;

/// An index of the list.
pub(crate) struct Index {
    pub(crate) name: String,
    /// What follows `CREATE INDEX name `.
    definition: String,
}

impl Index {
    pub(crate) fn create(&self) -> String {
        format!("CREATE INDEX IF NOT EXISTS {} {}", self.name, self.definition)
    }

    pub(crate) fn create_concurrently(&self) -> String {
        format!("CREATE INDEX CONCURRENTLY IF NOT EXISTS {} {}", self.name, self.definition)
    }
}

pub(crate) fn indexes() -> Vec<Index> {
    let parse = |statement: String| {
        let rest = statement.strip_prefix("CREATE INDEX ")?;
        let (name, definition) = rest.split_once(' ')?;
        Some(Index { name: name.to_owned(), definition: definition.to_owned() })
    };
    statements(INDEXES).into_iter().filter_map(parse).collect()
}

/// The steps of a schema with their numbers, from 1 on.
fn numbered<'s>(steps: &'s [&'static str]) -> impl Iterator<Item = (i64, &'static str)> + use<'s> {
    (1..).zip(steps.iter().copied())
}

pub(crate) fn steps_after(steps: &[&'static str], reached: i64) -> Vec<i64> {
    numbered(steps).map(|(step, _)| step).filter(|step| *step > reached).collect()
}

/// Applies one step, unless another process has.
pub(crate) struct ApplyStep {
    pub(crate) step: i64,
    pub(crate) steps: Vec<&'static str>,
    pub(crate) schema: String,
    pub(crate) catalog_id: String,
    pub(crate) now: i64,
}

impl Write for ApplyStep {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<bool>, CatalogError> {
        let reached = step(tx, &self.steps, &self.schema).await?;
        let Some((_, text)) = numbered(&self.steps).find(|(step, _)| *step == self.step && *step > reached)
        else {
            return Ok(Verdict::Rollback(false));
        };
        may_create(tx, &self.schema).await?;
        if reached == 0 {
            create_schema(tx, &self.schema).await?;
            tx.run(
                "CREATE TABLE schema_migrations (step BIGINT PRIMARY KEY, fingerprint TEXT NOT NULL, \
                 applied_at BIGINT NOT NULL)",
                args![],
            )
            .await?;
        }
        for statement in statements(&translated(text, tx.dialect())) {
            tx.run_built(statement, args![]).await?;
        }
        tx.run(
            "INSERT INTO schema_migrations (step, fingerprint, applied_at) VALUES ($1, $2, $3)",
            args![self.step, fingerprint(text), self.now],
        )
        .await?;
        if reached == 0 {
            // The tables are empty and belong to this transaction: there is nothing to do beside anybody.
            for index in indexes() {
                tx.run_built(index.create(), args![]).await?;
            }
            vacuum_queues_often(tx).await?;
            tx.run(
                "INSERT INTO catalog_facts (name, value) VALUES ('catalog_id', $1)",
                args![self.catalog_id.as_str()],
            )
            .await?;
        }
        Ok(Verdict::Commit(true))
    }
}

/// Rows of these tables come and go: a claim has to step over each dead one until it is vacuumed.
const QUEUES: [&str; 4] = ["jobs", "pending_cleanups", "outbox", "queue_tenants"];

async fn vacuum_queues_often(tx: &mut Tx<'_>) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    for table in QUEUES {
        let sql = format!(
            "ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, \
             autovacuum_vacuum_cost_delay = 0)"
        );
        tx.run_built(sql, args![]).await?;
    }
    Ok(())
}

/// Creates the indexes that are missing from an SQLite catalog.
pub(crate) struct AddIndexes;

impl Write for AddIndexes {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        for index in indexes() {
            tx.run_built(index.create(), args![]).await?;
        }
        for name in DROPPED_INDEXES {
            tx.run_built(format!("DROP INDEX IF EXISTS {name}"), args![]).await?;
        }
        Ok(Verdict::Commit(()))
    }
}

fn translated(text: &str, dialect: Dialect) -> String {
    text.replace("{bytes}", dialect.pick("COLLATE BINARY", "COLLATE \"C\""))
        .replace("{blob}", dialect.pick("BLOB", "BYTEA"))
}

fn fingerprint(text: &str) -> String {
    to_hex(&Sha256::digest(text.as_bytes()))
}

/// Quoted for a statement. The settings allow no quotes in it.
fn quoted(schema: &str) -> String {
    format!("\"{}\"", schema.replace('"', ""))
}

async fn create_schema(tx: &mut Tx<'_>, schema: &str) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Postgres && !schema_exists(tx, schema).await? {
        tx.run_built(format!("CREATE SCHEMA {}", quoted(schema)), args![]).await?;
    }
    Ok(())
}

async fn schema_exists(tx: &mut Tx<'_>, schema: &str) -> Result<bool, CatalogError> {
    let sql = "SELECT COUNT(*) AS schemas FROM pg_namespace WHERE nspname = $1";
    Ok(tx.row(sql, args![schema]).await?.map_or(Ok(0), |row| row.int("schemas"))? > 0)
}

/// Answers if this user may create tables.
pub(crate) async fn may_create(tx: &mut Tx<'_>, schema: &str) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let sql = "SELECT CAST(current_user AS TEXT) AS role, CAST(current_database() AS TEXT) AS database, \
        CAST(has_database_privilege(current_database(), 'CREATE') AS TEXT) AS may_create_schema, \
        (SELECT CAST(has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') AS TEXT) \
            FROM pg_namespace WHERE nspname = $1) AS may_create_tables";
    let Some(row) = tx.row(sql, args![schema]).await? else { return Ok(()) };
    let (role, database, quoted) = (row.text("role")?, row.text("database")?, quoted(schema));
    match row.maybe_text("may_create_tables")?.as_deref() {
        Some("true") => Ok(()),
        Some(_) => Err(CatalogError::Unusable(format!(
            "`{role}` may not create tables in schema `{schema}` of database `{database}`; as its owner run: \
             GRANT CREATE, USAGE ON SCHEMA {quoted} TO {role}"
        ))),
        None if row.text("may_create_schema")? == "true" => Ok(()),
        None => Err(CatalogError::Unusable(format!(
            "`{role}` may not create the schema `{schema}` in database `{database}`; as its owner run: \
             CREATE SCHEMA {quoted} AUTHORIZATION {role}"
        ))),
    }
}

/// The step a database has reached: 0 is one without any table in our schema.
pub(crate) async fn step(tx: &mut Tx<'_>, steps: &[&'static str], schema: &str) -> Result<i64, CatalogError> {
    let tables = tables(tx, schema).await?;
    let has = |name: &str| tables.iter().any(|table| table == name);
    if has("schema_migrations") {
        return reached(tx, steps).await;
    }
    if has("schema_steps") && has("pending_cleanups") {
        return Err(CatalogError::Unusable(BEFORE_RELEASE.into()));
    }
    if !tables.is_empty() {
        let remedy = tx.dialect().pick(
            "choose another file in WHARFINGER_DATABASE_URL",
            "choose another schema in WHARFINGER_DATABASE_SCHEMA",
        );
        let place =
            tx.dialect().pick("the database".to_owned(), format!("schema `{schema}` of the database"));
        return Err(CatalogError::Unusable(format!(
            "{place} holds tables of another application ({}): {remedy}",
            shown(&tables)
        )));
    }
    if tx.dialect() == Dialect::Postgres {
        let sql = "SELECT COUNT(*) AS tables FROM pg_class \
            WHERE oid IN (to_regclass('public.schema_steps'), to_regclass('public.pending_cleanups'))";
        if tx.row(sql, args![]).await?.map_or(Ok(0), |row| row.int("tables"))? == 2 {
            return Err(CatalogError::Unusable(BEFORE_RELEASE.into()));
        }
    }
    Ok(0)
}

const BEFORE_RELEASE: &str = "the database holds a catalog of a version before the first release, which cannot be \
    migrated: use an empty database";

fn shown(names: &[String]) -> String {
    let first = names.iter().take(NAMES_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Tables and views in our schema.
async fn tables(tx: &mut Tx<'_>, schema: &str) -> Result<Vec<String>, CatalogError> {
    let rows = match tx.dialect() {
        Dialect::Sqlite => {
            let sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') \
                AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
            tx.rows(sql, args![]).await?
        }
        Dialect::Postgres => {
            let sql = "SELECT CAST(c.relname AS TEXT) AS name FROM pg_class c \
                JOIN pg_namespace n ON n.oid = c.relnamespace \
                WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f') \
                AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 1";
            tx.rows(sql, args![schema]).await?
        }
    };
    rows.iter().map(|row| row.text("name")).collect()
}

/// Tables of other applications beside our schema, in words; none on SQLite, where a file is ours alone.
pub(crate) async fn foreign_tables(tx: &mut Tx<'_>, schema: &str) -> Result<Option<String>, CatalogError> {
    if tx.dialect() == Dialect::Sqlite {
        return Ok(None);
    }
    let sql = "SELECT CAST(n.nspname || '.' || c.relname AS TEXT) AS name FROM pg_class c \
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname <> $1 AND n.nspname <> 'information_schema' \
        AND n.nspname NOT LIKE 'pg\\_%' AND c.relkind IN ('r', 'p') \
        AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 1";
    let rows = tx.rows(sql, args![schema]).await?;
    let names = rows.iter().map(|row| row.text("name")).collect::<Result<Vec<_>, _>>()?;
    Ok((!names.is_empty()).then(|| shown(&names)))
}

async fn reached(tx: &mut Tx<'_>, steps: &[&'static str]) -> Result<i64, CatalogError> {
    let rows = tx.rows("SELECT step, fingerprint FROM schema_migrations ORDER BY step", args![]).await?;
    let mut reached = 0;
    for row in &rows {
        reached = row.int("step")?;
        match numbered(steps).find(|(step, _)| *step == reached) {
            None => {
                return Err(CatalogError::Corrupt(format!(
                    "its schema is at step {reached}, this program knows {}: use a newer wharfinger",
                    steps.len()
                )));
            }
            Some((_, text)) if fingerprint(text) != row.text("fingerprint")? => {
                return Err(CatalogError::Unusable(BEFORE_RELEASE.into()));
            }
            Some(_) => {}
        }
    }
    Ok(reached)
}

/// Splits a file of SQL at the semicolons that end lines; comments are whole lines.
fn statements(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    code.join("\n").split(";\n").map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_of_the_list_is_an_index_of_its_own_name() {
        let listed = indexes();
        assert_eq!(listed.len(), statements(INDEXES).len(), "each statement is CREATE INDEX");
        let mut names: Vec<&str> = listed.iter().map(|index| index.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), listed.len());
        assert!(DROPPED_INDEXES.iter().all(|dropped| !names.contains(dropped)));
    }
}
