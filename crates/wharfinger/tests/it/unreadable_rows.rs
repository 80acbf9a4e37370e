//! Each table that a background loop reads has one unreadable row. All other rows are still processed.

use std::collections::BTreeSet;

use serde_json::json;

use crate::batches::{open, path};
use crate::notify::receiver::Receiver;
use crate::notify::telling;
use crate::test_app::{Database, METRICS, TestApp, TestEnv, on_each_database};

const DAY_MS: i64 = 86_400_000;

/// Only SQLite: PostgreSQL refuses a text in a column of numbers.
const BAD_SWEEP: &str = "UPDATE sweeps SET last_end_at = 'yesterday' WHERE name = 'quota-sync'";

/// A newer version, a manual change or a broken disk may leave such rows.
async fn damage(env: &TestEnv, database: Database) {
    for statement in [
        "UPDATE files SET stage = 'unknown' WHERE file_name = 'bad-file'",
        "UPDATE jobs SET id = 'no id' WHERE file_id = (SELECT id FROM files WHERE file_name = 'bad-job')",
        "UPDATE files SET id = 'no id' WHERE file_name = 'bad-check'",
        "UPDATE files SET id = 'no id 2', pipeline_status = 'failed', failed_at = 0, stage = NULL WHERE file_name = 'bad-failure'",
        "UPDATE pending_cleanups SET file_path = '../etc'",
        "UPDATE upload_batches SET id = 'no id'",
        "UPDATE outbox SET tenant_id = ''",
        "UPDATE notifications SET id = 'no id'",
        "INSERT INTO quotas (tenant_id, used_bytes) VALUES ('two\nlines', 0)",
    ] {
        env.execute(statement).await;
    }
    if database == Database::Sqlite {
        env.execute(BAD_SWEEP).await;
    }
}

/// Another test may scrape at the same time, so this tries several times.
async fn is_shown(server: &TestApp, line: &str) {
    let _guard = METRICS.lock().await;
    for _ in 0..20 {
        if server.metrics().await.lines().any(|shown| shown == line) {
            return;
        }
    }
    panic!("{line} is not in {}", server.metrics().await);
}

/// The output of `wharfinger doctor` while the server runs.
async fn doctor(env: &TestEnv) -> String {
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_wharfinger"));
    let output =
        program.arg("doctor").env_clear().envs(env.environment()).output().await.expect("the program runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn unreadable_rows_do_not_block_the_others(database: Database) {
    wharfinger::telemetry::prometheus();
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url).also(&[("PIPELINE_STAGES", "scan,extract,chunk,embed")]);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    operator.post("/api/v2/maintenance/sweeps/quota-sync/run", json!({})).await.expect(200);
    let (bad_file, bad_job) = (me.enqueue("bad-file", b"one").await, me.enqueue("bad-job", b"two").await);
    me.init("bad-check", 1).await.expect(201);
    open(&me, &[]).await;
    me.enqueue("bad-failure", b"four").await;
    for name in ["bad-cleanup", "bad-line"] {
        let file = me.enqueue(name, b"three").await;
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    // A notification whose webhook is still pending.
    env.execute(
        "INSERT INTO notifications (id, tenant_id, user_id, kind, message, data, created_at) \
             SELECT id, 't', 'u', 'file-ready', 'm', '{}', 0 FROM files WHERE file_name = 'bad-file'",
    )
    .await;
    env
        .execute(
            "INSERT INTO outbox (id, destination, tenant_id, notification_id, subject, place, attempts, created_at, \
             next_attempt_at) SELECT id, 'webhook', 't', id, id, 1, 0, 0, 0 FROM files WHERE file_name = 'bad-file'",
        )
        .await;
    env.execute("DELETE FROM pending_cleanups WHERE id <> (SELECT MIN(id) FROM pending_cleanups)").await;
    damage(&env, database).await;

    let good = me.enqueue("good", b"A text with a few words about forty crates.").await;
    let deleted = me.enqueue("deleted", b"gone").await;
    me.delete(&format!("/api/v2/files/{deleted}")).await.expect(204);
    let abandoned = me.init("abandoned", 3).await.expect(201)["fileId"].as_str().expect("an id").to_owned();
    let batch = open(&me, &[2]).await;
    server.settle().await;
    env.advance(2 * DAY_MS);
    server.settle().await;
    server.settle().await;

    assert_eq!(me.file(&good).await["status"], "ready");
    assert!(!env.blob_dir().join("uploads/t/u").join(&deleted).exists(), "the object is deleted");
    me.get(&format!("/api/v2/files/{abandoned}")).await.expect_problem(410, "gone");
    assert_eq!(me.get(&path(&batch)).await.expect(200)["status"], "expired");
    assert!(receiver.taken().iter().any(|got| got.kind() == "file-ready" && got.file() == good));
    for sweep in [
        "stuck-file-recovery",
        "orphan-cleanup",
        "batch-timeout",
        "pending-cleanups",
        "upload-window",
        "quota-sync",
    ] {
        let ran = operator.post(&format!("/api/v2/maintenance/sweeps/{sweep}/run"), json!({})).await;
        assert_eq!(ran.status, 200, "{sweep}: {:?}", ran.body);
    }
    if database == Database::Sqlite {
        // The run of the sweep has repaired this row.
        env.execute(BAD_SWEEP).await;
    }
    for call in [
        "/readyz",
        "/api/v2/files",
        "/api/v2/dlq",
        "/api/v2/notifications",
        "/api/v2/uploads/dashboard",
        "/api/v2/uploads/stuck",
        "/api/v2/uploads/orphans",
        "/api/v2/tenants",
        "/api/v2/maintenance/sweeps",
        "/api/v1/maintenance/cleanup/pending",
    ] {
        let answer = operator.get(call).await;
        assert_eq!(answer.status, 200, "{call}: {:?}", answer.body);
    }
    me.get("/api/v2/notifications").await.expect(200);
    let listed = env.texts("SELECT table_name || ' ' || row_id FROM unreadable_rows").await;
    let found: BTreeSet<&str> = listed.iter().filter_map(|row| row.split(' ').next()).collect();
    let mut tables =
        vec!["files", "jobs", "outbox", "pending_cleanups", "upload_batches", "quotas", "notifications"];
    if database == Database::Sqlite {
        tables.push("sweeps");
    }
    for table in tables {
        assert!(found.contains(table), "{table} is not in {listed:?}");
        let rows = listed.iter().filter(|row| row.starts_with(&format!("{table} "))).count();
        is_shown(&server, &format!("wharfinger_unreadable_rows{{table=\"{table}\"}} {rows}")).await;
    }
    for id in [bad_file.as_str(), "no id 2"] {
        assert!(listed.contains(&format!("files {id}")), "{listed:?}");
    }
    let doctor = doctor(&env).await;
    assert!(doctor.contains("rows cannot be read") && doctor.contains("files no id 2"), "{doctor}");

    // After the repair, the files are processed.
    env.execute("UPDATE files SET stage = 'scan' WHERE file_name = 'bad-file'").await;
    env.execute("UPDATE jobs SET id = '018f4e6e-7f3a-7000-8000-000000000001' WHERE id = 'no id'").await;
    for _ in 0..3 {
        env.advance(2 * 3_600_000);
        server.settle().await;
    }
    for file in [&bad_file, &bad_job] {
        assert_eq!(me.file(file).await["status"], "ready", "{:?}", me.file(file).await);
    }
}

on_each_database! {
    unreadable_rows_do_not_block_the_others,
}
