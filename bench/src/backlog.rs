//! Claims of a stage beside a backlog of one tenant: the time of a claim with 1,000 to a million waiting files, and the
//! time until another tenant's single file is claimed.

use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use wharfinger_catalog::{Catalog, CatalogUrl, Claimable, LeasedStageJob, StageClaim};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::stage::Stage;

use crate::catalog;
use crate::server::base;
use crate::timing::{rate, say};

const SIZES: [usize; 4] = [1_000, 20_000, 100_000, 1_000_000];
const NOW: i64 = 1_750_000_000_000;
const PER_CLAIM: usize = 8;
const CLAIMS: usize = 100;

const SEED: [&str; 3] = [
    "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, charged_bytes, \
     retry_count, etag, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, stages, stage) \
     SELECT id, 'crowd', 'u', 'report.pdf', 1, 'uploads/crowd/u/' || id, 'queued', 3, 1, 0, 'e', 1, {now} + 86400000, 1, \
     {now}, 1, 'scan', 'scan' FROM seed",
    "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
     updated_at) SELECT id, 'file-scan', tenant_id, id, 'waiting', 1, 0, 5, 0, 1, 1 FROM files",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
     SELECT tenant_id, user_id, pipeline_status, 'scan', COUNT(*), COUNT(*) FROM files GROUP BY 1, 2, 3",
];

const SINGLE: [&str; 3] = [
    "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, charged_bytes, \
     retry_count, etag, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, stages, stage) \
     VALUES ('018f4e6e-7f3a-7000-8000-ffffffffffff', 'single', 'u', 'one.pdf', 1, 'uploads/single/u/x', 'queued', 3, 1, 0, \
     'e', 1, {now} + 86400000, 1, {now}, 1, 'scan', 'scan')",
    "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
     updated_at) VALUES ('018f4e6e-7f3a-7000-8000-fffffffffffe', 'file-scan', 'single', \
     '018f4e6e-7f3a-7000-8000-ffffffffffff', 'waiting', {now}, 0, 5, 0, 1, 1)",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
     VALUES ('single', 'u', 'queued', 'scan', 1, 1)",
];

pub(crate) async fn run() {
    let largest = std::env::args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
    let only_postgres = std::env::args().nth(3).as_deref() == Some("postgres");
    for files in SIZES.into_iter().filter(|files| *files <= largest && !only_postgres) {
        let folder = tempfile::tempdir_in(base()).expect("a folder");
        measure("SQLite", CatalogUrl::Sqlite(folder.path().join("catalog.db")), files).await;
    }
    for files in SIZES.into_iter().filter(|files| *files <= largest) {
        measure("PostgreSQL", CatalogUrl::Postgres(harness::postgres::shared().create_database()), files)
            .await;
    }
}

fn claim() -> StageClaim {
    StageClaim {
        stage: Stage::Scan,
        owner: "bench".into(),
        limit: PER_CLAIM,
        tenants: None,
        of: Claimable::Untried,
        lease_ms: 600_000,
        deadline_ms: 600_000,
        plan: PipelinePlan { stages: vec![Stage::Scan], ..PipelinePlan::without_stages() },
        now: NOW,
    }
}

async fn claimed(catalog: &Catalog) -> Vec<LeasedStageJob> {
    catalog.claim_stage(claim()).await.expect("claimed")
}

async fn measure(name: &str, url: CatalogUrl, files: usize) {
    let catalog = catalog::fresh(url.clone()).await;
    let mut statements = seed(&url, files);
    statements.extend(SEED.iter().map(|sql| (*sql).to_owned()));
    execute(&url, &statements).await;
    if let CatalogUrl::Postgres(url) = &url {
        let mut connection = PgConnection::connect(url).await.expect("a connection");
        sqlx::raw_sql("VACUUM ANALYZE").execute(&mut connection).await.expect("done");
    }
    let started = Instant::now();
    while catalog.rank_due(Stage::Scan, NOW).await.expect("ranked") > 0 {}
    let ranking = started.elapsed();
    if let CatalogUrl::Postgres(url) = &url {
        // Autovacuum does this within a minute. All rows have just moved from one index to another.
        let mut connection = PgConnection::connect(url).await.expect("a connection");
        sqlx::raw_sql("VACUUM").execute(&mut connection).await.expect("done");
    }
    let suspects = || StageClaim { of: Claimable::Suspects, ..claim() };
    // A worker looks for suspects before each claim.
    let mut times = Vec::with_capacity(CLAIMS);
    for _ in 0..CLAIMS {
        let started = Instant::now();
        assert!(catalog.claim_stage(suspects()).await.expect("answered").is_empty());
        assert_eq!(claimed(&catalog).await.len(), PER_CLAIM);
        times.push(started.elapsed());
    }
    let all: Duration = times.iter().sum();
    execute(&url, &SINGLE.map(str::to_owned)).await;
    let started = Instant::now();
    let mut behind = 0;
    while !claimed(&catalog).await.iter().any(|held| held.file.tenant.as_str() == "single") {
        behind += PER_CLAIM;
        assert!(behind < files, "the file waits behind the whole backlog");
    }
    let waited = started.elapsed();
    times.sort();
    say(format!(
        "{name}: {files:>7} waiting: ranked {:>7.0} files/s; claimed {:>6.0} files/s, a claim {:.1} ms (p99 {:.1}); another \
         tenant's file claimed after {behind} others, {:.1} ms",
        rate(files, ranking),
        rate(CLAIMS * PER_CLAIM, all),
        all.as_secs_f64() * 1e3 / CLAIMS as f64,
        times[CLAIMS * 99 / 100].as_secs_f64() * 1e3,
        waited.as_secs_f64() * 1e3
    ));
    catalog.close().await;
}

/// The statement that creates a table with one id for each file.
fn seed(url: &CatalogUrl, files: usize) -> Vec<String> {
    let rows = match url {
        CatalogUrl::Sqlite(_) => format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {files}) \
             SELECT printf('018f4e6e-7f3a-7000-8000-%012x', n) AS id FROM numbers"
        ),
        CatalogUrl::Postgres(_) => format!(
            "SELECT '018f4e6e-7f3a-7000-8000-' || lpad(to_hex(n), 12, '0') AS id FROM generate_series(1, {files}) AS n"
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
