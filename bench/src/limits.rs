//! The limits of the databases: the same statements without our program, by `pgbench` and by a bare loop.

use std::time::{Duration, Instant};

use harness::postgres::Postgres;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use wharfinger_catalog::CatalogUrl;

use crate::catalog;
use crate::server::base;
use crate::timing::{rate, say};

/// The statements of init, confirm and delete. `$1` is the file's id.
const INIT: [&str; 6] = [
    "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, \
     charged_bytes, retry_count, url_dead_at, next_check_at, created_at, updated_at) \
     VALUES ($1, 't', 'u', 'x', 4, 'uploads/t/u/x', 'registered', 1, 4, 0, 2, 3, 1, 1)",
    "INSERT INTO objects (key, file_id, kind, created_at) VALUES ($1, $1, 'original', 1)",
    "INSERT INTO file_history (file_id, version, at, to_status, reason, actor) \
     VALUES ($1, 1, 1, 'registered', 'registered', 'user:u')",
    "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, \
     created_at, updated_at) VALUES ($1, 'upload-check', 't', $1, 'waiting', 3, 0, 5, 0, 1, 1)",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) VALUES ('t', 'u', 'registered', '', 1, 4) \
     ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET files = file_counts.files + excluded.files, \
     charged_bytes = file_counts.charged_bytes + excluded.charged_bytes",
    "UPDATE quotas SET used_bytes = used_bytes + 4 \
     WHERE tenant_id = 't' AND used_bytes + 4 <= COALESCE(limit_bytes, 1000000000000)",
];
const CONFIRM: [&str; 7] = [
    "SELECT * FROM files WHERE id = $1",
    "UPDATE files SET pipeline_status = 'ready', version = 3, etag = 'e', next_check_at = NULL, updated_at = 2, \
     confirmed_at = 2, ready_at = 2 WHERE id = $1 AND version = 1",
    "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
     VALUES ($1, 2, 2, 'registered', 'uploaded', 'confirmed', 'user:u')",
    "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
     VALUES ($1, 3, 2, 'uploaded', 'ready', 'no stages', 'user:u')",
    "DELETE FROM jobs WHERE file_id = $1",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) VALUES ('t', 'u', 'ready', '', 1, 4) \
     ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET files = file_counts.files + excluded.files, \
     charged_bytes = file_counts.charged_bytes + excluded.charged_bytes",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) VALUES ('t', 'u', 'registered', '', -1, -4) \
     ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET files = file_counts.files + excluded.files, \
     charged_bytes = file_counts.charged_bytes + excluded.charged_bytes",
];
const DELETE: [&str; 8] = [
    "SELECT * FROM files WHERE id = $1",
    "UPDATE files SET pipeline_status = 'deleted', version = 4, charged_bytes = 0, end_reason = 'deleted', \
     next_check_at = 9, updated_at = 3 WHERE id = $1 AND version = 3",
    "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
     VALUES ($1, 4, 3, 'ready', 'deleted', 'deleted', 'user:u')",
    "DELETE FROM jobs WHERE file_id = $1",
    "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, tenant_id, document_id, size, attempts, \
     max_attempts, created_at, next_attempt_at, finish_at, exhausted, lease_token, lease_until) \
     VALUES ($1, $1, 'disk', 'deleted', 't', $1, 4, 0, 5, 3, 3, 3, 0, 0, 0)",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) VALUES ('t', 'u', 'deleted', '', 1, 0) \
     ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET files = file_counts.files + excluded.files, \
     charged_bytes = file_counts.charged_bytes + excluded.charged_bytes",
    "INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) VALUES ('t', 'u', 'ready', '', -1, -4) \
     ON CONFLICT (tenant_id, user_id, status, stage) DO UPDATE SET files = file_counts.files + excluded.files, \
     charged_bytes = file_counts.charged_bytes + excluded.charged_bytes",
    "UPDATE quotas SET used_bytes = used_bytes - 4 WHERE tenant_id = 't'",
];
const QUOTA: &str = "INSERT INTO quotas (tenant_id, used_bytes) VALUES ('t', 0)";
const RUN: Duration = Duration::from_secs(6);

async fn create_schema(url: CatalogUrl) {
    let catalog = catalog::fresh(url).await;
    catalog.close().await;
}

async fn bare_sqlite(path: &std::path::Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .expect("the file opens")
}

/// One connection, one statement after the other. `per_commit` verbs share one fsync.
pub(crate) async fn sqlite() {
    for per_commit in [1, 64] {
        let folder = tempfile::tempdir_in(base()).expect("a folder");
        let path = folder.path().join("limit.db");
        create_schema(CatalogUrl::Sqlite(path.clone())).await;
        let mut connection = bare_sqlite(&path).await;
        connection.execute(QUOTA).await.expect("a quota");
        let (started, mut pairs) = (Instant::now(), 0);
        while started.elapsed() < RUN {
            let ids: Vec<String> = (0..per_commit).map(|n| format!("{pairs}-{n}")).collect();
            for verb in [&INIT[..], &CONFIRM[..], &DELETE[..]] {
                connection.execute("BEGIN IMMEDIATE").await.expect("begin");
                for id in &ids {
                    for sql in verb {
                        sqlx::query(*sql)
                            .bind(id)
                            .fetch_optional(&mut connection)
                            .await
                            .expect("a statement");
                    }
                }
                connection.execute("COMMIT").await.expect("commit");
            }
            pairs += per_commit;
        }
        say(format!(
            "limit: {:>6.0} init+confirm+delete/s, bare SQLite loop, {per_commit} verbs a commit",
            rate(pairs, started.elapsed())
        ));
        connection.close().await.expect("closed");
    }
}

