//! The sweep of a running server reclaims a million abandoned uploads. Clients measure the time of an init before and
//! during the sweep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::catalog;
use crate::server::{Server, base, client};
use crate::timing::{Timing, rate, say};
use crate::uploads::call;
use wharfinger_catalog::CatalogUrl;

const FILES: usize = 1_000_000;
const CLIENTS: usize = 8;
const QUIET: Duration = Duration::from_secs(8);
const NEVER: &str = "0 0 29 2 *";

/// Uploads of fifty tenants, announced a day ago, each with an object row and a charge of one byte.
const SEED: [&str; 6] = [
    // No sweep is due.
    "INSERT INTO sweeps (name, next_run_at) VALUES ('upload-window', 9000000000000), ('orphan-cleanup', 9000000000000)",
    "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, charged_bytes, \
     retry_count, url_dead_at, next_check_at, created_at, updated_at) \
     SELECT id, 't' || tenant, 'u', 'report.pdf', 1, 'uploads/t' || tenant || '/u/' || id, 'registered', 1, 1, 0, 1, n, 1, 1 \
     FROM seed",
    "INSERT INTO objects (key, file_id, kind, created_at) SELECT blob_path, id, 'original', 1 FROM files",
    "INSERT INTO file_history (file_id, version, at, to_status, reason, actor) \
     SELECT id, 1, 1, 'registered', 'announced', 'bench' FROM files",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
     SELECT tenant_id, user_id, pipeline_status, '', COUNT(*), COUNT(*) FROM files GROUP BY tenant_id, user_id, pipeline_status",
    "INSERT INTO quotas (tenant_id, used_bytes) SELECT tenant_id, COUNT(*) FROM files GROUP BY tenant_id",
];

pub(crate) async fn run() {
    let files = std::env::args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(FILES);
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let path = folder.path().join("bench.db");
    measure("SQLite", CatalogUrl::Sqlite(path), files).await;
    let postgres = harness::postgres::shared().create_database();
    measure("PostgreSQL", CatalogUrl::Postgres(postgres), files).await;
}

async fn measure(name: &str, url: CatalogUrl, files: usize) {
    catalog::fresh(url.clone()).await.close().await;
    fill(&url, files).await;
    let database = match &url {
        CatalogUrl::Sqlite(path) => format!("sqlite:{}", path.display()),
        CatalogUrl::Postgres(url) => url.clone(),
    };
    let never = |setting: &'static str| (setting, NEVER.to_owned());
    let quiet = [
        "UPLOAD_WINDOW_SCHEDULE",
        "ORPHAN_CLEANUP_SCHEDULE",
        "STUCK_RECOVERY_SCHEDULE",
        "BATCH_TIMEOUT_SCHEDULE",
        "QUOTA_SYNC_SCHEDULE",
        "CLEANUP_SWEEP_SCHEDULE",
    ]
    .map(never);
    let server = Server::start_with(Some(&database), &quiet).await;
    let before = inits(&server, Some(QUIET), Arc::default()).await;
    let idle_kib = server.peak_kib();
    let ended = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let sweep = async {
        let path = format!("{}/api/v2/maintenance/sweeps/upload-window/run", server.url);
        let (ran, _) = call(&client(), &server.token, Method::POST, path, Some(json!({}))).await;
        ended.store(true, Ordering::SeqCst);
        (ran, started.elapsed())
    };
    let ((ran, took), during) = tokio::join!(sweep, inits(&server, None, ended.clone()));
    assert_eq!(ran["result"]["reclaimed"].as_u64(), Some(files as u64), "{ran}");
    say(format!(
        "{name}: {files} abandoned uploads reclaimed, {:.0}/s beside {CLIENTS} clients; server at most {} MiB, {} before",
        rate(files, took),
        server.peak_kib() / 1024,
        idle_kib / 1024,
    ));
    say(before.line("init before"));
    say(during.line("init during"));
}

/// Several clients call init for this time, or until `ended` is set.
async fn inits(server: &Server, time: Option<Duration>, ended: Arc<AtomicBool>) -> Timing {
    let until = time.map(|time| Instant::now() + time);
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (url, token, ended) = (server.url.clone(), server.token.clone(), ended.clone());
            tokio::spawn(async move {
                let (http, mut timing) = (client(), Timing::default());
                let body: Value = json!({ "fileName": "x", "size": 1 });
                while !ended.load(Ordering::SeqCst) && until.is_none_or(|until| Instant::now() < until) {
                    let path = format!("{url}/api/v2/files/init");
                    timing.add(call(&http, &token, Method::POST, path, Some(body.clone())).await.1);
                }
                timing
            })
        })
        .collect();
    let mut all = Timing::default();
    for task in tasks {
        all.merge(task.await.expect("a client"));
    }
    all
}

async fn fill(url: &CatalogUrl, files: usize) {
    let seed = match url {
        CatalogUrl::Sqlite(_) => format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {files}) \
             SELECT n, n % 50 AS tenant, printf('018f4e6e-7f3a-7000-8000-%012x', n) AS id FROM numbers"
        ),
        CatalogUrl::Postgres(_) => format!(
            "SELECT n, n % 50 AS tenant, '018f4e6e-7f3a-7000-8000-' || lpad(to_hex(n), 12, '0') AS id \
             FROM generate_series(1, {files}) AS n"
        ),
    };
    let text = format!("BEGIN; CREATE TABLE seed AS {seed}; {}; DROP TABLE seed; COMMIT", SEED.join("; "));
    match url {
        CatalogUrl::Sqlite(path) => {
            let path = path.display().to_string();
            let mut connection = sqlx::SqliteConnection::connect(&path).await.expect("a connection");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.expect("rows");
        }
        CatalogUrl::Postgres(url) => {
            let mut connection = sqlx::PgConnection::connect(url).await.expect("a connection");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.expect("rows");
            sqlx::raw_sql("VACUUM ANALYZE").execute(&mut connection).await.expect("analyzed");
        }
    }
}
