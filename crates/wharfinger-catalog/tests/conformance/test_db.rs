//! A database for each case, handles on it, and raw SQL to inspect and damage its rows.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use harness::postgres::Postgres;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use tempfile::TempDir;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinSet;
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogOptions, CatalogUrl, Dialect, OutboxTargets};

use super::sample::NOW;

pub(super) const CLEANUP_ATTEMPTS_MAX: u32 = 3;

pub(super) struct TestDb {
    pub(super) catalog: Catalog,
    pub(super) url: CatalogUrl,
    folder: TempDir,
    server: Option<&'static Postgres>,
    /// Dumps share one connection: opening one takes longer than a dump.
    dump_connection: Mutex<Option<Raw>>,
}

/// Every row of every table as text, sorted.
pub(super) type Dump = BTreeMap<String, Vec<String>>;

/// How many rows of each table were removed and added. The same call makes the same difference each time.
pub(super) type Difference = BTreeMap<String, (usize, usize)>;

/// Opens a handle; its schema may have to be migrated.
pub(super) async fn open(url: &CatalogUrl, faults: Faults) -> Catalog {
    open_with(url, faults, false, OutboxTargets::default()).await
}

async fn open_with(
    url: &CatalogUrl,
    faults: Faults,
    with_redis_quota: bool,
    targets: OutboxTargets,
) -> Catalog {
    let options = CatalogOptions {
        url: url.clone(),
        schema: wharfinger_catalog::DEFAULT_SCHEMA.into(),
        faults,
        storage_type: "disk",
        cleanup_max_attempts: CLEANUP_ATTEMPTS_MAX,
        job_max_attempts: 3,
        connections_max: 16,
        with_redis_quota,
        targets,
    };
    Catalog::open(options).await.expect("the catalog opens")
}

/// Copying a migrated database is faster than migrating an empty one.
async fn postgres_template() -> &'static str {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    TEMPLATE
        .get_or_init(|| async {
            let url = empty_postgres();
            let catalog = open(&CatalogUrl::Postgres(url.clone()), Faults::none()).await;
            catalog.migrate(NOW).await.expect("migrated");
            catalog.close().await;
            url
        })
        .await
}

/// A database with an English collation. A query fails here if it needs byte order and its column does not say so.
fn empty_postgres() -> String {
    let server = harness::postgres::shared();
    let name = format!("conformance_{}", Uuid::new_v4().simple());
    let statement = format!(
        "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
    );
    server.psql(&server.admin_url(), &statement).expect("a database with an English collation");
    let path = format!("ALTER DATABASE {name} SET search_path = public, wharfinger");
    server.psql(&server.admin_url(), &path).expect("a search path for the statements of tests");
    server.url(&name)
}

impl TestDb {
    fn of(catalog: Catalog, url: CatalogUrl, folder: TempDir, server: Option<&'static Postgres>) -> TestDb {
        TestDb { catalog, url, folder, server, dump_connection: Mutex::new(None) }
    }

    pub(super) async fn sqlite() -> TestDb {
        let folder = TempDir::new().expect("a temporary folder");
        let url = CatalogUrl::Sqlite(folder.path().join("catalog.sqlite"));
        let catalog = open(&url, Faults::none()).await;
        catalog.migrate(NOW).await.expect("migrated");
        TestDb::of(catalog, url, folder, None)
    }

    pub(super) async fn postgres() -> TestDb {
        let folder = TempDir::new().expect("a temporary folder");
        let template = postgres_template().await;
        let server = harness::postgres::shared();
        let url = CatalogUrl::Postgres(server.create_database_from(template));
        let catalog = open(&url, Faults::none()).await;
        TestDb::of(catalog, url, folder, Some(server))
    }

