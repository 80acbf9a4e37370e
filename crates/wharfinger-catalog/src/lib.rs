//! The catalog: the only truth about files, quotas, jobs and cleanups. SQLite for one machine, PostgreSQL for
//! many processes; the verbs are the same code and, wherever both accept it, the same SQL.

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

pub use cleanups::counts::CleanupCounts;
pub use cleanups::deletion_log::{AbortedUpload, REASON_UNFINISHED_UPLOAD};
pub use cleanups::pending::{ClaimedCleanup, CleanupOutcome, EXHAUSTED_RETRY_MS, PendingCleanup, CleanupTotals};
pub use database::sql::Dialect;
pub use derived::chunks::{ChunkBytes, ChunkRow, ChunkVector};
pub use derived::pgvector::{DIMENSIONS_MAX, PgvectorState};
pub use derived::search::{Candidates, StoredVector};
pub use error::CatalogError;
pub use figures::counters::OUTCOME_SPAN_MS;
pub use figures::dashboard::{COUNTED_MAX, Figures, Outcomes, RecentError, StatusCounts};
pub use files::batches::{BatchEndOutcome, BatchEnding};
pub use files::history::history_lines_cut;
pub use files::idempotency::IdempotencyKey;
pub use files::rows::{AbandonedRule, HistoryLine};
pub use jobs::claims::{JobClaim, LeasedJob};
pub use jobs::dead_letters::{DeadLetter, RedriveOutcome};
pub use jobs::delayed::{FailOutcome, NewJob};
pub use jobs::recoveries::{RecoveryOutcome, Recovery};
pub use jobs::stage_claims::{ClaimError, Claimable, StageClaim, LeasedStageJob};
pub use jobs::stage_ends::{StageEndContext, StageEnd};
pub use jobs::stuck_files::{StuckFile, StuckCursor};
pub use migrations::schema::{DEFAULT_SCHEMA, SCHEMA_VERSION};
pub use orphans::blobs::{
    KeySample, MissingBlob, MissingBlobs, REASON_ORPHAN, ObjectRow, ObjectState, OrphanCleanups, Orphans,
    QueuedOrphans,
};
pub use orphans::scans::{OrphanBlob, OrphanScan, ScanProgress, ScanRange, ScanTotals};
pub use outbox::lines::{Destination, OutboxPayload, OutboxLine};
pub use outbox::notices::Notification;
pub use quota::charges::QuotaDrift;
pub use quota::owner::{MoveQuota, MovedQuota, QuotaOwner, QuotaState};
pub use registrations::{Admission, BatchUse, NewFile, RegisterOutcome, Registration};
pub use sweeps::{Fence, SweepClaim, SweepClaimOutcome, SweepRecord, SweepState};
pub use unreadable::{Table, UnreadableRow};

use database::connect::Elsewhere;
use database::sql::{Arg, Link, Tx, args};
use database::writer::{AnyWrite, Running, Write, Writer};
use wharfinger_calls::faults::Faults;

/// Whose rows a caller may see.
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

    /// A condition for rows with `tenant_id` and `user_id`, to follow another one; its values are added.
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

/// Where the catalog lies.
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
    /// What is written into a cleanup row as the kind of its store.
    pub storage_type: &'static str,
    pub cleanup_max_attempts: u32,
    /// Of one job of a stage.
    pub job_max_attempts: u32,
    pub connections_max: u32,
    /// Redis may let uploads in. Without it charges and refunds try the tenant's row first, and hold its gate only
    /// where somebody else has given it away.
    pub with_redis_quota: bool,
    pub targets: OutboxTargets,
}

/// Who is told of what happens besides its owner: for each there is a line in the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboxTargets {
    /// Of every notice.
    pub webhook: bool,
    /// Of what concerns operators.
    pub slack: bool,
    /// Of every event of a file's life.
    pub archive: bool,
}

/// What the settings say of rows that follow from others.
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

