//! What the scripts on Redis promise, each on one server and on a cluster.

use std::time::Duration;

use harness::redis::{Options, Redis, shared};
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_engines::redis_quota::{Load, Loaded, QuotaError, RedisQuota, Refunded, Reservation, keys};
use wharfinger_lifecycle::id::TenantId;

const DEFAULT: u64 = 1_000;

fn tenant() -> TenantId {
    // A closing brace of its own must not end the part that picks the slot.
    TenantId::new("}har{bour%").expect("a tenant")
}

fn quota(url: &str, catalog: &str) -> RedisQuota {
    hasty(url, catalog).with_patience(Duration::from_secs(60))
}

/// As it is by default.
fn hasty(url: &str, catalog: &str) -> RedisQuota {
    RedisQuota::new(url, catalog.into(), Faults::none()).expect("a URL of Redis")
}

fn attempt(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn load(epoch: i64, used_bytes: u64) -> Load {
    Load { epoch, used_bytes, limit_bytes: 100, has_own_limit: true }
}

/// Announces and loads at once, as if nothing ever came in between.
async fn begin(quota: &RedisQuota, load: Load) -> Loaded {
    let announced = quota.announce(&tenant(), "l").await.expect("announced");
    quota.load(&tenant(), &announced.name, load).await.expect("loaded")
}

async fn reserve(quota: &RedisQuota, n: u128, size: u64) -> Reservation {
    quota.reserve(&tenant(), attempt(n), size, DEFAULT).await.expect("answered")
}

fn counted(epoch: i64, limit_bytes: u64) -> Reservation {
    Reservation::Counted { epoch, limit_bytes }
}

macro_rules! on_one_and_on_a_cluster {
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

on_one_and_on_a_cluster! {
    what_was_not_loaded_is_not_guessed
    a_file_is_counted_once_and_no_byte_above_the_limit
    a_refund_is_applied_once_and_only_to_what_it_was_charged_under
    a_load_is_taken_once_where_it_was_announced_and_never_over_a_newer_one
    any_missing_key_is_a_loss
    the_default_limit_is_whoever_asks
    figures_beyond_what_lua_counts_exactly
    one_catalog_does_not_count_by_another
}

async fn what_was_not_loaded_is_not_guessed(url: &str) {
    let quota = quota(url, "c");
    quota.check().await.expect("usable");
    assert_eq!(reserve(&quota, 1, 1).await, Reservation::Reload);
    let refunded = quota.refund(&tenant(), "line", 1, 1).await.expect("answered");
    assert_eq!(refunded, Refunded::Reload);
    quota.release(&tenant(), attempt(1)).await.expect("answered");
    quota.settle(&tenant(), &[attempt(1)]).await.expect("answered");
    assert_eq!(quota.announce(&tenant(), "l").await.expect("announced").sound_epoch, None);
}

async fn a_file_is_counted_once_and_no_byte_above_the_limit(url: &str) {
    let quota = quota(url, "c");
    assert_eq!(begin(&quota, load(3, 40)).await, Loaded::Yes { used_bytes_before: None });
    assert_eq!(reserve(&quota, 1, 50).await, counted(3, 100));
    assert_eq!(reserve(&quota, 1, 50).await, counted(3, 100), "the same again");
    assert_eq!(reserve(&quota, 2, 11).await, Reservation::Full { used_bytes: 90, limit_bytes: 100 });
    assert_eq!(reserve(&quota, 2, 10).await, counted(3, 100));
    assert_eq!(reserve(&quota, 3, 0).await, counted(3, 100), "nothing fits where nothing is left");
    for _ in 0..2 {
        quota.release(&tenant(), attempt(2)).await.expect("released");
    }
    assert_eq!(reserve(&quota, 4, 11).await, Reservation::Full { used_bytes: 90, limit_bytes: 100 });
    // Who is in the catalog is not taken back.
    quota.settle(&tenant(), &[attempt(1)]).await.expect("settled");
    quota.release(&tenant(), attempt(1)).await.expect("answered");
    assert_eq!(reserve(&quota, 4, 11).await, Reservation::Full { used_bytes: 90, limit_bytes: 100 });
}

async fn a_refund_is_applied_once_and_only_to_what_it_was_charged_under(url: &str) {
    let quota = quota(url, "c");
    begin(&quota, load(3, 40)).await;
    let refund =
        async |line: &str, bytes, epoch| quota.refund(&tenant(), line, bytes, epoch).await.expect("answered");
    assert!(matches!(refund("a", 10, 3).await, Refunded::Done { remembered: 1.. }));
    assert_eq!(refund("a", 10, 3).await, Refunded::Done { remembered: 0 });
    assert_eq!(refund("b", 10, 2).await, Refunded::Done { remembered: 0 }, "the load contained it");
    assert_eq!(refund("c", 10, 4).await, Refunded::Later);
    assert_eq!(reserve(&quota, 1, 71).await, Reservation::Full { used_bytes: 30, limit_bytes: 100 });
    // More than was ever counted: nothing there can be counted on.
    assert_eq!(refund("d", 31, 3).await, Refunded::Reload);
    assert_eq!(reserve(&quota, 1, 1).await, Reservation::Reload);
}

async fn a_load_is_taken_once_where_it_was_announced_and_never_over_a_newer_one(url: &str) {
    let quota = quota(url, "c");
    let try_load = async |name: &str, epoch, used| {
        quota.load(&tenant(), name, load(epoch, used)).await.expect("answered")
    };
    let announce = async || quota.announce(&tenant(), "x").await.expect("announced").name;
    assert_eq!(try_load("x", 1, 0).await, Loaded::Unannounced);
    // The same words announced again are another load's.
    let (x, y, z) = (&announce().await, &announce().await, &announce().await);
    assert!(x != y && y != z);
    assert_eq!(try_load(y, 2, 20).await, Loaded::Yes { used_bytes_before: None });
    assert_eq!(try_load(y, 3, 0).await, Loaded::Unannounced, "once");
    assert_eq!(try_load(x, 1, 10).await, Loaded::Newer { epoch: 2 });
    assert_eq!(try_load(z, 3, 30).await, Loaded::Yes { used_bytes_before: Some(20) });
    let announced = quota.announce(&tenant(), "v").await.expect("announced");
    assert_eq!(announced.sound_epoch, Some(3));
    assert_eq!(try_load(&announced.name, 3, 0).await, Loaded::Newer { epoch: 3 });
    assert_eq!(reserve(&quota, 1, 70).await, counted(3, 100));
    // What was reserved and refunded before it is none of the new count's.
    assert_eq!(try_load(&announce().await, 4, 0).await, Loaded::Yes { used_bytes_before: Some(100) });
    quota.release(&tenant(), attempt(1)).await.expect("answered");
    assert_eq!(reserve(&quota, 1, 100).await, counted(4, 100));
}

async fn any_missing_key_is_a_loss(url: &str) {
    let quota = quota(url, "c");
    let client = redis::Client::open(url).expect("a URL of Redis");
    let mut raw = client.get_multiplexed_async_connection().await.expect("a connection");
    for key in &keys(&tenant())[..5] {
        begin(&quota, load(3, 40)).await;
        assert_eq!(reserve(&quota, 1, 1).await, counted(3, 100));
        let gone: u64 = redis::cmd("DEL").arg(key).query_async(&mut raw).await.expect("deleted");
        assert_eq!(gone, 1, "{key} was there");
        assert_eq!(reserve(&quota, 2, 1).await, Reservation::Reload, "without {key}");
    }
    let used: String = {
        begin(&quota, load(3, 40)).await;
        redis::cmd("GET").arg("quota:tenant:{%7Dhar{bour%25}:used").query_async(&mut raw).await.expect("read")
    };
    assert_eq!(used, "40", "people can read it");
}

async fn the_default_limit_is_whoever_asks(url: &str) {
    let quota = quota(url, "c");
    begin(&quota, Load { has_own_limit: false, limit_bytes: 1, ..load(1, 0) }).await;
    assert_eq!(reserve(&quota, 1, 1_000).await, counted(1, DEFAULT));
    let lower = quota.reserve(&tenant(), attempt(2), 1, 500).await.expect("answered");
    assert_eq!(lower, Reservation::Full { used_bytes: 1_000, limit_bytes: 500 });
}

async fn figures_beyond_what_lua_counts_exactly(url: &str) {
    let quota = quota(url, "c");
    let limit_bytes = (1 << 60) - 1;
    begin(&quota, Load { limit_bytes, ..load(1, limit_bytes - 1) }).await;
    assert_eq!(reserve(&quota, 1, 2).await, Reservation::Full { used_bytes: limit_bytes - 1, limit_bytes });
    assert_eq!(reserve(&quota, 1, 1).await, counted(1, limit_bytes));
    assert_eq!(reserve(&quota, 2, 1).await, Reservation::Full { used_bytes: limit_bytes, limit_bytes });
}

async fn one_catalog_does_not_count_by_another(url: &str) {
    let (ours, theirs) = (quota(url, "ours"), quota(url, "theirs"));
    begin(&theirs, load(7, 0)).await;
    assert_eq!(reserve(&ours, 1, 1).await, Reservation::Reload);
    assert_eq!(begin(&ours, load(1, 40)).await, Loaded::Yes { used_bytes_before: None });
    assert_eq!(reserve(&ours, 1, 60).await, counted(1, 100));
    assert_eq!(reserve(&theirs, 1, 1).await, Reservation::Reload);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_the_one_it_was_has_lost_count() {
    let mut server = Redis::start().expect("a server");
    let url = server.url();
    let quota = quota(&url, "c");
    begin(&quota, load(3, 40)).await;
    server.snapshot().expect("saved");
    assert_eq!(reserve(&quota, 1, 60).await, counted(3, 100));
    let announced = quota.announce(&tenant(), "late").await.expect("announced");
    server.snapshot().expect("saved");
    server.kill().expect("killed");
    let away = quota.reserve(&tenant(), attempt(2), 1, DEFAULT).await.expect_err("nobody there");
    assert!(matches!(away, QuotaError::Away(_)), "{away}");
    server.start_again().expect("started");
    // Everything is there as it was, and must not be counted on: others may have come since.
    assert_eq!(reserve(&quota, 2, 1).await, Reservation::Reload);
    let late = quota.load(&tenant(), &announced.name, load(4, 0)).await.expect("answered");
    assert_eq!(late, Loaded::Unannounced, "announced to another");
    begin(&quota, load(5, 40)).await;
    assert_eq!(reserve(&quota, 2, 1).await, counted(5, 100));
    server.wipe().expect("wiped");
    assert_eq!(reserve(&quota, 2, 1).await, Reservation::Reload);
    let hasty = hasty(&url, "c");
    let _ = hasty.check().await;
    server.pause().expect("paused");
    let away = hasty.reserve(&tenant(), attempt(2), 1, DEFAULT).await.expect_err("no answer");
    assert!(matches!(away, QuotaError::Away(_)), "{away}");
    server.resume().expect("resumed");
    quota.check().await.expect("back");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_has_to_mend_is_said_in_a_line() {
    let says = async |url: &str| {
        let error = quota(url, "c").check().await.expect_err("unusable");
        let line = error.to_string();
        assert!(!line.contains('\n') && !line.contains("sesame"), "{line}");
        (matches!(error, QuotaError::Refused(_)), line)
    };
    let server =
        Redis::start_with(Options { password: Some("sesame"), ..Default::default() }).expect("a server");
    let address = format!("127.0.0.1:{}", server.port());
    let (refused, line) = says(&format!("redis://:wrong-sesame@{address}/0")).await;
    assert!(refused && line.contains("password"), "{line}");
    let (refused, line) = says(&format!("redis://{address}/0")).await;
    assert!(refused && line.contains("password"), "{line}");
    quota(&server.url(), "c").check().await.expect("the right password");

    server.cli(&["ACL", "SETUSER", "clerk", "on", ">sesame", "~quota:*", "+@all", "-info"]).expect("a user");
    let (refused, line) = says(&format!("redis://clerk:sesame@{address}/0")).await;
    assert!(refused && line.contains("right"), "{line}");
    server.cli(&["ACL", "SETUSER", "clerk", "+info", "resetkeys", "~other:*"]).expect("a user");
    let (refused, line) = says(&format!("redis://clerk:sesame@{address}/0")).await;
    assert!(refused && line.contains("right"), "{line}");

    let (refused, line) = says("redis://:sesame@127.0.0.1:1/0").await;
    assert!(!refused && line.contains("does not answer"), "{line}");
    for url in ["redis://", "http://x", "redis://h:port"] {
        let error = RedisQuota::new(url, "c".into(), Faults::none()).err().expect("no URL of Redis");
        assert!(matches!(error, QuotaError::Refused(_)), "{error}");
    }
}

/// A primary that was a replica for a while is the same process, and holds what its successor had copied: the id of
/// its reign tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_deposed_and_came_back_has_lost_count() {
    let (first, second) = (Redis::start().expect("a server"), Redis::start().expect("another"));
    let quota = quota(&first.url(), "c");
    let port = |server: &Redis| server.port().to_string();
    let follow = |follower: &Redis, leader: &Redis| {
        follower.cli(&["REPLICAOF", "127.0.0.1", &port(leader)]).expect("told");
        for _ in 0..600 {
            if follower.cli(&["INFO", "replication"]).expect("told").contains("master_link_status:up") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("it does not follow");
    };
    follow(&second, &first);
    begin(&quota, load(3, 40)).await;
    first.cli(&["WAIT", "1", "0"]).expect("copied");
    second.cli(&["REPLICAOF", "NO", "ONE"]).expect("promoted");
    assert_eq!(reserve(&quota, 1, 60).await, counted(3, 100), "as long as it reigns");
    follow(&first, &second);
    first.cli(&["REPLICAOF", "NO", "ONE"]).expect("promoted");
    assert_eq!(reserve(&quota, 2, 60).await, Reservation::Reload, "that the first 60 came is forgotten");
}
