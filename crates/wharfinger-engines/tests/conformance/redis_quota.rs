//! Tests of the Redis scripts, each on one server and on a cluster.

use std::time::Duration;

use harness::redis::{Options, Redis, shared};
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_engines::redis_quota::{
    Load, LoadResult, QuotaError, RedisQuota, RefundResult, Reservation, keys,
};
use wharfinger_lifecycle::id::TenantId;

const DEFAULT: u64 = 1_000;

fn tenant() -> TenantId {
    // The closing brace in the name must not end the hash tag.
    TenantId::new("}har{bour%").expect("a tenant")
}

fn quota(url: &str, catalog: &str) -> RedisQuota {
    with_default_timeout(url, catalog).with_timeout(Duration::from_secs(60))
}

/// With the default timeout.
fn with_default_timeout(url: &str, catalog: &str) -> RedisQuota {
    RedisQuota::new(url, catalog.into(), Faults::none()).expect("a URL of Redis")
}

fn attempt(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn load(epoch: i64, used_bytes: u64) -> Load {
    Load { epoch, used_bytes, limit_bytes: 100, has_own_limit: true }
}

/// Announces a load and loads it immediately.
async fn announce_and_load(quota: &RedisQuota, load: Load) -> LoadResult {
    let announced = quota.announce(&tenant(), "l").await.expect("announced");
    quota.load(&tenant(), &announced.name, load).await.expect("loaded")
}

async fn reserve(quota: &RedisQuota, n: u128, size: u64) -> Reservation {
    quota.reserve(&tenant(), attempt(n), size, DEFAULT).await.expect("answered")
}

fn counted(epoch: i64, limit_bytes: u64) -> Reservation {
    Reservation::Counted { epoch, limit_bytes }
}

macro_rules! on_one_server_and_on_a_cluster {
    ($($name:ident)+) => {
        mod one {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&super::shared().own_database()).await;
            })+
        }
        mod cluster {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let server = super::Redis::start_with(super::Options { cluster: true, ..Default::default() });
                super::$name(&server.expect("a cluster").url()).await;
            })+
        }
    };
}

on_one_server_and_on_a_cluster! {
    counters_that_were_not_loaded_are_not_guessed
    a_file_is_counted_once_and_never_above_the_limit
    a_refund_is_applied_once_and_only_to_its_epoch
    an_announced_load_is_accepted_once_and_never_over_a_newer_epoch
    any_missing_key_requires_a_reload
    the_default_limit_comes_with_each_reservation
    numbers_above_the_exact_range_of_lua_are_counted_exactly
    catalogs_do_not_share_counters
    installations_with_different_prefixes_do_not_touch_each_other
}

async fn counters_that_were_not_loaded_are_not_guessed(url: &str) {
    let quota = quota(url, "c");
    quota.check().await.expect("usable");
    assert_eq!(reserve(&quota, 1, 1).await, Reservation::Reload);
    let refunded = quota.refund(&tenant(), "line", 1, 1).await.expect("answered");
    assert_eq!(refunded, RefundResult::Reload);
    quota.release(&tenant(), attempt(1)).await.expect("answered");
    quota.settle(&tenant(), &[attempt(1)]).await.expect("answered");
    assert_eq!(quota.announce(&tenant(), "l").await.expect("announced").valid_epoch, None);
}

async fn a_file_is_counted_once_and_never_above_the_limit(url: &str) {
    let quota = quota(url, "c");
    assert_eq!(announce_and_load(&quota, load(3, 40)).await, LoadResult::Loaded { used_bytes_before: None });
    assert_eq!(reserve(&quota, 1, 50).await, counted(3, 100));
    assert_eq!(reserve(&quota, 1, 50).await, counted(3, 100), "the same attempt is counted once");
    assert_eq!(reserve(&quota, 2, 11).await, Reservation::Full { used_bytes: 90, limit_bytes: 100 });
    assert_eq!(reserve(&quota, 2, 10).await, counted(3, 100));
    assert_eq!(reserve(&quota, 3, 0).await, counted(3, 100), "an empty file fits into a full quota");
    for _ in 0..2 {
        quota.release(&tenant(), attempt(2)).await.expect("released");
    }
    assert_eq!(reserve(&quota, 4, 11).await, Reservation::Full { used_bytes: 90, limit_bytes: 100 });
    // A settled attempt is not released.
    quota.settle(&tenant(), &[attempt(1)]).await.expect("settled");
    quota.release(&tenant(), attempt(1)).await.expect("answered");
    assert_eq!(reserve(&quota, 4, 11).await, Reservation::Full { used_bytes: 90, limit_bytes: 100 });
}