/// A connection for [`Catalog::ping`] alone.
#[derive(Clone)]
enum Health {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

#[derive(Clone)]
pub struct Catalog {
    backend: Backend,
    health: Health,
    schema: String,
    /// The steps of the schema that this program knows.
    steps: Vec<&'static str>,
    faults: Faults,
    rows: RowSettings,
    /// The schema of pgvector where the database compares vectors, as it was found by the migration, or since.
    pgvector_schema: Arc<RwLock<Option<Arc<str>>>>,
    /// Set where a sweep writes.
    fence: Option<Fence>,
    /// Set where a sweep only looks.
    reads_only: bool,
}

/// A pooled connection for reads.
enum Reader {
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>),
    Postgres { connection: sqlx::pool::PoolConnection<sqlx::Postgres>, pool: PgPool },
}

impl Reader {
    fn tx<'r>(&'r mut self, faults: &'r Faults) -> Tx<'r> {
        let link = match self {
            Reader::Sqlite(connection) => Link::Sqlite(connection),
            Reader::Postgres { connection, pool } => Link::PostgresReads { connection, pool },
        };
        Tx { link, faults }
    }
}

/// How often a write is tried again that the database itself asked to repeat (deadlock, serialization).
const WRITE_TRIES_MAX: u32 = 5;

impl Catalog {
    /// Opens the catalog; its schema may still have to be migrated. A server that is not there yet is waited for.
    pub async fn open(options: CatalogOptions) -> Result<Catalog, CatalogError> {
        Catalog::open_with_timeout(options, database::connect::START_PATIENCE).await
    }

    /// The same, waiting no longer than this.
    pub async fn open_with_timeout(options: CatalogOptions, patience: Duration) -> Result<Catalog, CatalogError> {
        let (backend, health) = match &options.url {
            CatalogUrl::Sqlite(path) => {
                let connection = open_sqlite_writer(path).await?;
                let writer = Writer::start(connection, sqlite_options(path), options.faults.clone());
                let readers = SqlitePoolOptions::new()
                    .max_connections(options.connections_max.clamp(1, 8))
                    .acquire_timeout(Duration::from_secs(10))
                    .connect_with(sqlite_options(path).read_only(true))
                    .await?;
                let health = SqlitePoolOptions::new()
                    .max_connections(1)
                    .acquire_timeout(Duration::from_secs(10))
                    .connect_lazy_with(sqlite_options(path).read_only(true));
                (Backend::Sqlite { writer, readers }, Health::Sqlite(health))
            }
            CatalogUrl::Postgres(url) => {
                let pools =
                    database::connect::open(url, &options.schema, options.connections_max, patience).await?;
                (Backend::Postgres(pools.work), Health::Postgres(pools.health))
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
            reads_only: false,
        })
    }

    /// How far the schema has come: [`SCHEMA_VERSION`] is up to date, 0 is an empty database. Changes nothing.
    pub async fn schema_step(&self) -> Result<i64, CatalogError> {
        let mut reader = self.reader().await?;
        migrations::schema::step(&mut reader.tx(&self.faults), &self.steps, &self.schema).await
    }