pub(crate) async fn postgres(server: &Postgres) {
    let url = server.create_database();
    create_schema(CatalogUrl::Postgres(url.clone())).await;
    server.psql(&url, QUOTA).expect("a quota");
    let mut script = String::from("\\set n random(1, 9000000000000000)\n");
    for verb in [&INIT[..], &CONFIRM[..], &DELETE[..]] {
        script.push_str("BEGIN;\n");
        for sql in verb {
            script.push_str(
                &sql.replace(
                    "$1",
                    "CAST('b' || CAST(:client_id AS TEXT) || '-' || CAST(:n AS TEXT) AS TEXT)",
                ),
            );
            script.push_str(";\n");
        }
        script.push_str("COMMIT;\n");
    }
    let file = base().join("pair.sql");
    std::fs::write(&file, script).expect("a script");
    for clients in [1, 16, 64] {
        say_pgbench(server, &url, &file, clients, "init+confirm+delete each");
    }
}

pub(crate) fn say_pgbench(server: &Postgres, url: &str, file: &std::path::Path, clients: usize, what: &str) {
    let ran = server
        .command("pgbench")
        .args(["-n", "-M", "simple", "-T", "6", "-j", "2", "-c", &clients.to_string(), "-f"])
        .arg(file)
        .arg(url)
        .output()
        .expect("pgbench runs");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let tps = text.lines().find(|line| line.starts_with("tps")).unwrap_or("no result");
    say(format!("limit: pgbench, same statements, {clients} clients: {tps} ({what})"));
}

const ENQUEUE_JOB: &str = "INSERT INTO jobs (id, queue, tenant_id, state, run_at, attempts, max_attempts, \
    lease_token, created_at, updated_at) VALUES ($1, 'bench', 't', 'waiting', 1, 0, 5, 0, 1, 1)";

fn claim_sql(count: usize, lock: &str) -> String {
    format!(
        "WITH due AS MATERIALIZED (SELECT id FROM jobs WHERE queue = 'bench' AND state = 'waiting' \
         AND run_at <= 1 ORDER BY run_at, id LIMIT {count} {lock}) UPDATE jobs SET state = 'leased', \
         attempts = attempts + 1, lease_token = lease_token + 1, lease_until = 9, deadline_at = 9 \
         WHERE id IN (SELECT id FROM due) RETURNING id"
    )
}

pub(crate) async fn sqlite_jobs(jobs: usize, batch: usize) {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let path = folder.path().join("limit.db");
    create_schema(CatalogUrl::Sqlite(path.clone())).await;
    let mut connection = bare_sqlite(&path).await;
    connection.execute("BEGIN IMMEDIATE").await.expect("begin");
    for n in 0..jobs {
        let id = format!("{n:08}");
        sqlx::query(ENQUEUE_JOB).bind(id).execute(&mut connection).await.expect("a job");
    }
    connection.execute("COMMIT").await.expect("commit");
    let claim = claim_sql(batch, "");
    let started = Instant::now();
    for _ in 0..jobs / batch {
        let rows = sqlx::query_as::<_, (String,)>(AssertSqlSafe(claim.clone()));
        let ids = rows.fetch_all(&mut connection).await.expect("a claim");
        let list: Vec<String> = ids.iter().map(|(id,)| format!("'{id}'")).collect();
        let delete = format!("DELETE FROM jobs WHERE id IN ({})", list.join(","));
        sqlx::query(AssertSqlSafe(delete)).persistent(false).execute(&mut connection).await.expect("done");
    }
    say(format!("limit: {:>6.0} jobs/s, bare SQLite loop, unfenced", rate(jobs, started.elapsed())));
}

pub(crate) async fn postgres_jobs(url: &str, jobs: usize, batch: usize) {
    create_schema(CatalogUrl::Postgres(url.to_owned())).await;
    let pool = PgPoolOptions::new().max_connections(8).connect(url).await.expect("a pool");
    let fill = format!(
        "INSERT INTO jobs (id, queue, tenant_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
         updated_at) SELECT lpad(n::text, 8, '0'), 'bench', 't', 'waiting', 1, 0, 5, 0, 1, 1 \
         FROM generate_series(1, {jobs}) n"
    );
    sqlx::query(AssertSqlSafe(fill)).execute(&pool).await.expect("jobs");
    let claim = claim_sql(batch, "FOR UPDATE SKIP LOCKED");
    let started = Instant::now();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (pool, claim) = (pool.clone(), claim.clone());
            tokio::spawn(async move {
                loop {
                    let rows = sqlx::query_as::<_, (String,)>(AssertSqlSafe(claim.clone()));
                    let ids: Vec<String> =
                        rows.fetch_all(&pool).await.expect("a claim").into_iter().map(|(id,)| id).collect();
                    if ids.is_empty() {
                        return;
                    }
                    let delete = sqlx::query("DELETE FROM jobs WHERE id = ANY($1)").bind(ids);
                    delete.execute(&pool).await.expect("done");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker");
    }
    say(format!(
        "limit: {:>6.0} jobs/s, bare loops on PostgreSQL, 4 workers, unfenced",
        rate(jobs, started.elapsed())
    ));
}
