//! Each kind of row that would grow without limit is deleted after its retention, and counted.

use serde_json::json;
use wharfinger::core::Role;

use super::{DAY_MS, sweep};
use crate::batches::{open, path};
use crate::test_app::{Database, METRICS, TestEnv, on_each_database};

/// All tests of this process share the counters, which only increase.
const COUNTERS: [&str; 8] = [
    "wharfinger_rows_expired_total{table=\"service_keys\"}",
    "wharfinger_rows_expired_total{table=\"deletion_log\"}",
    "wharfinger_rows_expired_total{table=\"queue_tenants\"}",
    "wharfinger_rows_expired_total{table=\"file_counts\"}",
    "wharfinger_rows_expired_total{table=\"upload_batches\"}",
    "wharfinger_rows_expired_total{table=\"file_history\"}",
    "wharfinger_outbox_lines_dropped_total{destination=\"broker\"}",
    "wharfinger_outbox_lines_dropped_total{destination=\"archive\"}",
];

async fn expired_rows_are_deleted_and_counted(database: Database) {
    wharfinger::telemetry::prometheus();
    let env = TestEnv::with_stages(database, "scan", &[("DELETION_LOG_DAYS", "30")]);
    let server = env.start().await;
    let me = server.me();
    let kept = me.enqueue("kept", b"one").await;
    let deleted = me.enqueue("deleted", b"two").await;
    me.delete(&format!("/api/v2/files/{deleted}")).await.expect(204);
    let batch = open(&me, &[]).await;
    me.post(&format!("{}/cancel", path(&batch)), json!({})).await.expect(200);
    // With so many versions, the next change removes the middle of the history.
    env.execute(
        "INSERT INTO file_history (file_id, version, at, to_status, reason, actor) \
             SELECT id, 30, 0, 'queued', 'tried again', 'a' FROM files WHERE file_name = 'kept'",
    )
    .await;
    env.execute("UPDATE files SET version = 249 WHERE file_name = 'kept'").await;
    server.settle().await;
    // After jobs of another tenant, the row of tenant t in `queue_tenants` is no longer needed.
    for name in ["a", "b", "c"] {
        server.as_user("another", "u", Role::User).enqueue(name, b"three").await;
    }
    server.settle().await;
    assert_eq!(me.file(&kept).await["status"], "ready");
    for line in [
        "INSERT INTO outbox (id, destination, tenant_id, job_id, due_at, attempts, created_at, next_attempt_at) \
         SELECT id, 'broker', 't', id, 0, 0, created_at, created_at FROM files WHERE file_name = 'kept'",
        "INSERT INTO outbox (id, destination, tenant_id, subject, place, message, attempts, created_at, \
         next_attempt_at) SELECT '1' || id, 'archive', 't', id, 1, '{}', 0, created_at, created_at FROM files \
         WHERE file_name = 'kept'",
    ] {
        env.execute(line).await;
    }
    // Two keys that ended long ago, one that ended lately, and a valid one.
    env.execute(
        "INSERT INTO service_keys (id, hash, role, created_at, expires_at, revoked_at) VALUES \
         ('revoked', 'x', 'metrics', 1, NULL, 2), ('expired', 'x', 'metrics', 1, 2, NULL), \
         ('recent', 'x', 'metrics', 1, NULL, 1750000000000), ('valid', 'x', 'metrics', 1, NULL, NULL)",
    )
    .await;
    let expired = [
        "SELECT COUNT(*) FROM deletion_log",
        "SELECT COUNT(*) FROM file_counts WHERE files = 0",
        "SELECT COUNT(*) FROM upload_batches",
        "SELECT COUNT(*) FROM outbox WHERE destination IN ('broker', 'archive')",
    ];
    for rows in expired {
        assert!(env.scalar(rows).await > 0, "{rows}");
    }

    env.advance(31 * DAY_MS);
    sweep(&server, "upload-window").await;
    sweep(&server, "orphan-cleanup").await;
    // The server may have deleted these before.
    let expired_earlier = [
        "SELECT COUNT(*) FROM file_history WHERE version = 30",
        "SELECT COUNT(*) FROM queue_tenants WHERE queue = 'file-scan' AND tenant_id = 't'",
    ];
    for rows in expired.into_iter().chain(expired_earlier) {
        assert_eq!(env.scalar(rows).await, 0, "{rows}");
    }
    assert_eq!(env.texts("SELECT id FROM service_keys ORDER BY id").await, ["recent", "valid"]);
    let _guard = METRICS.lock().await;
    let metrics = server.metrics().await;
    for counter in COUNTERS {
        let line = metrics.lines().find(|line| line.starts_with(counter));
        let count = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count > 0), "{counter}: {count:?}");
    }
    assert_eq!(me.file(&kept).await["status"], "ready");
}

on_each_database! {
    expired_rows_are_deleted_and_counted,
}
