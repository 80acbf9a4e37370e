//! The catalog: the source of truth about files, quotas, jobs and cleanups. SQLite for one machine, PostgreSQL for many
//! processes. Most code and SQL is the same for both.

mod audit_log;
mod changes;
mod cleanups;
mod database;
mod derived;
mod error;
mod figures;
mod files;
mod jobs;
mod leases;
mod migrations;
mod orphans;
mod outbox;
mod quota;
mod registrations;
mod service_keys;
mod sweep_runs;
mod sweeps;
mod unreadable;

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use sqlx::postgres::PgPool;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _};
use uuid::{NoContext, Timestamp, Uuid};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::{TenantId, UserId};

pub use audit_log::{AuditEntry, AuditLine};
pub use cleanups::counts::CleanupCounts;
pub use cleanups::deletion_log::{AbortedUpload, Deletion, DeletionCursor, REASON_UNFINISHED_UPLOAD};
pub use cleanups::pending::{
    ClaimedCleanup, CleanupOutcome, CleanupTotals, EXHAUSTED_RETRY_MS, PendingCleanup,
};
pub use database::sql::Dialect;
pub use derived::chunks::{ChunkBytes, ChunkRow, ChunkVector};
pub use derived::pgvector::{DIMENSIONS_MAX, PgvectorState};
pub use derived::search::{Candidates, StoredVector};
pub use derived::vector_copies::CopyCursor;
pub use error::CatalogError;
pub use figures::counters::OUTCOME_SPAN_MS;
pub use figures::dashboard::{COUNTED_MAX, Figures, Outcomes, RecentError, StatusCounts};
pub use files::batches::{BatchEndOutcome, BatchEnding};
pub use files::history::history_lines_cut;
pub use files::idempotency::IdempotencyKey;
pub use files::rows::{AbandonedRule, FailedStatus, HistoryLine};
pub use jobs::claims::{JobClaim, LeasedJob, WaitingCheck};
pub use jobs::dead_letters::{DeadLetter, RedriveOutcome};
pub use jobs::delayed::{FailOutcome, NewJob};
pub use jobs::recoveries::{Recovery, RecoveryOutcome};
pub use jobs::stage_claims::{ClaimError, Claimable, LeasedStageJob, StageClaim};
pub use jobs::stage_ends::{StageEnd, StageEndContext};
pub use jobs::stage_workers::WaitingStage;
pub use jobs::stuck_files::{StuckCursor, StuckFile};
pub use migrations::schema::{DEFAULT_SCHEMA, SCHEMA_VERSION};
pub use orphans::blobs::{
    FoundOrphan, KeySample, MissingBlob, MissingBlobs, ObjectRow, ObjectState, OrphanCleanupCounts, Orphans,
    QueuedOrphans, REASON_ORPHAN,
};
pub use orphans::scans::{OrphanBlob, OrphanScan, ScanProgress, ScanRange, ScanTotals};
pub use outbox::lines::{Destination, OutboxLine, OutboxPayload};
pub use outbox::notifications::Notification;
pub use quota::charges::QuotaDrift;
pub use quota::owner::{MoveQuota, MovedQuota, QuotaOwner, QuotaState};
pub use registrations::{Admission, BatchUse, NewFile, RegisterOutcome, Registration};
pub use service_keys::{KeyUse, SERVICE_KEYS_MAX, ServiceKey};
pub use sweep_runs::{RUN_LOST, RecordedRun, RunEffect, RunStart, SWEEP_RUNS_KEPT};
pub use sweeps::{Fence, SweepClaim, SweepClaimOutcome, SweepRecord, SweepState};
pub use unreadable::{Table, UnreadableRow};

use database::connect::{ReconnectTimer, without_maintenance};
use database::sql::{Arg, Tx, TxConnection, args};
use database::writer::{AnyWrite, Write, WriteExecution, Writer};
use wharfinger_calls::faults::Faults;

/// The rows that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    User(TenantId, UserId),
    Tenant(TenantId),
    All,
}

impl Scope {
    pub fn covers(&self, tenant: &TenantId, user: &UserId) -> bool {
        match self {
            Scope::User(own_tenant, own_user) => own_tenant == tenant && own_user == user,
            Scope::Tenant(own_tenant) => own_tenant == tenant,
            Scope::All => true,
        }
    }