    /// A PostgreSQL database with the pgvector extension.
    pub(super) async fn with_pgvector() -> TestDb {
        let db = TestDb::without_pgvector().await;
        db.sql("CREATE EXTENSION vector").await;
        db.catalog.migrate(NOW).await.expect("migrated");
        assert!(db.catalog.has_pgvector());
        db
    }

    /// A database of a PostgreSQL server that has pgvector installed; the extension is not created yet.
    pub(super) async fn without_pgvector() -> TestDb {
        let folder = TempDir::new().expect("a temporary folder");
        let server = harness::postgres::shared_with_pgvector();
        let url = CatalogUrl::Postgres(server.create_database());
        let catalog = open(&url, Faults::none()).await;
        catalog.migrate(NOW).await.expect("migrated");
        assert!(!catalog.has_pgvector());
        TestDb::of(catalog, url, folder, Some(server))
    }

    /// A handle of a process that signs in as another role.
    pub(super) async fn as_role(&self, role: &str) -> Catalog {
        let CatalogUrl::Postgres(url) = &self.url else { panic!("SQLite has no roles") };
        open(&CatalogUrl::Postgres(url.replace("//postgres@", &format!("//{role}@"))), Faults::none()).await
    }

    /// Another, empty database on the same kind of server.
    pub(super) fn empty_database(&self) -> CatalogUrl {
        match self.url {
            CatalogUrl::Sqlite(_) => CatalogUrl::Sqlite(self.folder.path().join(Uuid::new_v4().to_string())),
            CatalogUrl::Postgres(_) => CatalogUrl::Postgres(empty_postgres()),
        }
    }

    pub(super) fn is_postgres(&self) -> bool {
        self.catalog.dialect() == Dialect::Postgres
    }

    /// Another handle on the same database, as another process would have.
    pub(super) async fn another_handle(&self) -> Catalog {
        open(&self.url, Faults::none()).await
    }

    /// How many statements on this PostgreSQL database wait for a lock.
    pub(super) async fn lock_waits(&self) -> usize {
        let sql = "SELECT CAST(pid AS TEXT) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
            AND datname = current_database()";
        self.texts(sql).await.len()
    }

    /// A handle of a process that uses Redis for quotas.
    pub(super) async fn with_redis(&self) -> Catalog {
        open_with(&self.url, Faults::none(), true, OutboxTargets::default()).await
    }

    /// A handle of a process with every outbox target.
    pub(super) async fn with_all_targets(&self) -> Catalog {
        self.with_all_targets_and(Faults::none(), false).await
    }

    pub(super) async fn with_all_targets_and(&self, faults: Faults, with_redis_quota: bool) -> Catalog {
        let targets = OutboxTargets { webhook: true, slack: true, archive: true };
        open_with(&self.url, faults, with_redis_quota, targets).await
    }

    /// A handle of a process with every outbox target but the archive.
    pub(super) async fn with_webhook_and_slack(&self) -> Catalog {
        let targets = OutboxTargets { webhook: true, slack: true, archive: false };
        open_with(&self.url, Faults::none(), false, targets).await
    }

    /// A handle of a process whose only outbox target is the archive.
    pub(super) async fn with_archive(&self) -> Catalog {
        self.with_archive_and(Faults::none()).await
    }

    pub(super) async fn with_archive_and(&self, faults: Faults) -> Catalog {
        open_with(&self.url, faults, false, OutboxTargets { archive: true, ..OutboxTargets::default() }).await
    }

    pub(super) async fn with_faults(&self, faults: Faults) -> Catalog {
        open(&self.url, faults).await
    }

    pub(super) async fn try_sql(&self, statement: &str) -> Result<u64, sqlx::Error> {
        Raw::connect(&self.url).await.run(statement).await
    }

    /// Runs a statement and returns how many rows it changed.
    pub(super) async fn sql(&self, statement: &str) -> u64 {
        self.try_sql(statement).await.expect(statement)
    }

    /// The first column of a query as text.
    pub(super) async fn texts(&self, query: &str) -> Vec<String> {
        texts_at(&self.url, query).await
    }

