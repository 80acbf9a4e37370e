//! The schema, step by step. A step is applied once, whole or not at all; a catalog of a newer program is
//! refused, because writing to a schema one does not know loses data.

use super::error::CatalogError;
use super::sql::{Dialect, Tx, args};
use super::writer::{Verdict, Write};

const STEPS: &[(i64, &str)] = &[
    (1, include_str!("migrations/0001_foundations.sql")),
    (2, include_str!("migrations/0002_stores.sql")),
    (3, include_str!("migrations/0003_engines.sql")),
    (4, include_str!("migrations/0004_many_processes.sql")),
    (5, include_str!("migrations/0005_pipeline.sql")),
    (6, include_str!("migrations/0006_sweeps.sql")),
    (7, include_str!("migrations/0007_orphan_blobs.sql")),
    (8, include_str!("migrations/0008_archive.sql")),
    (9, include_str!("migrations/0009_figures.sql")),
];

/// The number of the newest step this program knows.
pub const SCHEMA_VERSION: i64 = STEPS[STEPS.len() - 1].0;

/// An arbitrary number that all processes of this program agree on.
pub(super) const POSTGRES_LOCK: i64 = 0x5768_6172_6669_6e67;

pub(super) struct Migrate {
    pub(super) catalog_id: String,
    pub(super) now: i64,
}

impl Write for Migrate {
    type Answer = Vec<i64>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Vec<i64>>, CatalogError> {
        if tx.dialect() == Dialect::Postgres {
            tx.rows("SELECT CAST(pg_advisory_xact_lock($1) AS TEXT)", args![POSTGRES_LOCK]).await?;
        }
        if step(tx).await? == SCHEMA_VERSION {
            return Ok(Verdict::Rollback(Vec::new()));
        }
        may_create(tx).await?;
        tx.run(
            "CREATE TABLE IF NOT EXISTS schema_steps (step BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)",
            args![],
        )
        .await?;
        let reached = reached(tx).await?;
        let mut applied = Vec::new();
        for &(step, text) in STEPS {
            if step <= reached {
                continue;
            }
            let text = text
                .replace("{bytes}", tx.dialect().pick("COLLATE BINARY", "COLLATE \"C\""))
                .replace("{blob}", tx.dialect().pick("BLOB", "BYTEA"))
                .replace("{now}", &self.now.to_string())
                .replace(
                    "{outbox alone}",
                    tx.dialect().pick("", "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE;"),
                )
                .replace(
                    "{files alone}",
                    tx.dialect()
                        .pick("", "LOCK TABLE upload_batches, files, file_counts IN ACCESS EXCLUSIVE MODE;"),
                );
            for statement in statements(&text) {
                tx.run_built(statement, args![]).await?;
            }
            tx.run("INSERT INTO schema_steps (step, applied_at) VALUES ($1, $2)", args![step, self.now])
                .await?;
            applied.push(step);
        }
        tx.run(
            "INSERT INTO catalog_facts (name, value) VALUES ('catalog_id', $1) ON CONFLICT (name) DO NOTHING",
            args![self.catalog_id.as_str()],
        )
        .await?;
        Ok(Verdict::Commit(applied))
    }
}

/// Answers if this user may make tables.
pub(super) async fn may_create(tx: &mut Tx<'_>) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let sql = "SELECT CAST(current_user AS TEXT) AS role, CAST(current_database() AS TEXT) AS database, \
        CAST(COALESCE(current_schema(), 'public') AS TEXT) AS schema, \
        CAST(COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false) AS TEXT) AS may";
    let Some(row) = tx.row(sql, args![]).await? else { return Ok(()) };
    if row.text("may")? == "true" {
        return Ok(());
    }
    let (role, schema) = (row.text("role")?, row.text("schema")?);
    Err(CatalogError::Unusable(format!(
        "`{role}` may not create tables in the database `{}`; as its owner run: GRANT CREATE ON SCHEMA {schema} TO {role}",
        row.text("database")?
    )))
}

/// The step a database has reached, which may have none of our tables.
pub(super) async fn step(tx: &mut Tx<'_>) -> Result<i64, CatalogError> {
    let sql = tx.dialect().pick(
        "SELECT COUNT(*) AS tables FROM sqlite_master WHERE name = 'schema_steps'",
        "SELECT COUNT(*) AS tables FROM pg_class WHERE oid = to_regclass('schema_steps')",
    );
    match tx.row(sql, args![]).await?.map(|row| row.int("tables")).transpose()? {
        Some(1) => reached(tx).await,
        _ => Ok(0),
    }
}

async fn reached(tx: &mut Tx<'_>) -> Result<i64, CatalogError> {
    let row =
        tx.row("SELECT CAST(COALESCE(MAX(step), 0) AS BIGINT) AS step FROM schema_steps", args![]).await?;
    let reached = row.map_or(Ok(0), |row| row.int("step"))?;
    if reached > SCHEMA_VERSION {
        return Err(CatalogError::Corrupt(format!(
            "its schema is at step {reached}, this program knows {SCHEMA_VERSION}: use a newer wharfinger"
        )));
    }
    Ok(reached)
}

/// Splits a file of SQL at the semicolons that end lines; comments are whole lines.
fn statements(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    code.join("\n").split(";\n").map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
}