async fn a_refund_is_applied_once_and_only_to_its_epoch(url: &str) {
    let quota = quota(url, "c");
    announce_and_load(&quota, load(3, 40)).await;
    let refund =
        async |line: &str, bytes, epoch| quota.refund(&tenant(), line, bytes, epoch).await.expect("answered");
    assert!(matches!(refund("a", 10, 3).await, RefundResult::Done { remembered: 1.. }));
    assert_eq!(refund("a", 10, 3).await, RefundResult::Done { remembered: 0 });
    assert_eq!(
        refund("b", 10, 2).await,
        RefundResult::Done { remembered: 0 },
        "the loaded counter contains it"
    );
    assert_eq!(refund("c", 10, 4).await, RefundResult::Later);
    assert_eq!(reserve(&quota, 1, 71).await, Reservation::Full { used_bytes: 30, limit_bytes: 100 });
    // The refund exceeds the counter, so the counter is invalid.
    assert_eq!(refund("d", 31, 3).await, RefundResult::Reload);
    assert_eq!(reserve(&quota, 1, 1).await, Reservation::Reload);
}

async fn an_announced_load_is_accepted_once_and_never_over_a_newer_epoch(url: &str) {
    let quota = quota(url, "c");
    let try_load = async |name: &str, epoch, used| {
        quota.load(&tenant(), name, load(epoch, used)).await.expect("answered")
    };
    let announce = async || quota.announce(&tenant(), "x").await.expect("announced").name;
    assert_eq!(try_load("x", 1, 0).await, LoadResult::Unannounced);
    // Announcing the same text again creates another load.
    let (x, y, z) = (&announce().await, &announce().await, &announce().await);
    assert!(x != y && y != z);
    assert_eq!(try_load(y, 2, 20).await, LoadResult::Loaded { used_bytes_before: None });
    assert_eq!(try_load(y, 3, 0).await, LoadResult::Unannounced, "once");
    assert_eq!(try_load(x, 1, 10).await, LoadResult::Newer { epoch: 2 });
    assert_eq!(try_load(z, 3, 30).await, LoadResult::Loaded { used_bytes_before: Some(20) });
    let announced = quota.announce(&tenant(), "v").await.expect("announced");
    assert_eq!(announced.valid_epoch, Some(3));
    assert_eq!(try_load(&announced.name, 3, 0).await, LoadResult::Newer { epoch: 3 });
    assert_eq!(reserve(&quota, 1, 70).await, counted(3, 100));
    // Earlier reservations do not affect the new counter.
    assert_eq!(try_load(&announce().await, 4, 0).await, LoadResult::Loaded { used_bytes_before: Some(100) });
    quota.release(&tenant(), attempt(1)).await.expect("answered");
    assert_eq!(reserve(&quota, 1, 100).await, counted(4, 100));
}

async fn any_missing_key_requires_a_reload(url: &str) {
    let quota = quota(url, "c");
    let client = redis::Client::open(url).expect("a URL of Redis");
    let mut raw = client.get_multiplexed_async_connection().await.expect("a connection");
    for key in &keys("", &tenant())[..5] {
        announce_and_load(&quota, load(3, 40)).await;
        assert_eq!(reserve(&quota, 1, 1).await, counted(3, 100));
        let gone: u64 = redis::cmd("DEL").arg(key).query_async(&mut raw).await.expect("deleted");
        assert_eq!(gone, 1, "{key} existed");
        assert_eq!(reserve(&quota, 2, 1).await, Reservation::Reload, "without {key}");
    }
    let used: String = {
        announce_and_load(&quota, load(3, 40)).await;
        redis::cmd("GET").arg("quota:tenant:{%7Dhar{bour%25}:used").query_async(&mut raw).await.expect("read")
    };
    assert_eq!(used, "40", "the value is a plain number");
}