    /// The plan of each statement as if every table had a million rows. SQLite gets statistics that say so. PostgreSQL
    /// may scan a whole table only where no index can be used.
    pub(super) async fn plans_for_a_million_rows(
        &self,
        statements: Vec<String>,
    ) -> Vec<(String, Vec<String>)> {
        let mut raw = Raw::connect(&self.url).await;
        match &mut raw {
            Raw::Sqlite(_) => {
                raw.run("ANALYZE").await.expect("statistics");
                raw.run("DELETE FROM sqlite_stat1").await.expect("none");
                let rows = "INSERT INTO sqlite_stat1 (tbl, idx, stat) SELECT name, NULL, '1000000' FROM sqlite_master \
                    WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
                raw.run(rows).await.expect("a million rows");
                raw.run("ANALYZE sqlite_schema").await.expect("read again");
            }
            Raw::Postgres(_) => {
                raw.run("SET search_path = wharfinger").await.expect("our schema");
                raw.run("SET enable_seqscan = off").await.expect("set");
                raw.run("SET plan_cache_mode = force_generic_plan").await.expect("set");
            }
        }
        let mut plans = Vec::new();
        for statement in statements {
            let explain = match &raw {
                Raw::Sqlite(_) => format!("EXPLAIN QUERY PLAN {}", statement.replace('$', "?")),
                Raw::Postgres(_) => {
                    // PostgreSQL cannot infer the types of some parameters; SQLite plans these statements.
                    if raw.run(&format!("PREPARE planned AS {statement}")).await.is_err() {
                        continue;
                    }
                    match parameters(&statement) {
                        0 => "EXPLAIN EXECUTE planned".to_owned(),
                        n => format!("EXPLAIN EXECUTE planned ({})", vec!["NULL"; n].join(", ")),
                    }
                }
            };
            plans.push((statement, raw.plan(&explain).await));
            if matches!(raw, Raw::Postgres(_)) {
                raw.run("DEALLOCATE planned").await.expect("deallocated");
            }
        }
        plans
    }

    pub(super) async fn dump(&self) -> Dump {
        let mut connection = self.dump_connection.lock().await;
        let raw = match connection.take() {
            Some(raw) => raw,
            None => Raw::connect(&self.url).await,
        };
        connection.insert(raw).dump().await
    }

    /// Removes the database of the case. The database of a failed case stays for inspection.
    pub(super) async fn remove(self) {
        self.catalog.close().await;
        if let (CatalogUrl::Postgres(url), Some(server)) = (&self.url, self.server) {
            let name = url.rsplit('/').next().unwrap_or_default();
            let statement = format!("DROP DATABASE \"{name}\" WITH (FORCE)");
            // If this fails, the database is removed together with the server.
            if let Err(error) = server.psql(&server.admin_url(), &statement) {
                eprintln!("database {name} was not removed: {error}");
            }
        }
    }
}

pub(super) async fn dump_at(url: &CatalogUrl) -> Dump {
    Raw::connect(url).await.dump().await
}

/// The highest `$n` of a statement.
fn parameters(statement: &str) -> usize {
    let numbers = statement.split('$').skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    numbers.max().unwrap_or(0)
}

pub(super) async fn sql_at(url: &CatalogUrl, statement: &str) {
    Raw::connect(url).await.run(statement).await.expect(statement);
}

pub(super) async fn texts_at(url: &CatalogUrl, query: &str) -> Vec<String> {
    Raw::connect(url).await.texts(query).await
}

pub(super) fn difference(before: &Dump, after: &Dump) -> Difference {
    let rows_not_in = |left: &Dump, right: &Dump, table: &str| {
        let others = right.get(table).map_or(&[][..], Vec::as_slice);
        left.get(table).map_or(0, |rows| rows.iter().filter(|row| !others.contains(row)).count())
    };
    let tables: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    tables
        .into_iter()
        .map(|table| (table.clone(), (rows_not_in(before, after, table), rows_not_in(after, before, table))))
        .filter(|(_, moved)| *moved != (0, 0))
        .collect()
}

