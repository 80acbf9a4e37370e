//! The sweep for stuck files over a million rows: first a backlog of files that only wait, then the same files without
//! jobs. Beside it the database does the same in one transaction, by one statement and by three, without a second
//! check.

use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use tempfile::TempDir;
use wharfinger::app::App;
use wharfinger::clock::Clock;
use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger::sweeps::{SweepLease, stuck_files};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{CatalogUrl, Scope};

use crate::catalog;
use crate::server::base;
use crate::timing::{rate, say};

const FILES: usize = 1_000_000;
const NOW: i64 = 1_750_000_000_000;

/// Files of fifty tenants.
const SEED: [&str; 3] = [
    "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, charged_bytes, \
     retry_count, etag, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, stages, stage) \
     SELECT id, 't' || tenant, 'u', 'report.pdf', 1, 'uploads/t/u/' || id, 'queued', 3, 1, 0, 'e', 1, {now} - 86400000 + n, 1, \
     {now} - 86400000, 1, 'scan', 'scan' FROM seed",
    "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
     updated_at) SELECT id, 'file-scan', tenant_id, id, 'waiting', 1, 0, 5, 0, 1, 1 FROM files",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
     SELECT tenant_id, user_id, pipeline_status, 'scan', COUNT(*), COUNT(*) FROM files GROUP BY tenant_id, user_id, pipeline_status",
];

/// One statement: counts the overdue files that have a waiting job.
const BARE_SCAN: &str = "CREATE TABLE found AS SELECT COUNT(*) AS files, COUNT(jobs.id) AS healthy FROM files \
     LEFT JOIN jobs ON jobs.file_id = files.id AND jobs.queue = 'file-scan' AND jobs.state = 'waiting' \
     WHERE pipeline_status = 'queued' AND next_check_at <= {now}";

/// The writes of a recovery, for all files at once.
const BARE_RECOVERY: [&str; 3] = [
    "UPDATE files SET version = version + 1, retry_count = retry_count + 1, next_check_at = {now} + 1800000, \
     updated_at = {now} WHERE pipeline_status = 'queued' AND next_check_at <= {now} \
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.file_id = files.id)",
    "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
     updated_at) SELECT id, 'file-scan', tenant_id, id, 'waiting', 1, 0, 5, 0, 1, 1 FROM files WHERE updated_at = {now}",
    "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
     SELECT id, version, updated_at, 'queued', 'queued', 'its job was missing; scan queued again', 'bench' \
     FROM files WHERE updated_at = {now}",
];

pub(crate) async fn run() {
    let files = std::env::args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(FILES);
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let sqlite = |name: &str| CatalogUrl::Sqlite(folder.path().join(name));
    let postgres = || CatalogUrl::Postgres(harness::postgres::shared().create_database());
    measure("SQLite (synchronous=FULL)", sqlite("ours.db"), sqlite("bare.db"), files).await;
    measure("PostgreSQL", postgres(), postgres(), files).await;
}

async fn measure(name: &str, url: CatalogUrl, bare_url: CatalogUrl, files: usize) {
    let bare = bare(&bare_url, files).await;
    fill(&url, files).await;
    let (app, _folder) = open(&url).await;
    let idle = reset_peak();
    let started = Instant::now();
    let outcome = stuck_files::run(&app.core, &SweepLease::unleased(&app.core)).await.expect("it runs");
    let took = started.elapsed();
    assert_eq!((outcome.total_stuck, outcome.waiting), (files as u64, files as u64));
    say(format!(
        "{name}: {files} that only wait: checked {:>7.0} files/s, nothing written; {} MiB at most, {idle} before; \
         one statement {:>7.0} files/s",
        rate(files, took),
        peak_mib(),
        rate(files, bare.scan)
    ));
    let started = Instant::now();
    assert_eq!(app.core.catalog.count_stuck(&Scope::All, NOW).await.expect("counted"), files as u64);
    let counted = started.elapsed();
    let started = Instant::now();
    app.core.catalog.stuck_files(&Scope::All, (NOW, NOW), None, 51).await.expect("a page");
    say(format!(
        "{name}: counted in {:.0} ms, the first page of 50 in {:.1} ms",
        counted.as_secs_f64() * 1e3,
        started.elapsed().as_secs_f64() * 1e3
    ));

    execute(&url, &["DELETE FROM jobs".to_owned()]).await;
    vacuum(&url).await;
    let idle = reset_peak();
    let started = Instant::now();
    let outcome = stuck_files::run(&app.core, &SweepLease::unleased(&app.core)).await.expect("it runs");
    let took = started.elapsed();
    assert_eq!(outcome.re_enqueued, files as u64);
    say(format!(
        "{name}: {files} without a job: recovered {:>6.0} files/s; {} MiB at most, {idle} before; one transaction of three \
         statements {:>7.0} files/s",
        rate(files, took),
        peak_mib(),
        rate(files, bare.recovery)
    ));
}

