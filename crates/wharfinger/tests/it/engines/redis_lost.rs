//! Redis is killed, wiped, reset to an old state, paused and flushed during uploads. The limit is never exceeded, no
//! file is lost, and the counters are exact at the end.

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

const RECHECK_MS: i64 = 20_000;

/// The number of tenants whose quota Redis owns, and the highest epoch.
async fn quota_owner(env: &TestEnv) -> (i64, i64) {
    let owned_by_redis = env.scalar("SELECT COUNT(*) FROM quotas WHERE owner = 'redis'").await;
    (owned_by_redis, env.scalar("SELECT COALESCE(MAX(epoch), 0) FROM quotas").await)
}

async fn the_database_admits_uploads_while_redis_is_down(database: Database) {
    let mut redis = Redis::start().expect("a server");
    let env = TestEnv::with_redis(database, &redis.url(), &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    // `serve` does this before it connects to Redis.
    wharfinger::telemetry::prometheus();
    let server = env.start().await;
    let me = server.me();
    let first = me.upload("a", b"ten bytes!").await;
    let (owned_by_redis, epoch) = quota_owner(&env).await;
    assert_eq!(owned_by_redis, 1);
    let metrics = me.get("/metrics").await.body.to_string();
    assert!(metrics.contains("wharfinger_quota_redis_away "), "the gauge exists before the first failure");
    redis.kill().expect("killed");
    me.upload("b", b"ten bytes!").await;
    let (owned_by_redis, epoch_without_redis) = quota_owner(&env).await;
    assert!(owned_by_redis == 0 && epoch_without_redis > epoch, "the change of the owner is stored");
    me.init("too much", 11).await.expect_problem(403, "quota_exceeded");
    me.delete(&format!("/api/v2/files/{first}")).await.expect(204);
    me.upload("replacement", b"ten bytes!").await;
    me.init("too much", 11).await.expect_problem(403, "quota_exceeded");

    redis.start_again().expect("started");
    env.advance(RECHECK_MS);
    server.settle().await;
    me.upload("c", b"ten bytes!").await;
    let (owned_by_redis, epoch_with_redis) = quota_owner(&env).await;
    assert!(owned_by_redis == 1 && epoch_with_redis > epoch_without_redis, "Redis was counted again first");
    me.init("full", 1).await.expect_problem(403, "quota_exceeded");
    oracle::all_is_healed(&env, &server).await;
}

/// A slow Redis is not down until `QUOTA_REDIS_TIMEOUT_MS` is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_redis_keeps_the_quota_within_its_timeout() {
    let mut redis = Redis::start().expect("a server");
    let env = TestEnv::with_redis(Database::Sqlite, &redis.url(), &[]);
    let server = env.start().await;
    let me = server.me();
    me.upload("a", b"ten bytes!").await;
    redis.pause().expect("paused");
    let resumed = async {
        // Longer than the default timeout.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        redis.resume().expect("resumed");
    };
    let (answer, ()) = tokio::join!(me.init("b", 10), resumed);
    answer.expect(201);
    assert_eq!(quota_owner(&env).await.0, 1, "Redis still owns the quota");
}