async fn the_default_limit_comes_with_each_reservation(url: &str) {
    let quota = quota(url, "c");
    announce_and_load(&quota, Load { has_own_limit: false, limit_bytes: 1, ..load(1, 0) }).await;
    assert_eq!(reserve(&quota, 1, 1_000).await, counted(1, DEFAULT));
    let lower = quota.reserve(&tenant(), attempt(2), 1, 500).await.expect("answered");
    assert_eq!(lower, Reservation::Full { used_bytes: 1_000, limit_bytes: 500 });
}

async fn numbers_above_the_exact_range_of_lua_are_counted_exactly(url: &str) {
    let quota = quota(url, "c");
    let limit_bytes = (1 << 60) - 1;
    announce_and_load(&quota, Load { limit_bytes, ..load(1, limit_bytes - 1) }).await;
    assert_eq!(reserve(&quota, 1, 2).await, Reservation::Full { used_bytes: limit_bytes - 1, limit_bytes });
    assert_eq!(reserve(&quota, 1, 1).await, counted(1, limit_bytes));
    assert_eq!(reserve(&quota, 2, 1).await, Reservation::Full { used_bytes: limit_bytes, limit_bytes });
}

async fn catalogs_do_not_share_counters(url: &str) {
    let (ours, theirs) = (quota(url, "ours"), quota(url, "theirs"));
    announce_and_load(&theirs, load(7, 0)).await;
    assert_eq!(reserve(&ours, 1, 1).await, Reservation::Reload);
    assert_eq!(announce_and_load(&ours, load(1, 40)).await, LoadResult::Loaded { used_bytes_before: None });
    assert_eq!(reserve(&ours, 1, 60).await, counted(1, 100));
    assert_eq!(reserve(&theirs, 1, 1).await, Reservation::Reload);
}

