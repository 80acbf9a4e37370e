//! Quotas in a working Redis give the same results as without Redis.

use std::time::{Duration, Instant};

use serde_json::json;
use wharfinger::core::Role;

use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};
use crate::uploads::{GRACE_MS, WINDOW_MS, id};

fn env(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
    TestEnv::with_redis(database, &harness::redis::shared().own_database(), settings)
}

async fn of_200_parallel_uploads_exactly_the_100_that_fit_succeed(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "1000")]);
    let server = env.start().await;
    let me = server.me();
    let names: Vec<String> = (0..200).map(|n| format!("f{n}")).collect();
    let answers = futures::future::join_all(names.iter().map(|name| me.init(name, 10))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 100);
    for answer in answers.into_iter().filter(|answer| answer.status != 201) {
        let problem = answer.expect_problem(403, "quota_exceeded");
        assert_eq!((&problem["limit"], &problem["requested"]), (&json!(1_000), &json!(10)));
    }
    let quota = me.get("/api/v2/quota").await.expect(200);
    assert_eq!(quota, json!({ "tenant": "t", "used": 1_000, "limit": 1_000, "reserved": 1_000 }));
    let owned_by_redis = env.scalar("SELECT COUNT(*) FROM quotas WHERE owner = 'redis'").await;
    assert_eq!(owned_by_redis, 1, "Redis has admitted the uploads");

    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    oracle::redis_is_exact(&server).await;
    me.init("all of it", 1_000).await.expect(201);
    me.init("one more", 1).await.expect_problem(403, "quota_exceeded");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_repeated_idempotency_key_is_answered_while_the_quota_is_full(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "10")]);
    let server = env.start().await;
    let me = server.me();
    let with_key = async |size: u64| {
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&json!({ "fileName": "f", "size": size }))).await
    };
    let first = with_key(10).await.expect(201);
    assert_eq!(with_key(10).await.expect(201)["fileId"], first["fileId"]);
    with_key(9).await.expect_problem(422, "idempotency_mismatch");
    me.init("another", 1).await.expect_problem(403, "quota_exceeded");
    oracle::redis_is_exact(&server).await;
}

/// Two installations with a tenant of the same name share a database of Redis. Without prefixes, each use by one would
/// make the counters of the other invalid.
async fn installations_with_different_prefixes_share_a_redis(database: Database) {
    let redis = harness::redis::shared().own_database();
    let shop = TestEnv::with_redis(database, &redis, &[("REDIS_PREFIX", "shop:")]);
    let lab = TestEnv::with_redis(database, &redis, &[("REDIS_PREFIX", "lab:")]);
    let (of_shop, of_lab) = (shop.start().await, lab.start().await);
    let epochs = async || {
        let epoch = "SELECT epoch FROM quotas WHERE owner = 'redis'";
        (shop.scalar(epoch).await, lab.scalar(epoch).await)
    };
    of_shop.me().init("first", 10).await.expect(201);
    of_lab.me().init("first", 10).await.expect(201);
    let before = epochs().await;
    for n in 0..3 {
        of_shop.me().init(&format!("f{n}"), 100).await.expect(201);
        of_lab.me().init(&format!("f{n}"), 1_000).await.expect(201);
    }
    assert_eq!(epochs().await, before, "no count was rebuilt");
    assert_eq!((of_shop.me().used().await, of_lab.me().used().await), (310, 3_010));
    let client = redis::Client::open(redis.as_str()).expect("a URL of Redis");
    let mut raw = client.get_multiplexed_async_connection().await.expect("a connection");
    for (key, used) in [("shop:quota:tenant:{t}:used", "310"), ("lab:quota:tenant:{t}:used", "3010")] {
        let found: String = redis::cmd("GET").arg(key).query_async(&mut raw).await.expect("read");
        assert_eq!(found, used, "{key}");
    }
    of_shop.me().get("/api/v2/uploads/dashboard").await.expect(200);
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut raw).await.expect("read");
    for name in &names {
        assert!(name.starts_with("shop:") || name.starts_with("lab:"), "{names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("shop:wharfinger:cache:")), "{names:?}");
}

async fn a_new_limit_applies_at_once(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    me.upload("ten", b"ten bytes!").await;
    for (limit, fits) in [(10, false), (11, true), (5, false), (0, false), (100, true)] {
        operator.put("/api/v2/tenants/t/quota", json!({ "limit": limit })).await.expect(200);
        let answer = me.init("one", 1).await;
        if fits {
            let grant = answer.expect(201);
            me.delete(&format!("/api/v2/files/{}", id(&grant))).await.expect(204);
            server.settle().await;
        } else {
            assert_eq!(answer.expect_problem(403, "quota_exceeded")["limit"], limit);
        }
    }
    oracle::redis_is_exact(&server).await;
    oracle::all_is_healed(&env, &server).await;
}

async fn users_share_the_quota_of_their_tenant_only(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "10"), ("UNCONFIRMED_LIMIT_PERCENT", "60")]);
    let server = env.start().await;
    let colleague = server.as_user("t", "v", Role::User);
    let other_tenant = server.as_user("}other{", "u", Role::User);
    server.me().upload("a", b"six by").await;
    colleague.init("b", 5).await.expect_problem(403, "quota_exceeded");
    other_tenant.init("too much at once", 7).await.expect_problem(403, "unconfirmed_limit");
    colleague.upload("b", b"four").await;
    other_tenant.upload("c", b"six by").await;
    assert_eq!((colleague.used().await, other_tenant.used().await), (10, 6));
    oracle::redis_is_exact(&server).await;
    oracle::all_is_healed(&env, &server).await;
}

