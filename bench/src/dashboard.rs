//! The dashboard's figures of a user with a thousand, a hundred thousand and a million files, over HTTP: calculated
//! every time, and cached. Beside it a call that reads no backend.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use tempfile::TempDir;
use wharfinger_catalog::CatalogUrl;

use crate::catalog;
use crate::server::{Server, base, client};
use crate::timing::{Timing, say};

const SIZES: [usize; 3] = [1_000, 100_000, 1_000_000];
const CALLS: usize = 2_000;
const PAUSE: Duration = Duration::from_millis(1);

/// Of each hundred files, 88 are ready (over two days), 4 failed, 2 quarantined, 4 waiting and 2 not confirmed. A
/// hundred are overdue, if there are that many files. Another tenant has a tenth as many.
const SEED: [&str; 5] = [
    "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, charged_bytes, \
     retry_count, error, etag, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, ready_at, failed_at, stages, \
     stage) SELECT id, tenant, 'u0', 'report.pdf', 1, 'uploads/' || tenant || '/u0/' || id, status, 3, 1, 0, \
     CASE WHEN status IN ('failed', 'quarantined') THEN 'torn' END, 'e', 1, \
     CASE status WHEN 'ready' THEN NULL WHEN 'quarantined' THEN NULL WHEN 'queued' THEN \
     CASE WHEN n % 100 = 94 AND n <= 10000 THEN at ELSE {now} + 86400000 END ELSE {now} + 8640000000 END, \
     at - 60000, at, CASE status WHEN 'registered' THEN NULL ELSE at - 30000 END, CASE status WHEN 'ready' THEN at END, \
     CASE status WHEN 'failed' THEN at END, 'scan', CASE WHEN status IN ('queued', 'failed') THEN 'scan' END FROM seed",
    "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, dead_reason, created_at, \
     updated_at) SELECT id, 'file-scan', tenant_id, id, CASE pipeline_status WHEN 'failed' THEN 'dead' ELSE 'waiting' END, \
     {now}, 0, 5, 0, 'torn', 1, 1 FROM files WHERE pipeline_status IN ('queued', 'failed')",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) SELECT tenant_id, user_id, pipeline_status, \
     COALESCE(stage, ''), COUNT(*), COUNT(*) FROM files GROUP BY 1, 2, 3, 4",
    "INSERT INTO file_outcomes (tenant_id, user_id, at, outcome, files) SELECT tenant_id, user_id, \
     updated_at / 900000 * 900000, pipeline_status, COUNT(*) FROM files \
     WHERE pipeline_status IN ('ready', 'failed', 'quarantined') GROUP BY 1, 2, 3, 4",
    "INSERT INTO quotas (tenant_id, used_bytes) SELECT tenant_id, COUNT(*) FROM files GROUP BY tenant_id",
];

pub(crate) async fn run() {
    let largest = std::env::args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
    let sizes: Vec<usize> = SIZES.into_iter().filter(|size| *size <= largest).collect();
    let mut on_sqlite = Vec::new();
    for &files in &sizes {
        let folder = tempfile::tempdir_in(base()).expect("a folder");
        let path = folder.path().join("catalog.db");
        fill(&CatalogUrl::Sqlite(path.clone()), files).await;
        on_sqlite.push(Setup { files, database: format!("sqlite:{}", path.display()), redis: None, folder });
    }
    measure("SQLite", &on_sqlite).await;
    drop(on_sqlite);
    let mut on_postgres = Vec::new();
    for &files in &sizes {
        let folder = tempfile::tempdir_in(base()).expect("a folder");
        let database = harness::postgres::shared().create_database();
        fill(&CatalogUrl::Postgres(database.clone()), files).await;
        let redis = Some(harness::redis::shared().own_database());
        on_postgres.push(Setup { files, database, redis, folder });
    }
    measure("PostgreSQL, Redis", &on_postgres).await;
}

/// A catalog with this number of files of one user. All servers on it use the same store.
struct Setup {
    files: usize,
    database: String,
    redis: Option<String>,
    folder: TempDir,
}