/// Runs the futures concurrently, each in its own task. The results have the order of the futures.
pub(super) async fn all_at_once<T, F>(futures: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (n, future) in futures.into_iter().enumerate() {
        tasks.spawn(async move { (n, future.await) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(n, _)| *n);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Raw {
    async fn connect(url: &CatalogUrl) -> Raw {
        match url {
            CatalogUrl::Sqlite(path) => {
                let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
                Raw::Sqlite(SqliteConnection::connect_with(&options).await.expect("a raw connection"))
            }
            CatalogUrl::Postgres(url) => {
                Raw::Postgres(PgConnection::connect(url).await.expect("a raw connection"))
            }
        }
    }

    /// The name of each table, and an expression that shows one of its rows as text.
    async fn tables(&mut self) -> Vec<(String, String)> {
        let query = match self {
            Raw::Sqlite(_) => {
                "SELECT t.name || ' ' || group_concat('quote(\"' || c.name || '\")', ' || '','' || ') \
                 FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table' GROUP BY t.name"
            }
            Raw::Postgres(_) => {
                "SELECT tablename || ' r::text' FROM pg_tables WHERE schemaname = 'wharfinger'"
            }
        };
        let split = |line: String| {
            let (table, row) = line.split_once(' ').expect("a name and an expression");
            (table.to_owned(), row.to_owned())
        };
        self.texts(query).await.into_iter().map(split).collect()
    }

    /// The lines of a plan.
    async fn plan(&mut self, explain: &str) -> Vec<String> {
        match self {
            Raw::Sqlite(connection) => {
                let rows = sqlx::raw_sql(AssertSqlSafe(explain.to_owned())).fetch_all(connection).await;
                rows.expect(explain).iter().map(|row| row.get::<String, _>("detail")).collect()
            }
            Raw::Postgres(connection) => {
                let rows = sqlx::raw_sql(AssertSqlSafe(explain.to_owned())).fetch_all(connection).await;
                rows.expect(explain).iter().map(|row| row.get::<String, _>(0)).collect()
            }
        }
    }

    /// One statement reads all tables, so that the dump is consistent.
    async fn dump(&mut self) -> Dump {
        let tables = self.tables().await;
        let selects: Vec<String> =
            tables.iter().map(|(table, row)| format!("SELECT '{table} ' || {row} FROM {table} r")).collect();
        let mut dump: Dump = tables.into_iter().map(|(table, _)| (table, Vec::new())).collect();
        if dump.is_empty() {
            return dump;
        }
        for line in self.texts(&selects.join(" UNION ALL ")).await {
            let (table, row) = line.split_once(' ').expect("a name and a row");
            dump.get_mut(table).expect("a table of the list").push(row.to_owned());
        }
        dump.values_mut().for_each(|rows| rows.sort());
        dump
    }

    async fn run(&mut self, statement: &str) -> Result<u64, sqlx::Error> {
        let query = AssertSqlSafe(statement.to_owned());
        Ok(match self {
            Raw::Sqlite(connection) => sqlx::raw_sql(query).execute(connection).await?.rows_affected(),
            Raw::Postgres(connection) => sqlx::raw_sql(query).execute(connection).await?.rows_affected(),
        })
    }

    async fn texts(&mut self, query: &str) -> Vec<String> {
        let safe = AssertSqlSafe(query.to_owned());
        let texts = match self {
            Raw::Sqlite(connection) => sqlx::query_scalar(safe).persistent(false).fetch_all(connection).await,
            Raw::Postgres(connection) => {
                sqlx::query_scalar(safe).persistent(false).fetch_all(connection).await
            }
        };
        texts.expect(query)
    }
}