    /// An SQL condition on `tenant_id` and `user_id`, to append to another one. Its values are added to `args`.
    fn condition(&self, args: &mut Vec<Arg>) -> String {
        let at = args.len();
        match self {
            Scope::All => String::new(),
            Scope::Tenant(tenant) => {
                args.extend(args![tenant.as_str()]);
                format!("AND tenant_id = ${}", at + 1)
            }
            Scope::User(tenant, user) => {
                args.extend(args![tenant.as_str(), user.as_str()]);
                format!("AND tenant_id = ${} AND user_id = ${}", at + 1, at + 2)
            }
        }
    }
}

/// The database of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogUrl {
    Sqlite(PathBuf),
    Postgres(String),
}

#[derive(Clone, Debug)]
pub struct CatalogOptions {
    pub url: CatalogUrl,
    /// The PostgreSQL schema of all tables; SQLite has none.
    pub schema: String,
    pub faults: Faults,
    /// The kind of store that is written into cleanup rows.
    pub storage_type: &'static str,
    pub cleanup_max_attempts: u32,
    /// Attempts of one job of a stage.
    pub job_max_attempts: u32,
    pub connections_max: u32,
    /// Redis may admit uploads, so charges and refunds lock the quota owner first. Without it they update the tenant's row
    /// and lock the owner only if another process has moved the quota to Redis.
    pub with_redis_quota: bool,
    pub targets: OutboxTargets,
}

/// Who besides the owner receives messages. Each receiver gets its own lines in the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxTargets {
    /// Every notification.
    pub webhook: bool,
    /// Alerts for operators.
    pub slack: bool,
    /// Every event of files and batches.
    pub archive: bool,
}

/// Settings for the rows that changes of files create.
#[derive(Clone, Copy, Debug)]
struct RowSettings {
    storage_type: &'static str,
    cleanup_max_attempts: u32,
    job_max_attempts: u32,
    with_redis_quota: bool,
    targets: OutboxTargets,
}

#[derive(Clone)]
enum Backend {
    Sqlite { writer: Writer, readers: SqlitePool },
    Postgres(PgPool),
}

/// A connection only for [`Catalog::ping`].
#[derive(Clone)]
enum HealthPool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

#[derive(Clone)]
pub struct Catalog {
    backend: Backend,
    health: HealthPool,
    schema: String,
    /// The schema steps that this program knows.
    steps: Vec<&'static str>,
    faults: Faults,
    rows: RowSettings,
    /// The schema of pgvector, if the database compares vectors. Set by the migration, cleared when pgvector is removed.
    pgvector_schema: Arc<RwLock<Option<Arc<str>>>>,
    /// Set while a sweep writes.
    fence: Option<Fence>,
    /// Set while an operator or admin changes something.
    audit: Option<Arc<AuditEntry>>,
    /// Set in a dry run.
    is_read_only: bool,
}

/// A pooled connection for reads.
enum Reader {
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>),
    Postgres { connection: sqlx::pool::PoolConnection<sqlx::Postgres>, pool: PgPool },
}

impl Reader {
    fn tx<'r>(&'r mut self, faults: &'r Faults) -> Tx<'r> {
        let connection = match self {
            Reader::Sqlite(connection) => TxConnection::Sqlite(connection),
            Reader::Postgres { connection, pool } => TxConnection::PostgresReads { connection, pool },
        };
        Tx { connection, faults }
    }
}

/// How often a write is tried that conflicts with others (deadlock, serialization failure).
const WRITE_TRIES_MAX: u32 = 5;

impl Catalog {
    /// Opens the catalog; its schema may still have to be migrated. Waits for a server that is not ready yet.
    pub async fn open(options: CatalogOptions) -> Result<Catalog, CatalogError> {
        Catalog::open_with_timeout(options, database::connect::START_TIMEOUT).await
    }