impl Setup {
    async fn start(&self, ttl: &str) -> Server {
        let never = "0 0 1 1 *".to_owned();
        let mut settings = vec![
            ("WHARFINGER_BLOB_URL", format!("file:{}", self.folder.path().join("blobs").display())),
            ("DASHBOARD_CACHE_TTL", ttl.to_owned()),
            ("PIPELINE_STAGES", "scan".to_owned()),
            ("PIPELINE_BUILTIN_STAGES", String::new()),
            ("STUCK_RECOVERY_SCHEDULE", never.clone()),
            ("ORPHAN_CLEANUP_SCHEDULE", never.clone()),
            ("UPLOAD_WINDOW_SCHEDULE", never),
        ];
        settings.extend(self.redis.clone().map(|url| ("WHARFINGER_QUOTA_URL", url)));
        Server::start_with(Some(&self.database), &settings).await
    }
}

/// Calls all sizes in turn, so that other load on the machine affects all of them.
async fn measure(name: &str, setups: &[Setup]) {
    for (how, ttl) in [("calculated", "0"), ("cached", "300")] {
        let mut of_users = Vec::new();
        let mut of_operators = Vec::new();
        for setup in setups {
            let server = Arc::new(setup.start(ttl).await);
            let user = server.tokens(1, 1).remove(0);
            of_operators.push((server.clone(), server.token.clone()));
            of_users.push((server, user));
        }
        say(format!("{name}, {how}"));
        for (what, callers, path, calls) in [
            ("healthz", &of_users, "/healthz", CALLS),
            ("user", &of_users, "/api/v2/uploads/dashboard", CALLS),
            ("operator", &of_operators, "/api/v2/uploads/dashboard", CALLS),
            ("trend", &of_users, "/api/v2/uploads/trend", CALLS / 4),
        ] {
            for (setup, timing) in setups.iter().zip(time(callers, path, calls).await) {
                say(timing.line(&format!("{what} of {}", setup.files)));
            }
        }
    }
}

async fn time(callers: &[(Arc<Server>, String)], path: &str, calls: usize) -> Vec<Timing> {
    let http = client();
    let mut timings: Vec<Timing> = callers.iter().map(|_| Timing::default()).collect();
    for call in 0..calls + calls / 10 {
        for ((server, token), timing) in callers.iter().zip(&mut timings) {
            let started = Instant::now();
            let request = http.get(format!("{}{path}", server.url)).bearer_auth(token);
            let answer = request.send().await.expect("an answer");
            assert!(answer.status().is_success(), "{path}: {}", answer.status());
            let text = answer.text().await.expect("text");
            assert!(!text.is_empty());
            // The first calls only warm up connections, query plans and page caches.
            if call >= calls / 10 {
                timing.add(started.elapsed());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    timings
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
}

async fn fill(url: &CatalogUrl, files: usize) {
    catalog::fresh(url.clone()).await.close().await;
    let all = files + files / 10;
    let status = "CASE WHEN n % 100 < 88 THEN 'ready' WHEN n % 100 < 92 THEN 'failed' WHEN n % 100 < 94 THEN 'quarantined' \
                WHEN n % 100 < 98 THEN 'queued' ELSE 'registered' END AS status";
    let columns = format!(
        "CASE WHEN n <= {files} THEN 't0' ELSE 't1' END AS tenant, {status}, \
         {{now}} - 1 - (CAST(n AS BIGINT) * 7919) % 172800000 AS at"
    );
    let seed = match url {
        CatalogUrl::Sqlite(_) => format!(
            "CREATE TABLE seed AS WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {all}) \
             SELECT n, printf('018f4e6e-7f3a-7000-8000-%012x', n) AS id, {columns} FROM numbers"
        ),
        CatalogUrl::Postgres(_) => format!(
            "CREATE TABLE seed AS SELECT n, '018f4e6e-7f3a-7000-8000-' || lpad(to_hex(n), 12, '0') AS id, {columns} \
             FROM generate_series(1, {all}) AS n"
        ),
    };
    let statements: Vec<String> =
        std::iter::once(seed).chain(SEED.map(str::to_owned)).chain(["DROP TABLE seed".to_owned()]).collect();
    let text = format!("BEGIN; {}; COMMIT", statements.join("; ")).replace("{now}", &now().to_string());
    match url {
        CatalogUrl::Sqlite(path) => {
            let options = SqliteConnectOptions::new().filename(path).journal_mode(SqliteJournalMode::Wal);
            let mut connection = options.connect().await.expect("a connection");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.expect("seeded");
            sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.expect("done");
        }
        CatalogUrl::Postgres(url) => {
            let mut connection = PgConnection::connect(url).await.expect("a connection");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.expect("seeded");
            sqlx::raw_sql("VACUUM ANALYZE").execute(&mut connection).await.expect("done");
        }
    }
}