struct Bare {
    scan: Duration,
    recovery: Duration,
}

/// The time of the database alone. Drops its tables at the end.
async fn bare(url: &CatalogUrl, files: usize) -> Bare {
    fill(url, files).await;
    let started = Instant::now();
    execute(url, &[BARE_SCAN.to_owned()]).await;
    let scan = started.elapsed();
    execute(url, &["DELETE FROM jobs".to_owned()]).await;
    vacuum(url).await;
    let started = Instant::now();
    execute(url, &BARE_RECOVERY.map(str::to_owned)).await;
    let recovery = started.elapsed();
    let tables = "DROP TABLE seed; DROP TABLE files; DROP TABLE jobs; DROP TABLE file_history".to_owned();
    execute(url, &[tables]).await;
    Bare { scan, recovery }
}

/// Creates a catalog with this number of files, each with a job, that have waited for their scan since yesterday.
async fn fill(url: &CatalogUrl, files: usize) {
    catalog::fresh(url.clone()).await.close().await;
    let mut statements = seed(url, files);
    statements.extend(SEED.iter().map(|sql| (*sql).to_owned()));
    execute(url, &statements).await;
    vacuum(url).await;
}

/// The statement that creates a table with one id for each file.
fn seed(url: &CatalogUrl, files: usize) -> Vec<String> {
    let rows = match url {
        CatalogUrl::Sqlite(_) => format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {files}) \
             SELECT n, n % 50 AS tenant, printf('018f4e6e-7f3a-7000-8000-%012x', n) AS id FROM numbers"
        ),
        CatalogUrl::Postgres(_) => format!(
            "SELECT n, n % 50 AS tenant, '018f4e6e-7f3a-7000-8000-' || lpad(to_hex(n), 12, '0') AS id \
             FROM generate_series(1, {files}) AS n"
        ),
    };
    vec![format!("CREATE TABLE seed AS {rows}")]
}

/// Runs all statements in one transaction.
async fn execute(url: &CatalogUrl, statements: &[String]) {
    let text = format!("BEGIN; {}; COMMIT", statements.join("; ")).replace("{now}", &NOW.to_string());
    let text = AssertSqlSafe(text);
    match url {
        CatalogUrl::Sqlite(path) => {
            let options = SqliteConnectOptions::new()
                .filename(path)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full);
            let mut connection = options.connect().await.expect("a connection");
            sqlx::raw_sql(text).execute(&mut connection).await.expect("done");
        }
        CatalogUrl::Postgres(url) => {
            let mut connection = PgConnection::connect(url).await.expect("a connection");
            sqlx::raw_sql(text).execute(&mut connection).await.expect("done");
        }
    }
}

/// Autovacuum does this after so many changes.
async fn vacuum(url: &CatalogUrl) {
    if let CatalogUrl::Postgres(url) = url {
        let mut connection = PgConnection::connect(url).await.expect("a connection");
        sqlx::raw_sql("VACUUM ANALYZE").execute(&mut connection).await.expect("done");
    }
}

async fn open(url: &CatalogUrl) -> (App, TempDir) {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let database = match url {
        CatalogUrl::Sqlite(path) => format!("sqlite:{}", path.display()),
        CatalogUrl::Postgres(url) => url.clone(),
    };
    let overrides = vec![
        ("WHARFINGER_DATA_DIR", folder.path().display().to_string()),
        ("WHARFINGER_DATABASE_URL", database),
        ("WHARFINGER_JWT_SECRET", "thirty-two bytes that protect nothing".to_owned()),
    ];
    let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
    let settings = Settings::from_values(&values).expect("possible settings");
    let secrets = prepare_secrets(&settings).expect("secrets");
    let app = App::open(settings, &secrets, Clock::manual(NOW), Faults::none(), String::new()).await;
    (app.expect("the app opens"), folder)
}

/// Resets the maximum resident size. Returns the current size in MiB.
fn reset_peak() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").expect("the maximum can be reset");
    peak_mib()
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