    pub fn dialect(&self) -> Dialect {
        match self.backend {
            Backend::Sqlite { .. } => Dialect::Sqlite,
            Backend::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Answers if this user may bring the schema up to date. Changes nothing.
    pub async fn check_may_migrate(&self) -> Result<(), CatalogError> {
        let mut reader = self.reader().await?;
        migrations::schema::may_create(&mut reader.tx(&self.faults), &self.schema).await
    }

    /// Tables of other applications in the same database, beside our schema.
    pub async fn foreign_tables(&self) -> Result<Option<String>, CatalogError> {
        let mut reader = self.reader().await?;
        migrations::schema::foreign_tables(&mut reader.tx(&self.faults), &self.schema).await
    }

    /// Answers if the catalog can be read now, on a connection of its own: however busy the others are.
    pub async fn ping(&self) -> Result<(), CatalogError> {
        let mut reader = self
            .faults
            .around("connect", async {
                Ok::<_, CatalogError>(match &self.health {
                    Health::Sqlite(pool) => Reader::Sqlite(pool.acquire().await?),
                    Health::Postgres(pool) => {
                        Reader::Postgres { connection: pool.acquire().await?, pool: pool.clone() }
                    }
                })
            })
            .await?;
        reader.tx(&self.faults).rows("SELECT CAST(1 AS BIGINT) AS one", Vec::new()).await?;
        Ok(())
    }

    /// The database server's own clock, for processes on many machines to agree on. SQLite has none.
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

    /// Ends all connections after what is under way. Nothing works afterwards.
    pub async fn close(self) {
        match self.health {
            Health::Sqlite(pool) => pool.close().await,
            Health::Postgres(pool) => pool.close().await,
        }
        match self.backend {
            // The writer ends with its last handle, after what it has taken.
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

    /// This catalog for whoever is to change nothing: every write is refused.
    pub fn read_only(&self) -> Catalog {
        Catalog { reads_only: true, ..self.clone() }
    }

    async fn write<W: Write>(&self, verb: W) -> Result<W::Answer, CatalogError> {
        if self.reads_only {
            return Err(CatalogError::Corrupt("a dry run was about to write".into()));
        }
        self.faults.write_started::<W>();
        let mut running = Running::new(verb, self.fence.clone());
        match &self.backend {
            Backend::Sqlite { writer, .. } => writer.write(running).await,
            Backend::Postgres(pool) => {
                self.write_postgres(pool, &mut running).await?;
                running.into_answer()
            }
        }
    }

    async fn write_postgres(&self, pool: &PgPool, write: &mut dyn AnyWrite) -> Result<(), CatalogError> {
        let mut tries = 1;
        let mut elsewhere = None;
        loop {
            match self.try_write_postgres(pool, write).await {
                Err(CatalogError::Repeat(_)) if tries < WRITE_TRIES_MAX => tries += 1,
                Err(error @ CatalogError::Disconnected(_)) => {
                    if !elsewhere.get_or_insert_with(Elsewhere::begin).again().await {
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
        let mut tx = Tx { link: Link::Postgres(&mut transaction), faults: &self.faults };
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
                // A commit that was not even sent: roll back now, not whenever the pool gets to it.
                if let Some(transaction) = open {
                    let _ = transaction.rollback().await;
                }
                committed.map_err(|error| CatalogError::Unknown(error.to_string()))
            }
            ran => {
                // A rollback that fails leaves a broken connection, and the server rolls back by itself.
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

/// How often, and how long apart, a file is opened that another process is turning into a WAL database: that
/// lock is the one SQLite does not wait for by itself.
const OPEN_TRIES_MAX: u32 = 200;
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(25);

async fn open_sqlite_writer(path: &Path) -> Result<SqliteConnection, CatalogError> {
    let options = sqlite_options(path).create_if_missing(true);
    let mut tries = 1;
    loop {
        match SqliteConnection::connect_with(&options).await {
            Err(error) if tries < OPEN_TRIES_MAX && is_busy(&error) => {
                tries += 1;
                tokio::time::sleep(OPEN_AGAIN_AFTER).await;
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// SQLITE_BUSY, whose low byte all of its extended codes share.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    code.is_some_and(|code| code & 0xff == 5)
}

/// A new time-ordered id. Its time is the caller's clock, so ids sort as the catalog's own times do.
pub fn fresh_id(now: UnixMs) -> Uuid {
    let ms = u64::try_from(now).unwrap_or(0);
    let nanos = u32::try_from(ms % 1_000).unwrap_or(0) * 1_000_000;
    Uuid::new_v7(Timestamp::from_unix(NoContext, ms / 1_000, nanos))
}