    /// The same, waiting for the server at most `max_wait`.
    pub async fn open_with_timeout(
        options: CatalogOptions,
        max_wait: Duration,
    ) -> Result<Catalog, CatalogError> {
        let (backend, health) = match &options.url {
            CatalogUrl::Sqlite(path) => {
                let connection = open_sqlite_writer(path).await?;
                let writer = Writer::start(connection, sqlite_options(path), options.faults.clone());
                let readers = without_maintenance(SqlitePoolOptions::new())
                    .max_connections(options.connections_max.clamp(1, 8))
                    .acquire_timeout(Duration::from_secs(10))
                    .connect_with(sqlite_options(path).read_only(true))
                    .await?;
                let health = without_maintenance(SqlitePoolOptions::new())
                    .max_connections(1)
                    .acquire_timeout(Duration::from_secs(10))
                    .connect_lazy_with(sqlite_options(path).read_only(true));
                (Backend::Sqlite { writer, readers }, HealthPool::Sqlite(health))
            }
            CatalogUrl::Postgres(url) => {
                let pools =
                    database::connect::open(url, &options.schema, options.connections_max, max_wait).await?;
                (Backend::Postgres(pools.work), HealthPool::Postgres(pools.health))
            }
        };
        Ok(Catalog {
            backend,
            health,
            schema: options.schema,
            steps: migrations::schema::STEPS.to_vec(),
            faults: options.faults,
            rows: RowSettings {
                storage_type: options.storage_type,
                cleanup_max_attempts: options.cleanup_max_attempts,
                job_max_attempts: options.job_max_attempts,
                with_redis_quota: options.with_redis_quota,
                targets: options.targets,
            },
            pgvector_schema: Arc::default(),
            fence: None,
            audit: None,
            is_read_only: false,
        })
    }

    /// The last step of the schema that was applied: [`SCHEMA_VERSION`] is up to date, 0 is an empty database.
    pub async fn schema_step(&self) -> Result<i64, CatalogError> {
        let mut reader = self.reader().await?;
        migrations::schema::current_step(&mut reader.tx(&self.faults), &self.steps, &self.schema).await
    }

