//! The schema: numbered steps create the tables, and a list names the indexes. Each step is applied once, in one
//! transaction. Databases with other tables, or with a catalog of an unknown version, are refused and not changed.

use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;

use crate::database::sql::{Dialect, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;

/// Until the first release the first step is edited in place. Catalogs that were created with an older text are refused.
pub(crate) const STEPS: &[&str] = &[include_str!("0001_initial.sql")];
const INDEXES: &str = include_str!("indexes.sql");
/// Names that `indexes.sql` had in an earlier release.
pub(crate) const DROPPED_INDEXES: &[&str] = &[];

/// The number of the newest step this program knows.
pub const SCHEMA_VERSION: i64 = STEPS.len() as i64;

/// The PostgreSQL schema of our tables, unless a setting names another.
pub const DEFAULT_SCHEMA: &str = "wharfinger";

/// So many table names in an error suffice to recognise an application.
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

/// Applies one step, unless another process has done so.
pub(crate) struct ApplyStep {
    pub(crate) step: i64,
    pub(crate) steps: Vec<&'static str>,
    pub(crate) schema: String,
    pub(crate) catalog_id: String,
    pub(crate) now: i64,
}

impl Write for ApplyStep {
    type Answer = bool;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<bool>, CatalogError> {
        let reached = current_step(tx, &self.steps, &self.schema).await?;
        let Some((_, text)) = numbered(&self.steps).find(|(step, _)| *step == self.step && *step > reached)
        else {
            return Ok(TxOutcome::Rollback(false));
        };
        check_may_create(tx, &self.schema).await?;
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
            // Only this transaction sees the tables, and they are empty: no CONCURRENTLY is needed.
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
        Ok(TxOutcome::Commit(true))
    }
}

/// Rows of these tables are short-lived. A claim has to skip each dead row until it is vacuumed.
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

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        for index in indexes() {
            tx.run_built(index.create(), args![]).await?;
        }
        for name in DROPPED_INDEXES {
            tx.run_built(format!("DROP INDEX IF EXISTS {name}"), args![]).await?;
        }
        Ok(TxOutcome::Commit(()))
    }
}

fn translated(text: &str, dialect: Dialect) -> String {
    text.replace("{bytes}", dialect.pick("COLLATE BINARY", "COLLATE \"C\""))
        .replace("{blob}", dialect.pick("BLOB", "BYTEA"))
}

fn fingerprint(text: &str) -> String {
    to_hex(&Sha256::digest(text.as_bytes()))
}

/// Quoted for a statement. The settings do not allow quotes in the name.
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

/// Fails if this user may not create our tables.
pub(crate) async fn check_may_create(tx: &mut Tx<'_>, schema: &str) -> Result<(), CatalogError> {
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
            "`{role}` may not create tables in schema `{schema}` of database `{database}`. Run as the owner of the schema: \
             GRANT CREATE, USAGE ON SCHEMA {quoted} TO {role}"
        ))),
        None if row.text("may_create_schema")? == "true" => Ok(()),
        None => Err(CatalogError::Unusable(format!(
            "`{role}` may not create the schema `{schema}` in database `{database}`. Run as the owner of the database: \
             CREATE SCHEMA {quoted} AUTHORIZATION {role}"
        ))),
    }
}

/// The last applied step. 0: our schema has no tables.
pub(crate) async fn current_step(
    tx: &mut Tx<'_>,
    steps: &[&'static str],
    schema: &str,
) -> Result<i64, CatalogError> {
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
        let container =
            tx.dialect().pick("the database".to_owned(), format!("schema `{schema}` of the database"));
        return Err(CatalogError::Unusable(format!(
            "{container} holds tables of another application ({}): {remedy}",
            name_list(&tables)
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

const BEFORE_RELEASE: &str = "the database was created by a version before the first release and cannot be migrated: \
    use an empty database";

fn name_list(names: &[String]) -> String {
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

/// The names of tables of other applications outside our schema. None on SQLite: its file holds only our tables.
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
    Ok((!names.is_empty()).then(|| name_list(&names)))
}

async fn reached(tx: &mut Tx<'_>, steps: &[&'static str]) -> Result<i64, CatalogError> {
    let rows = tx.rows("SELECT step, fingerprint FROM schema_migrations ORDER BY step", args![]).await?;
    let mut reached = 0;
    for row in &rows {
        reached = row.int("step")?;
        match numbered(steps).find(|(step, _)| *step == reached) {
            None => {
                return Err(CatalogError::Unusable(format!(
                    "the database schema is at step {reached}, this program knows steps up to {}: use a newer wharfinger",
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

/// Splits SQL text at semicolons at the ends of lines. Comments must be whole lines.
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
