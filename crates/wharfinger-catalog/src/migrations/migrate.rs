//! Migrates the schema while other processes run. On PostgreSQL one session holds an advisory lock outside any
//! transaction. It has no statement timeout, waits for table locks only briefly at a time, and builds missing indexes
//! CONCURRENTLY. Each part can be repeated after a crash.

use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::time::{Instant, sleep};
use wharfinger_lifecycle::UnixMs;

use crate::Backend;
use crate::Catalog;
use crate::database::sql::{Tx, TxConnection, args};
use crate::database::writer::WriteExecution;
use crate::error::CatalogError;
use crate::fresh_id;
use crate::migrations::schema::{self, AddIndexes, ApplyStep, DROPPED_INDEXES, steps_after};

/// The same number in all processes of this program.
pub(crate) const POSTGRES_LOCK: i64 = 0x5768_6172_6669_6e67;
/// The pause between tries to get the lock. A try never waits inside the database: a waiting statement holds a snapshot,
/// and CREATE INDEX CONCURRENTLY waits for every snapshot.
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// While an ALTER TABLE waits for its lock, all users of the table wait behind it. So it gives up soon and tries again.
const TABLE_LOCK_TIMEOUT: &str = "SET lock_timeout = '2s'";
const TABLE_LOCK_PAUSE: Duration = Duration::from_secs(1);
const TABLE_LOCK_MAX_WAIT: Duration = Duration::from_secs(600);

impl Catalog {
    /// Migrates the schema; returns the steps that were applied.
    pub async fn migrate(&self, now: UnixMs) -> Result<Vec<i64>, CatalogError> {
        let applied = match &self.backend {
            Backend::Sqlite { .. } => self.migrate_sqlite(now).await?,
            Backend::Postgres(pool) => self.migrate_postgres(pool, now).await?,
        };
        self.prepare_pgvector().await;
        Ok(applied)
    }

    /// This catalog with one more step of the schema, for tests of migrations.
    #[doc(hidden)]
    pub fn with_step(mut self, step: &'static str) -> Catalog {
        self.steps.push(step);
        self
    }

    async fn is_up_to_date(&self) -> Result<bool, CatalogError> {
        Ok(self.schema_step().await? == self.steps.len() as i64)
    }

    async fn migrate_sqlite(&self, now: UnixMs) -> Result<Vec<i64>, CatalogError> {
        let mut applied = Vec::new();
        for step in steps_after(&self.steps, self.schema_step().await?) {
            if self.write(self.apply_step(step, now)).await? {
                applied.push(step);
            }
        }
        if !self.missing_indexes().await?.is_empty() {
            self.write(AddIndexes).await?;
        }
        Ok(applied)
    }

    fn apply_step(&self, step: i64, now: UnixMs) -> ApplyStep {
        ApplyStep {
            step,
            steps: self.steps.clone(),
            schema: self.schema.clone(),
            catalog_id: fresh_id(now).to_string(),
            now,
        }
    }

    async fn migrate_postgres(&self, pool: &PgPool, now: UnixMs) -> Result<Vec<i64>, CatalogError> {
        if self.is_up_to_date().await? && self.missing_indexes().await?.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = MigrationSession::begin(self, pool).await?;
        while !session.lock(POSTGRES_LOCK).await? {
            // Another process builds indexes, which may take hours. Nothing needs to wait for them.
            if self.is_up_to_date().await? {
                return Ok(Vec::new());
            }
            sleep(LOCK_PAUSE).await;
        }
        let mut applied = Vec::new();
        for step in steps_after(&self.steps, self.schema_step().await?) {
            if session.apply(self.apply_step(step, now)).await? {
                applied.push(step);
            }
        }
        session.build_missing_indexes().await?;
        Ok(applied)
    }

    /// Indexes that are missing, or invalid because their build was interrupted.
    pub async fn missing_indexes(&self) -> Result<Vec<String>, CatalogError> {
        let mut reader = self.reader().await?;
        let valid = valid_indexes(&mut reader.tx(&self.faults), &self.schema).await?;
        let missing = schema::indexes().into_iter().map(|index| index.name);
        Ok(missing.filter(|name| !valid.contains(name)).collect())
    }
}