async fn uploads_are_refused_without_redis_if_the_setting_says_so(database: Database) {
    let mut redis = Redis::start().expect("a server");
    let env = TestEnv::with_redis(database, &redis.url(), &[("QUOTA_WITHOUT_REDIS", "refuse")]);
    let server = env.start().await;
    let me = server.me();
    let kept = me.upload("a", b"ten bytes!").await;
    redis.kill().expect("killed");
    me.init("b", 1).await.expect_problem(503, "unavailable");
    me.get("/readyz").await.expect(503);
    assert_eq!(quota_owner(&env).await.0, 1);
    // A delete needs no quota, so it works.
    me.delete(&format!("/api/v2/files/{kept}")).await.expect(204);
    assert_eq!(me.used().await, 0);
    redis.start_again().expect("started");
    server.settle().await;
    me.upload("b", b"ten bytes!").await;
    env.advance(1_000);
    me.get("/readyz").await.expect(200);
    env.advance(RECHECK_MS * 10);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// A crashed process leaves a reservation in Redis. It is found when an upload does not fit.
async fn a_leaked_reservation_is_released(database: Database) {
    let redis = harness::redis::shared().own_database();
    let env = TestEnv::with_redis(database, &redis, &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    let server = env.start().await;
    let me = server.me();
    me.upload("a", b"ten bytes!").await;
    let owner = server.app.quota.redis_owner.as_ref().expect("Redis");
    let tenant = wharfinger_lifecycle::id::TenantId::new("t").expect("a tenant");
    let unknown = wharfinger_catalog::fresh_id(1);
    owner.redis.reserve(&tenant, unknown, 20, 30).await.expect("counted");
    me.upload("b", b"ten bytes!").await;
    // A second leak right after the first: it is not searched again so soon.
    owner.redis.reserve(&tenant, wharfinger_catalog::fresh_id(2), 10, 30).await.expect("counted");
    me.init("c", 1).await.expect_problem(403, "quota_exceeded");
    env.advance(RECHECK_MS);
    me.upload("c", b"ten bytes!").await;
    me.init("full", 1).await.expect_problem(403, "quota_exceeded");
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    the_database_admits_uploads_while_redis_is_down,
    uploads_are_refused_without_redis_if_the_setting_says_so,
    a_leaked_reservation_is_released,
);

const CLIENTS: usize = 64;
const FAULTS: usize = 100;
/// Each kind of fault once.
const FEW_FAULTS: usize = 6;
const LIMIT: u64 = 1_000;
const SIZE: u64 = 10;

/// The answers that all clients got.
#[derive(Default)]
struct Totals {
    created: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
    deleted: AtomicU64,
}

/// Fills the quota and deletes files again, until it is stopped.
async fn fill_and_delete(server: Arc<TestApp>, stop: Arc<AtomicBool>, totals: Arc<Totals>, user: usize) {
    let me = server.as_user("t", &format!("u{user}"), wharfinger::core::Role::User);
    let mut files: Vec<Value> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = me.init("f", SIZE).await;
        let is_full = match answer.status.as_u16() {
            201 => {
                totals.created.fetch_add(1, Ordering::Relaxed);
                files.push(answer.body);
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
        while files.len() > 2 || (is_full && !files.is_empty()) {
            let oldest = files.remove(0);
            if me.delete(&format!("/api/v2/files/{}", id(&oldest))).await.status == 204 {
                totals.deleted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Checks I1 in the database during the test. One statement reads one consistent state.
async fn watch(env: Arc<TestEnv>, stop: Arc<AtomicBool>) -> u64 {
    let mut checks = 0;
    while !stop.load(Ordering::Relaxed) {
        let charged = env
            .scalar("SELECT CAST(COALESCE(SUM(charged_bytes), 0) AS BIGINT) FROM files WHERE tenant_id = 't'")
            .await;
        assert!(charged <= LIMIT as i64, "{charged} bytes were admitted, the limit is {LIMIT}");
        checks += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    checks
}

fn inject_fault(redis: &mut Redis, n: usize) {
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    match n % 6 {
        0 => {
            redis.kill().expect("killed");
            pause(50);
            redis.start_again().expect("started");
        }
        1 => redis.wipe().expect("wiped"),
        // It restarts with an old snapshot.
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
        // One key is missing, like after an eviction.
        4 => {
            let names = ["used", "limit", "loaded", "inflight", "refunded", "loading"];
            let key = format!("quota:tenant:{{t}}:{}", names[n / 6 % names.len()]);
            redis.cli(&["DEL", &key]).expect("deleted");
        }
        _ => drop(redis.cli(&["FLUSHALL"]).expect("flushed")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_stays_exact_with_each_redis_fault_under_64_clients() {
    run_faults_under_64_clients(FEW_FAULTS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn the_quota_stays_exact_with_100_redis_faults_under_64_clients() {
    run_faults_under_64_clients(FAULTS, (long::seed() % 1_000) as usize).await;
}

/// Two processes, 64 clients of one tenant, and one Redis fault after another.
async fn run_faults_under_64_clients(faults: usize, first: usize) {
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
        .map(|n| tokio::spawn(fill_and_delete(servers[n % 2].clone(), stop.clone(), totals.clone(), n)))
        .collect();
    let redis = tokio::task::spawn_blocking(move || {
        let mut redis = redis;
        for n in first..first + faults {
            inject_fault(&mut redis, n);
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
    let checks = watcher.await.expect("the limit is never exceeded");
    for supervisor in supervisors {
        supervisor.stop().await;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} created, {} refused, {} unavailable, {} deleted; {checks} checks of the limit; epoch {}",
        count(&totals.created),
        count(&totals.refused),
        count(&totals.unavailable),
        count(&totals.deleted),
        quota_owner(&env).await.1
    );
    assert!(count(&totals.refused) > 0, "the limit was never reached");
    assert!(quota_owner(&env).await.1 > faults as i64 / 5, "too few faults had an effect");

    // Without load the counters in the catalog and in Redis are exact, and the rest of the quota can be used to the
    // last byte.
    let server = &servers[0];
    oracle::catalog_is_sound(server).await;
    oracle::redis_heals(server, "at the end").await;
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