    pub fn dialect(&self) -> Dialect {
        match self.backend {
            Backend::Sqlite { .. } => Dialect::Sqlite,
            Backend::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Fails if this database user may not migrate the schema. Changes nothing.
    pub async fn check_may_migrate(&self) -> Result<(), CatalogError> {
        let mut reader = self.reader().await?;
        migrations::schema::check_may_create(&mut reader.tx(&self.faults), &self.schema).await
    }

    /// Tables of other applications in the same database, outside our schema.
    pub async fn foreign_tables(&self) -> Result<Option<String>, CatalogError> {
        let mut reader = self.reader().await?;
        migrations::schema::foreign_tables(&mut reader.tx(&self.faults), &self.schema).await
    }

    /// Fails if the catalog cannot be read now. Uses a separate connection, so that load does not delay it.
    pub async fn ping(&self) -> Result<(), CatalogError> {
        let mut reader = self
            .faults
            .around("connect", async {
                Ok::<_, CatalogError>(match &self.health {
                    HealthPool::Sqlite(pool) => Reader::Sqlite(pool.acquire().await?),
                    HealthPool::Postgres(pool) => {
                        Reader::Postgres { connection: pool.acquire().await?, pool: pool.clone() }
                    }
                })
            })
            .await?;
        reader.tx(&self.faults).rows("SELECT CAST(1 AS BIGINT) AS one", Vec::new()).await?;
        Ok(())
    }

    /// The clock of the database server, which processes on all machines share. SQLite has none.
    pub async fn server_time(&self) -> Result<Option<UnixMs>, CatalogError> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(None);
        }
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT) AS now", Vec::new())
            .await?;
        row.map(|row| row.int("now")).transpose()
    }

    /// Closes all connections once their running statements are done. Other handles cannot read any more; on SQLite the
    /// writer ends with the last handle.
    pub async fn close(self) {
        match self.health {
            HealthPool::Sqlite(pool) => pool.close().await,
            HealthPool::Postgres(pool) => pool.close().await,
        }
        match self.backend {
            // The writer ends when its last handle is dropped and its queue is empty.
            Backend::Sqlite { writer, readers } => {
                drop(writer);
                readers.close().await;
            }
            Backend::Postgres(pool) => pool.close().await,
        }
    }

    async fn reader(&self) -> Result<Reader, CatalogError> {
        self.faults
            .around("connect", async {
                Ok(match &self.backend {
                    Backend::Sqlite { readers, .. } => Reader::Sqlite(readers.acquire().await?),
                    Backend::Postgres(pool) => {
                        Reader::Postgres { connection: pool.acquire().await?, pool: pool.clone() }
                    }
                })
            })
            .await
    }

    /// This catalog for a dry run: writes are refused.
    pub fn read_only(&self) -> Catalog {
        Catalog { is_read_only: true, ..self.clone() }
    }

    async fn write<W: Write>(&self, write: W) -> Result<W::Answer, CatalogError> {
        if self.is_read_only {
            return Err(CatalogError::Corrupt("a dry run tried to write".into()));
        }
        self.faults.write_started::<W>();
        let mut execution = WriteExecution::new(write, self.fence.clone(), self.audit.clone());
        match &self.backend {
            Backend::Sqlite { writer, .. } => writer.write(execution).await,
            Backend::Postgres(pool) => {
                self.write_postgres(pool, &mut execution).await?;
                execution.into_answer()
            }
        }
    }

    async fn write_postgres(&self, pool: &PgPool, write: &mut dyn AnyWrite) -> Result<(), CatalogError> {
        let mut tries = 1;
        let mut reconnect = None;
        loop {
            match self.try_write_postgres(pool, write).await {
                Err(CatalogError::Repeat(_)) if tries < WRITE_TRIES_MAX => tries += 1,
                Err(error @ CatalogError::Disconnected(_)) => {
                    if !reconnect.get_or_insert_with(ReconnectTimer::start).wait_before_retry().await {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_write_postgres(&self, pool: &PgPool, write: &mut dyn AnyWrite) -> Result<(), CatalogError> {
        let transaction =
            self.faults.around("begin", async { Ok::<_, CatalogError>(pool.begin().await?) }).await?;
        self.write_in(transaction, write).await
    }

    async fn write_in(
        &self,
        mut transaction: sqlx::Transaction<'_, sqlx::Postgres>,
        write: &mut dyn AnyWrite,
    ) -> Result<(), CatalogError> {
        let mut tx = Tx { connection: TxConnection::Postgres(&mut transaction), faults: &self.faults };
        match write.run(&mut tx).await {
            Ok(true) => {
                let mut open = Some(transaction);
                let commit = async {
                    match open.take() {
                        Some(transaction) => Ok::<_, CatalogError>(transaction.commit().await?),
                        None => Ok(()),
                    }
                };
                let committed = self.faults.around("commit", commit).await;
                // The commit was not sent: roll back now. The pool would do it at some later time.
                if let Some(transaction) = open {
                    let _ = transaction.rollback().await;
                }
                committed.map_err(|error| CatalogError::Unknown(error.to_string()))
            }
            ran => {
                // If the rollback fails, the connection is broken and the server rolls back.
                let _ = transaction.rollback().await;
                ran.map(|_| ())
            }
        }
    }
}

fn sqlite_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30))
        .statement_cache_capacity(256)
        .log_statements(tracing::log::LevelFilter::Off)
}

/// Opening fails while another process converts the file to WAL mode: SQLite's busy timeout does not cover that lock.
const OPEN_TRIES_MAX: u32 = 200;
const OPEN_RETRY_PAUSE: Duration = Duration::from_millis(25);

async fn open_sqlite_writer(path: &Path) -> Result<SqliteConnection, CatalogError> {
    let options = sqlite_options(path).create_if_missing(true);
    let mut tries = 1;
    loop {
        match SqliteConnection::connect_with(&options).await {
            Err(error) if tries < OPEN_TRIES_MAX && is_busy(&error) => {
                tries += 1;
                tokio::time::sleep(OPEN_RETRY_PAUSE).await;
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// SQLITE_BUSY or one of its extended codes: all have the same low byte.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    code.is_some_and(|code| code & 0xff == 5)
}

/// A new id that sorts by time. The time comes from the caller's clock, as all times in the catalog do.
pub fn fresh_id(now: UnixMs) -> Uuid {
    let ms = u64::try_from(now).unwrap_or(0);
    let nanos = u32::try_from(ms % 1_000).unwrap_or(0) * 1_000_000;
    Uuid::new_v7(Timestamp::from_unix(NoContext, ms / 1_000, nanos))
}
