//! Redis killed, wiped, set back to an old state, paused and flushed while uploads go on: never one byte above the
//! limit, nothing lost, exact in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use harness::redis::Redis;
use serde_json::Value;
use wharfinger::worker::Supervisor;

use crate::long;
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use crate::uploads::id;

const AWAY_MS: i64 = 20_000;

async fn gate(env: &TestEnv) -> (i64, i64) {
    let at_redis = env.scalar("SELECT COUNT(*) FROM quotas WHERE owner = 'redis'").await;
    (at_redis, env.scalar("SELECT COALESCE(MAX(epoch), 0) FROM quotas").await)
}

async fn a_redis_that_is_gone_is_done_without_and_gone_back_to(database: Database) {
    let mut redis = Redis::start().expect("a server");
    let env = TestEnv::with_redis(database, &redis.url(), &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    // As `serve` does, before anything is opened.
    wharfinger::telemetry::prometheus();
    let server = env.start().await;
    let me = server.me();
    let first = me.upload("a", b"ten bytes!").await;
    let (at_redis, epoch) = gate(&env).await;
    assert_eq!(at_redis, 1);
    let metrics = me.get("/metrics").await.body.to_string();
    assert!(metrics.contains("quota_redis_away "), "the gauge is there before anything is wrong");
    redis.kill().expect("killed");
    me.upload("b", b"ten bytes!").await;
    let (at_redis, left) = gate(&env).await;
    assert!(at_redis == 0 && left > epoch, "leaving is written down");
    me.init("too much", 11).await.expect_problem(403, "quota_exceeded");
    me.delete(&format!("/api/v2/files/{first}")).await.expect(204);
    me.upload("in its place", b"ten bytes!").await;
    me.init("too much", 11).await.expect_problem(403, "quota_exceeded");

    redis.start_again().expect("started");
    env.advance(AWAY_MS);
    server.settle().await;
    me.upload("c", b"ten bytes!").await;
    let (at_redis, back) = gate(&env).await;
    assert!(at_redis == 1 && back > left, "only a count leads back");
    me.init("full", 1).await.expect_problem(403, "quota_exceeded");
    oracle::all_is_healed(&env, &server).await;
}

/// Slow is not away, as long as the setting lets it be.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_slow_is_waited_for_as_long_as_the_setting_says() {
    let mut redis = Redis::start().expect("a server");
    let env = TestEnv::with_redis(Database::Sqlite, &redis.url(), &[]);
    let server = env.start().await;
    let me = server.me();
    me.upload("a", b"ten bytes!").await;
    redis.pause().expect("paused");
    let resumed = async {
        // Longer than it would be waited for by default.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        redis.resume().expect("resumed");
    };
    let (answer, ()) = tokio::join!(me.init("b", 10), resumed);
    answer.expect(201);
    assert_eq!(gate(&env).await.0, 1, "it was not left");
}

