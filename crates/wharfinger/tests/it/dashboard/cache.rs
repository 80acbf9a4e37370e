//! What is kept of answers: for its time, for its scope, and not beyond its user's next write.

use harness::proxy::Proxy;
use wharfinger::uploads::Role;

use crate::test_app::{Client, Database, Ground};

const TTL: (&str, &str) = ("DASHBOARD_CACHE_TTL", "300");

async fn ready(client: &Client<'_>) -> u64 {
    let shown = client.get("/api/v2/uploads/dashboard").await.expect(200);
    shown["statusDistribution"]["ready"].as_u64().expect("a number")
}

/// Files come to be behind the cache's back: by another user's write, for those above.
async fn holds_for_its_time_and_shows_own_writes(ground: &Ground, keeps_users: bool) {
    let server = ground.start().await;
    let (me, boss, op) = (server.me(), server.as_user("t", "boss", Role::Admin), server.operator());
    assert_eq!((ready(&me).await, ready(&boss).await, ready(&op).await), (0, 0, 0));
    let id = me.upload("a", b"a").await;
    assert_eq!(ready(&me).await, 1, "her own write shows at once");
    assert_eq!((ready(&boss).await, ready(&op).await), (0, 0), "others see what was kept");
    // What nobody wrote by a call is not noticed by what is kept.
    ground.execute("UPDATE file_counts SET files = files + 1 WHERE status = 'ready'").await;
    assert_eq!(ready(&me).await, if keeps_users { 1 } else { 2 });
    ground.execute("UPDATE file_counts SET files = files - 1 WHERE status = 'ready'").await;
    boss.delete(&format!("/api/v2/files/{id}")).await.expect(204);
    assert_eq!((ready(&me).await, ready(&boss).await), (0, 0), "an admin's write shows to the whole tenant");
    me.upload("b", b"b").await;
    assert_eq!(ready(&boss).await, 0);
    ground.advance(299_000);
    assert_eq!(ready(&op).await, 0, "kept until its time is over");
    ground.advance(2_000);
    assert_eq!((ready(&boss).await, ready(&op).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_keeps_them_itself() {
    holds_for_its_time_and_shows_own_writes(&Ground::with(Database::Sqlite, &[TTL]), true).await;
}

/// Another process may have taken a user's write: theirs are not kept without Redis.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_without_redis_a_users_are_worked_out_each_time() {
    let ground = Ground::with(Database::Postgres, &[TTL]);
    holds_for_its_time_and_shows_own_writes(&ground, false).await;
    let (one, other) = (ground.start().await, ground.start().await);
    let before = ready(&other.me()).await;
    one.me().upload("c", b"c").await;
    assert_eq!(ready(&other.me()).await, before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_them_for_all_processes() {
    let redis = harness::redis::shared().own_database();
    let ground = Ground::with_redis(Database::Postgres, &redis, &[TTL]);
    holds_for_its_time_and_shows_own_writes(&ground, true).await;
    let (one, other) = (ground.start().await, ground.start().await);
    let before = (ready(&one.me()).await, ready(&other.me()).await);
    assert_eq!(before.0, before.1);
    one.me().upload("c", b"c").await;
    assert_eq!(ready(&other.me()).await, before.0 + 1, "a write at one shows at the other");
    ground.execute("UPDATE file_counts SET files = files + 7 WHERE status = 'ready'").await;
    assert_eq!(ready(&one.me()).await, before.0 + 1, "what the other kept is found here");
    ground.execute("UPDATE file_counts SET files = files - 7 WHERE status = 'ready'").await;
}

/// Figures do not wait for Redis, and are never older than a write for that.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_figures_are_worked_out() {
    let redis = harness::redis::shared().own_database();
    let address = redis.trim_start_matches("redis://").split('/').next().expect("an address").to_owned();
    let proxy = Proxy::to(address.as_str()).expect("a proxy");
    let through = redis.replace(&address, &proxy.addr().to_string());
    let ground = Ground::with_redis(Database::Postgres, &through, &[TTL]);
    let server = ground.start().await;
    let me = server.me();
    assert_eq!(ready(&me).await, 0);
    proxy.cut();
    me.upload("a", b"a").await;
    assert_eq!(ready(&me).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_where_that_is_said() {
    let ground = Ground::with(Database::Sqlite, &[("DASHBOARD_CACHE_TTL", "0")]);
    let server = ground.start().await;
    let (me, op) = (server.me(), server.operator());
    for n in 1..4 {
        me.upload("a", b"a").await;
        assert_eq!(ready(&op).await, n);
    }
}