async fn two_processes_fill_one_quota_exactly(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "1000")]);
    let (one, other) = (env.start().await, env.start().await);
    let (client, other_client) = (one.me(), other.me());
    let names: Vec<String> = (0..150).map(|n| format!("f{n}")).collect();
    let both = names
        .iter()
        .enumerate()
        .map(|(n, name)| if n % 2 == 0 { &client } else { &other_client }.init(name, 10));
    let answers = futures::future::join_all(both).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 100);
    assert!(answers.iter().all(|answer| [201, 403].contains(&answer.status.as_u16())));
    oracle::redis_is_exact(&one).await;
}

/// A process without Redis in its settings takes over the quota, and a process with Redis takes it back.
async fn the_owner_of_the_quota_follows_the_settings(database: Database) {
    let redis = harness::redis::shared().own_database();
    let env = TestEnv::with_redis(database, &redis, &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    let plain = env.without("WHARFINGER_QUOTA_URL");
    let server = env.start().await;
    server.me().upload("a", b"ten bytes!").await;
    // At the same time, another process runs without Redis.
    let other = plain.start().await;
    other.me().upload("b", b"ten bytes!").await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM quotas WHERE owner = 'redis'").await, 0);
    oracle::catalog_is_sound(&other).await;
    env.advance(20_000);
    server.me().upload("c", b"ten bytes!").await;
    for client in [server.me(), other.me()] {
        client.init("full", 1).await.expect_problem(403, "quota_exceeded");
        assert_eq!(client.used().await, 30);
    }
    other.settle().await;
    oracle::all_is_healed(&env, &other).await;
}

/// The minimum time that a refused request waits for the answer of another request with its key.
const WAIT_FOR_SAME_KEY: Duration = Duration::from_millis(230);

/// Six equal requests arrive together, and the quota has space for one file.
async fn parallel_requests_with_one_key_create_one_file(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "10")]);
    let server = env.start().await;
    let me = server.me();
    for round in 0..5 {
        let requests = (0..6).map(async |_| {
            let started = Instant::now();
            loop {
                let sent = Instant::now();
                let request = me.request(reqwest::Method::POST, "/api/v2/files/init");
                let request = request.header("idempotency-key", format!("key-{round}"));
                let answer = me.send(request.json(&json!({ "fileName": "f", "size": 10 }))).await;
                // While the first request is not committed, the quota is full and there is no answer to repeat.
                if answer.status != 403 || started.elapsed() > Duration::from_secs(60) {
                    return answer.expect(201);
                }
                assert!(sent.elapsed() >= WAIT_FOR_SAME_KEY, "the request did not wait for the other one");
            }
        });
        let grants = futures::future::join_all(requests).await;
        let file = id(&grants[0]);
        assert!(grants.iter().all(|grant| id(grant) == file));
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
        server.settle().await;
    }
    oracle::redis_is_exact(&server).await;
}

/// After a restore, the counters in Redis are newer than the catalog and must not be used.
async fn a_restored_catalog_is_counted_again(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    let server = env.start().await;
    let me = server.me();
    me.upload("a", b"ten bytes!").await;
    me.upload("b", b"ten bytes!").await;
    // Lowers the epoch below that of Redis, like a restored backup.
    env.execute("UPDATE quotas SET epoch = epoch - 1").await;
    me.upload("c", b"ten bytes!").await;
    me.init("full", 1).await.expect_problem(403, "quota_exceeded");
    oracle::redis_is_exact(&server).await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    parallel_requests_with_one_key_create_one_file,
    a_restored_catalog_is_counted_again,
    of_200_parallel_uploads_exactly_the_100_that_fit_succeed,
    a_repeated_idempotency_key_is_answered_while_the_quota_is_full,
    a_new_limit_applies_at_once,
    installations_with_different_prefixes_share_a_redis,
    users_share_the_quota_of_their_tenant_only,
    two_processes_fill_one_quota_exactly,
    the_owner_of_the_quota_follows_the_settings,
);