async fn where_the_setting_says_so_nothing_is_let_in_without_redis(database: Database) {
    let mut redis = Redis::start().expect("a server");
    let env = TestEnv::with_redis(database, &redis.url(), &[("QUOTA_WITHOUT_REDIS", "refuse")]);
    let server = env.start().await;
    let me = server.me();
    let kept = me.upload("a", b"ten bytes!").await;
    redis.kill().expect("killed");
    me.init("b", 1).await.expect_problem(503, "unavailable");
    me.get("/readyz").await.expect(503);
    assert_eq!(gate(&env).await.0, 1);
    // What needs no room goes on.
    me.delete(&format!("/api/v2/files/{kept}")).await.expect(204);
    assert_eq!(me.used().await, 0);
    redis.start_again().expect("started");
    server.settle().await;
    me.upload("b", b"ten bytes!").await;
    env.advance(1_000);
    me.get("/readyz").await.expect(200);
    env.advance(AWAY_MS * 10);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// What a process that died had counted is found out when the room is missed.
async fn room_that_nobody_holds_is_found_again(database: Database) {
    let redis = harness::redis::shared().own_database();
    let env = TestEnv::with_redis(database, &redis, &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    let server = env.start().await;
    let me = server.me();
    me.upload("a", b"ten bytes!").await;
    let gate = server.app.quota.redis_owner.as_ref().expect("Redis");
    let tenant = wharfinger_lifecycle::id::TenantId::new("t").expect("a tenant");
    let nobody = wharfinger_catalog::fresh_id(1);
    gate.redis.reserve(&tenant, nobody, 20, 30).await.expect("counted");
    me.upload("b", b"ten bytes!").await;
    // And once more within a moment: that is not looked into again so soon.
    gate.redis.reserve(&tenant, wharfinger_catalog::fresh_id(2), 10, 30).await.expect("counted");
    me.init("c", 1).await.expect_problem(403, "quota_exceeded");
    env.advance(AWAY_MS);
    me.upload("c", b"ten bytes!").await;
    me.init("full", 1).await.expect_problem(403, "quota_exceeded");
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_redis_that_is_gone_is_done_without_and_gone_back_to,
    where_the_setting_says_so_nothing_is_let_in_without_redis,
    room_that_nobody_holds_is_found_again,
);

const CLIENTS: usize = 64;
const FAULTS: usize = 100;
/// Each kind once.
const FEW_FAULTS: usize = 6;
const LIMIT: u64 = 1_000;
const SIZE: u64 = 10;

/// What all clients have seen.
#[derive(Default)]
struct Totals {
    made: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
    deleted: AtomicU64,
}

/// Fills the quota and makes room again, for as long as it is told.
async fn press(server: Arc<TestApp>, stop: Arc<AtomicBool>, totals: Arc<Totals>, user: usize) {
    let me = server.as_user("t", &format!("u{user}"), wharfinger::core::Role::User);
    let mut held: Vec<Value> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = me.init("f", SIZE).await;
        let is_full = match answer.status.as_u16() {
            201 => {
                totals.made.fetch_add(1, Ordering::Relaxed);
                held.push(answer.body);
                false
            }
            403 => {
                totals.refused.fetch_add(1, Ordering::Relaxed);
                true
            }
            503 => {
                totals.unavailable.fetch_add(1, Ordering::Relaxed);
                false
            }
            other => panic!("{other}: {}", answer.body),
        };
        while held.len() > 2 || (is_full && !held.is_empty()) {
            let gone = held.remove(0);
            if me.delete(&format!("/api/v2/files/{}", id(&gone))).await.status == 204 {
                totals.deleted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// I1, looked at from outside while everything goes on: one statement sees one moment.
async fn watch(env: Arc<TestEnv>, stop: Arc<AtomicBool>) -> u64 {
    let mut looks = 0;
    while !stop.load(Ordering::Relaxed) {
        let charged = env
            .scalar("SELECT CAST(COALESCE(SUM(charged_bytes), 0) AS BIGINT) FROM files WHERE tenant_id = 't'")
            .await;
        assert!(charged <= LIMIT as i64, "{charged} bytes are let in, of {LIMIT}");
        looks += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    looks
}

fn break_it(redis: &mut Redis, n: usize) {
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    match n % 6 {
        0 => {
            redis.kill().expect("killed");
            pause(50);
            redis.start_again().expect("started");
        }
        1 => redis.wipe().expect("wiped"),
        // What it comes back with is from before.
        2 => {
            redis.snapshot().expect("saved");
            pause(100);
            redis.kill().expect("killed");
            redis.start_again().expect("started");
        }
        3 => {
            redis.pause().expect("paused");
            pause(if n % 12 == 3 { 1_500 } else { 200 });
            redis.resume().expect("resumed");
        }
        // Truncated: one of its keys is gone, as by eviction.
        4 => {
            let names = ["used", "limit", "loaded", "inflight", "refunded", "loading"];
            let key = format!("quota:tenant:{{t}}:{}", names[n / 6 % names.len()]);
            redis.cli(&["DEL", &key]).expect("deleted");
        }
        _ => drop(redis.cli(&["FLUSHALL"]).expect("flushed")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_in_each_way_under_64_clients() {
    lost_under_64_clients(FEW_FAULTS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn lost_a_hundred_times_under_64_clients() {
    lost_under_64_clients(FAULTS, (long::seed() % 1_000) as usize).await;
}

/// Two processes, 64 clients on one tenant, and Redis lost again and again, each time in another way.
async fn lost_under_64_clients(faults: usize, first: usize) {
    let redis = Redis::start().expect("a server");
    let limit = LIMIT.to_string();
    let settings = [("WHARFINGER_QUOTA_URL", redis.url()), ("DEFAULT_TENANT_QUOTA_BYTES", limit)];
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let env = Arc::new(TestEnv::in_real_time(Database::Postgres, &settings));
    let servers = [Arc::new(env.start().await), Arc::new(env.start().await)];
    let mut supervisors = Vec::new();
    for server in &servers {
        supervisors.push(Supervisor::start(&server.app).await);
    }
    let (stop, totals) = (Arc::new(AtomicBool::new(false)), Arc::new(Totals::default()));
    let watcher = tokio::spawn(watch(env.clone(), stop.clone()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| tokio::spawn(press(servers[n % 2].clone(), stop.clone(), totals.clone(), n)))
        .collect();
    let redis = tokio::task::spawn_blocking(move || {
        let mut redis = redis;
        for n in first..first + faults {
            break_it(&mut redis, n);
            std::thread::sleep(Duration::from_millis(150));
        }
        redis
    })
    .await
    .expect("all faults");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client");
    }
    let looks = watcher.await.expect("never above the limit");
    for supervisor in supervisors {
        supervisor.stop().await;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} made, {} refused, {} unavailable, {} deleted; {looks} looks; epoch {}",
        count(&totals.made),
        count(&totals.refused),
        count(&totals.unavailable),
        count(&totals.deleted),
        gate(&env).await.1
    );
    assert!(count(&totals.refused) > 0, "the limit was never reached");
    assert!(gate(&env).await.1 > faults as i64 / 5, "the count was hardly ever lost");

    // Quiet: exact, in the catalog and in Redis, and the room that is left is there to the byte.
    let server = &servers[0];
    oracle::catalog_is_sound(server).await;
    oracle::redis_heals(server, "in the end").await;
    let me = server.me();
    let used = me.used().await;
    assert!(used <= LIMIT);
    if used < LIMIT {
        me.init("the rest", LIMIT - used).await.expect(201);
    }
    me.init("one more", 1).await.expect_problem(403, "quota_exceeded");
    oracle::redis_heals(server, "when full").await;
    drop(redis);
}
