//! The cache of the dashboard: an answer is valid for DASHBOARD_CACHE_TTL, for one scope, and until its next change.

use harness::proxy::Proxy;
use serde_json::json;
use wharfinger::core::Role;

use crate::sweeps::stuck_files::{THRESHOLD_MS, without_job};
use crate::test_app::{Client, Database, TestEnv, on_each_database};

const TTL: (&str, &str) = ("DASHBOARD_CACHE_TTL", "300");

async fn shown(client: &Client<'_>, figure: &str) -> u64 {
    let shown = client.get("/api/v2/uploads/dashboard").await.expect(200);
    shown.pointer(figure).and_then(|figure| figure.as_u64()).expect("a number")
}

async fn ready(client: &Client<'_>) -> u64 {
    shown(client, "/statusDistribution/ready").await
}

/// Changes figures without raising the change counter: only an answer that is computed again shows it.
const HIDDEN_CHANGES: [&str; 2] = [
    "UPDATE file_counts SET files = files + 100 WHERE status = 'ready'",
    "UPDATE file_counts SET files = files - 100 WHERE status = 'ready'",
];

async fn check_expiry_and_invalidation(env: &TestEnv) {
    let server = env.start().await;
    let (me, boss, op) = (server.me(), server.as_user("t", "boss", Role::Admin), server.operator());
    let id = me.upload("a", b"a").await;
    for client in [&me, &boss, &op] {
        assert_eq!(ready(client).await, 1, "own and other writes are shown at once");
    }
    env.execute(HIDDEN_CHANGES[0]).await;
    for client in [&me, &boss, &op] {
        assert_eq!(ready(client).await, 1, "the answer is cached");
    }
    env.advance(299_999);
    assert_eq!(ready(&op).await, 1, "before it expires");
    env.advance(1);
    assert_eq!(ready(&op).await, 101);
    env.execute(HIDDEN_CHANGES[1]).await;
    boss.delete(&format!("/api/v2/files/{id}")).await.expect(204);
    for client in [&me, &boss, &op] {
        assert_eq!(ready(client).await, 0);
    }
    // Figures change without a change of a file too.
    let batch = me.post("/api/v2/batches", json!({ "files": [] })).await.expect(201);
    assert_eq!(shown(&me, "/activeBatches").await, 1);
    let path = format!("/api/v2/batches/{}/cancel", batch["batchId"].as_str().expect("an id"));
    me.post(&path, json!({})).await.expect(200);
    assert_eq!(shown(&me, "/activeBatches").await, 0);
}

async fn answers_are_cached_in_memory(database: Database) {
    let env = TestEnv::with(database, &[TTL]);
    check_expiry_and_invalidation(&env).await;
    // A write of another process is seen too.
    let (one, other) = (env.start().await, env.start().await);
    let before = ready(&other.me()).await;
    one.me().upload("c", b"c").await;
    assert_eq!(ready(&other.me()).await, before + 1);
}

/// The file is queued before and after the retry: its status does not change.
async fn a_retry_is_shown_at_once(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[TTL]);
    let server = env.start().await;
    let me = server.me();
    let file = without_job(&env, &me, "lost").await;
    env.advance(THRESHOLD_MS);
    assert_eq!(shown(&me, "/stuckFiles").await, 1);
    me.post(&format!("/api/v2/uploads/stuck/{file}/retry"), json!({})).await.expect(200);
    assert_eq!(shown(&me, "/stuckFiles").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_caches_answers_for_all_processes() {
    let redis = harness::redis::shared().own_database();
    let env = TestEnv::with_redis(Database::Postgres, &redis, &[TTL]);
    check_expiry_and_invalidation(&env).await;
    let (one, other) = (env.start().await, env.start().await);
    one.me().upload("c", b"c").await;
    assert_eq!((ready(&one.me()).await, ready(&other.me()).await), (1, 1));
    env.execute(HIDDEN_CHANGES[0]).await;
    let third = env.start().await;
    assert_eq!(ready(&third.me()).await, 1, "another process has stored the answer");
    env.execute(HIDDEN_CHANGES[1]).await;
}

/// Figures do not wait for Redis. When it is back, entries from before the writes are not used.
#[tokio::test(flavor = "multi_thread")]
async fn figures_are_computed_while_redis_is_down() {
    let redis = harness::redis::shared().own_database();
    let address = redis.trim_start_matches("redis://").split('/').next().expect("an address").to_owned();
    let proxy = Proxy::to(address.as_str()).expect("a proxy");
    let through = redis.replace(&address, &proxy.addr().to_string());
    let env = TestEnv::with_redis(Database::Postgres, &through, &[TTL]);
    let server = env.start().await;
    let me = server.me();
    assert_eq!(ready(&me).await, 0);
    proxy.cut();
    me.upload("a", b"a").await;
    assert_eq!(ready(&me).await, 1);
    proxy.repair().expect("repaired");
    assert_eq!(ready(&env.start().await.me()).await, 1);
}

async fn a_ttl_of_zero_disables_the_cache(database: Database) {
    let env = TestEnv::with(database, &[("DASHBOARD_CACHE_TTL", "0")]);
    let server = env.start().await;
    let (me, op) = (server.me(), server.operator());
    me.upload("a", b"a").await;
    assert_eq!((ready(&me).await, ready(&op).await), (1, 1));
    env.execute(HIDDEN_CHANGES[0]).await;
    assert_eq!((ready(&me).await, ready(&op).await), (101, 101));
    env.execute(HIDDEN_CHANGES[1]).await;
}

on_each_database!(answers_are_cached_in_memory, a_ttl_of_zero_disables_the_cache, a_retry_is_shown_at_once);