async fn valid_indexes(tx: &mut Tx<'_>, schema: &str) -> Result<Vec<String>, CatalogError> {
    let sql = tx.dialect().pick(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND $1 <> ''",
        "SELECT CAST(c.relname AS TEXT) AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
         JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND i.indisvalid",
    );
    tx.rows(sql, args![schema]).await?.iter().map(|row| row.text("name")).collect()
}

/// A separate connection that is closed at the end, which ends its settings and locks.
pub(crate) struct MigrationSession<'c> {
    catalog: &'c Catalog,
    connection: PgConnection,
}

impl<'c> MigrationSession<'c> {
    pub(crate) async fn begin(
        catalog: &'c Catalog,
        pool: &PgPool,
    ) -> Result<MigrationSession<'c>, CatalogError> {
        let connection = catalog
            .faults
            .around("connect", async { Ok::<_, CatalogError>(pool.acquire().await?.detach()) })
            .await?;
        let mut session = MigrationSession { catalog, connection };
        let mut tx = session.tx();
        tx.run("SET statement_timeout = 0", args![]).await?;
        tx.run("SET idle_in_transaction_session_timeout = 0", args![]).await?;
        tx.run(TABLE_LOCK_TIMEOUT, args![]).await?;
        Ok(session)
    }

    fn tx(&mut self) -> Tx<'_> {
        Tx { connection: TxConnection::Postgres(&mut self.connection), faults: &self.catalog.faults }
    }

    /// False if another session holds the lock.
    pub(crate) async fn lock(&mut self, lock: i64) -> Result<bool, CatalogError> {
        let sql = "SELECT CAST(pg_try_advisory_lock($1) AS TEXT) AS locked";
        let row = self.tx().row(sql, args![lock]).await?;
        row.map_or(Ok(false), |row| Ok(row.text("locked")? == "true"))
    }

    async fn apply(&mut self, step: ApplyStep) -> Result<bool, CatalogError> {
        let catalog = self.catalog;
        catalog.faults.write_started::<ApplyStep>();
        let mut execution = WriteExecution::new(step, None, None);
        let give_up = Instant::now() + TABLE_LOCK_MAX_WAIT;
        loop {
            let begin = async { Ok::<_, CatalogError>(self.connection.begin().await?) };
            let transaction = catalog.faults.around("begin", begin).await?;
            match catalog.write_in(transaction, &mut execution).await {
                Err(CatalogError::LockTimeout(timeout)) if Instant::now() < give_up => {
                    tracing::info!(error = %timeout, "the migration waits for a table lock");
                    sleep(TABLE_LOCK_PAUSE).await;
                }
                Err(error) => return Err(error),
                Ok(()) => return execution.into_answer(),
            }
        }
    }

    async fn build_missing_indexes(&mut self) -> Result<(), CatalogError> {
        let schema = self.catalog.schema.clone();
        let valid = valid_indexes(&mut self.tx(), &schema).await?;
        for index in schema::indexes() {
            if !valid.contains(&index.name) {
                self.build(&index.name, index.create_concurrently()).await?;
            }
        }
        for name in DROPPED_INDEXES {
            self.run(format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await?;
        }
        Ok(())
    }

    /// An interrupted build leaves an invalid index, which is dropped first.
    pub(crate) async fn build(&mut self, name: &str, create: String) -> Result<(), CatalogError> {
        tracing::info!(index = name, "building an index");
        self.run(format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await?;
        self.run(create).await
    }

    async fn run(&mut self, statement: String) -> Result<(), CatalogError> {
        let give_up = Instant::now() + TABLE_LOCK_MAX_WAIT;
        loop {
            match self.tx().run_built(statement.clone(), args![]).await {
                Err(CatalogError::LockTimeout(_)) if Instant::now() < give_up => {
                    sleep(TABLE_LOCK_PAUSE).await;
                }
                outcome => return outcome.map(drop),
            }
        }
    }
}