/// Each keeps its counters. Without prefixes, the second load would make the first one invalid.
async fn installations_with_different_prefixes_do_not_touch_each_other(url: &str) {
    let (ours, theirs) =
        (quota(url, "ours").with_prefix("shop:"), quota(url, "theirs").with_prefix("shop-test:"));
    announce_and_load(&ours, load(1, 40)).await;
    announce_and_load(&theirs, load(7, 0)).await;
    assert_eq!(reserve(&ours, 1, 60).await, counted(1, 100));
    assert_eq!(reserve(&theirs, 1, 100).await, counted(7, 100));
    assert_eq!(reserve(&quota(url, "ours"), 2, 1).await, Reservation::Reload, "the keys without a prefix");
    let client = redis::Client::open(url).expect("a URL of Redis");
    let mut raw = client.get_multiplexed_async_connection().await.expect("a connection");
    for (key, used) in [("shop:", "100"), ("shop-test:", "100")] {
        let key = format!("{key}quota:tenant:{{%7Dhar{{bour%25}}:used");
        let found: String = redis::cmd("GET").arg(key).query_async(&mut raw).await.expect("read");
        assert_eq!(found, used);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_invalid_after_a_restart_or_a_flush() {
    let mut server = Redis::start().expect("a server");
    let url = server.url();
    let quota = quota(&url, "c");
    announce_and_load(&quota, load(3, 40)).await;
    server.snapshot().expect("saved");
    assert_eq!(reserve(&quota, 1, 60).await, counted(3, 100));
    let announced = quota.announce(&tenant(), "late").await.expect("announced");
    server.snapshot().expect("saved");
    server.kill().expect("killed");
    let away = quota.reserve(&tenant(), attempt(2), 1, DEFAULT).await.expect_err("the server is down");
    assert!(matches!(away, QuotaError::Unavailable(_)), "{away}");
    server.start_again().expect("started");
    // All keys exist, but other changes may have been lost since the snapshot.
    assert_eq!(reserve(&quota, 2, 1).await, Reservation::Reload);
    let late = quota.load(&tenant(), &announced.name, load(4, 0)).await.expect("answered");
    assert_eq!(late, LoadResult::Unannounced, "announced to another server process");
    announce_and_load(&quota, load(5, 40)).await;
    assert_eq!(reserve(&quota, 2, 1).await, counted(5, 100));
    server.wipe().expect("wiped");
    assert_eq!(reserve(&quota, 2, 1).await, Reservation::Reload);
    let quick = with_default_timeout(&url, "c");
    let _ = quick.check().await;
    server.pause().expect("paused");
    let away = quick.reserve(&tenant(), attempt(2), 1, DEFAULT).await.expect_err("no answer");
    assert!(matches!(away, QuotaError::Unavailable(_)), "{away}");
    server.resume().expect("resumed");
    quota.check().await.expect("back");
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_errors_have_a_one_line_message() {
    let check_error = async |url: &str| {
        let error = quota(url, "c").check().await.expect_err("unusable");
        let line = error.to_string();
        assert!(!line.contains('\n') && !line.contains("sesame"), "{line}");
        (matches!(error, QuotaError::Refused(_)), line)
    };
    let server =
        Redis::start_with(Options { password: Some("sesame"), ..Default::default() }).expect("a server");
    let address = format!("127.0.0.1:{}", server.port());
    let (refused, line) = check_error(&format!("redis://:wrong-sesame@{address}/0")).await;
    assert!(refused && line.contains("password"), "{line}");
    let (refused, line) = check_error(&format!("redis://{address}/0")).await;
    assert!(refused && line.contains("password"), "{line}");
    quota(&server.url(), "c").check().await.expect("the right password");

    server.cli(&["ACL", "SETUSER", "clerk", "on", ">sesame", "~quota:*", "+@all", "-info"]).expect("a user");
    let (refused, line) = check_error(&format!("redis://clerk:sesame@{address}/0")).await;
    assert!(refused && line.contains("permission"), "{line}");
    server.cli(&["ACL", "SETUSER", "clerk", "+info", "resetkeys", "~other:*"]).expect("a user");
    let (refused, line) = check_error(&format!("redis://clerk:sesame@{address}/0")).await;
    assert!(refused && line.contains("permission"), "{line}");

    let (refused, line) = check_error("redis://:sesame@127.0.0.1:1/0").await;
    assert!(!refused && line.contains("is unavailable"), "{line}");
    for url in ["redis://", "http://x", "redis://h:port"] {
        let error = RedisQuota::new(url, "c".into(), Faults::none()).err().expect("not a Redis URL");
        assert!(matches!(error, QuotaError::Refused(_)), "{error}");
    }
}

/// A former primary that becomes primary again is the same process with keys copied from its successor. Only its
/// replication id differs.
#[tokio::test(flavor = "multi_thread")]
async fn counters_are_invalid_after_a_failover_back() {
    let (first, second) = (Redis::start().expect("a server"), Redis::start().expect("another"));
    let quota = quota(&first.url(), "c");
    let port = |server: &Redis| server.port().to_string();
    let follow = |follower: &Redis, leader: &Redis| {
        follower.cli(&["REPLICAOF", "127.0.0.1", &port(leader)]).expect("answered");
        for _ in 0..600 {
            if follower.cli(&["INFO", "replication"]).expect("answered").contains("master_link_status:up") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("the replica does not connect to its primary");
    };
    follow(&second, &first);
    announce_and_load(&quota, load(3, 40)).await;
    first.cli(&["WAIT", "1", "0"]).expect("copied");
    second.cli(&["REPLICAOF", "NO", "ONE"]).expect("promoted");
    assert_eq!(reserve(&quota, 1, 60).await, counted(3, 100), "still the same primary");
    follow(&first, &second);
    first.cli(&["REPLICAOF", "NO", "ONE"]).expect("promoted");
    assert_eq!(reserve(&quota, 2, 60).await, Reservation::Reload, "the first reservation of 60 was lost");
}
