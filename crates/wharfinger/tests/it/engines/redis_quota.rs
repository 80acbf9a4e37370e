//! Quotas on Redis while Redis is well: the same promises as without it.

use std::time::{Duration, Instant};

use serde_json::json;
use wharfinger::core::Role;

use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};
use crate::uploads::{GRACE_MS, WINDOW_MS, id};

fn env(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
    TestEnv::with_redis(database, &harness::redis::shared().own_database(), settings)
}

async fn of_two_hundred_at_once_exactly_the_hundred_that_fit_succeed(database: Database) {
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
    let at_redis = env.scalar("SELECT COUNT(*) FROM quotas WHERE owner = 'redis'").await;
    assert_eq!(at_redis, 1, "it was Redis that let them in");

    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    oracle::redis_is_exact(&server).await;
    me.init("all of it", 1_000).await.expect(201);
    me.init("one more", 1).await.expect_problem(403, "quota_exceeded");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_key_is_repeated_where_nothing_more_fits(database: Database) {
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

async fn a_limit_counts_from_the_moment_it_is_set(database: Database) {
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

async fn tenants_share_nothing_and_users_their_tenants_quota(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "10"), ("UNCONFIRMED_LIMIT_PERCENT", "60")]);
    let server = env.start().await;
    let colleague = server.as_user("t", "v", Role::User);
    let stranger = server.as_user("}other{", "u", Role::User);
    server.me().upload("a", b"six by").await;
    colleague.init("b", 5).await.expect_problem(403, "quota_exceeded");
    stranger.init("too much at once", 7).await.expect_problem(403, "unconfirmed_limit");
    colleague.upload("b", b"four").await;
    stranger.upload("c", b"six by").await;
    assert_eq!((colleague.used().await, stranger.used().await), (10, 6));
    oracle::redis_is_exact(&server).await;
    oracle::all_is_healed(&env, &server).await;
}

/// Two processes: what one lets in the other counts.
async fn two_processes_fill_one_quota_exactly(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "1000")]);
    let (one, other) = (env.start().await, env.start().await);
    let (here, there) = (one.me(), other.me());
    let names: Vec<String> = (0..150).map(|n| format!("f{n}")).collect();
    let both =
        names.iter().enumerate().map(|(n, name)| if n % 2 == 0 { &here } else { &there }.init(name, 10));
    let answers = futures::future::join_all(both).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 100);
    assert!(answers.iter().all(|answer| [201, 403].contains(&answer.status.as_u16())));
    oracle::redis_is_exact(&one).await;
}

/// Settings that change while files are there: whoever knows no Redis takes the gate back, and the other way round.
async fn redis_comes_and_goes_with_the_settings(database: Database) {
    let redis = harness::redis::shared().own_database();
    let env = TestEnv::with_redis(database, &redis, &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    let plain = env.without("WHARFINGER_QUOTA_URL");
    let server = env.start().await;
    server.me().upload("a", b"ten bytes!").await;
    // One that is still of the old mind, at the same time.
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

/// How long one that is refused has waited for the answer to another with its key.
const LOOKED_FOR_A_TWIN: Duration = Duration::from_millis(230);

/// The same request at the same time, with room for one: one file, whoever asks.
async fn twins_with_one_key_get_one_answer(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "10")]);
    let server = env.start().await;
    let me = server.me();
    for round in 0..5 {
        let twins = (0..6).map(async |_| {
            let started = Instant::now();
            loop {
                let asked = Instant::now();
                let request = me.request(reqwest::Method::POST, "/api/v2/files/init");
                let request = request.header("idempotency-key", format!("twins-{round}"));
                let answer = me.send(request.json(&json!({ "fileName": "f", "size": 10 }))).await;
                // Where the first takes long to be written down, there is no room yet, and no answer to repeat.
                if answer.status != 403 || started.elapsed() > Duration::from_secs(60) {
                    return answer.expect(201);
                }
                assert!(asked.elapsed() >= LOOKED_FOR_A_TWIN, "nobody looked whether there is one");
            }
        });
        let grants = futures::future::join_all(twins).await;
        let file = id(&grants[0]);
        assert!(grants.iter().all(|grant| id(grant) == file));
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
        server.settle().await;
    }
    oracle::redis_is_exact(&server).await;
}

/// A catalog from a backup: what Redis counted since is not believed, whatever the epochs say.
async fn a_catalog_from_a_backup_is_counted_anew(database: Database) {
    let env = env(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "30")]);
    let server = env.start().await;
    let me = server.me();
    me.upload("a", b"ten bytes!").await;
    me.upload("b", b"ten bytes!").await;
    // The epoch goes back behind what Redis has, as it does in a backup.
    env.execute("UPDATE quotas SET epoch = epoch - 1").await;
    me.upload("c", b"ten bytes!").await;
    me.init("full", 1).await.expect_problem(403, "quota_exceeded");
    oracle::redis_is_exact(&server).await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    twins_with_one_key_get_one_answer,
    a_catalog_from_a_backup_is_counted_anew,
    of_two_hundred_at_once_exactly_the_hundred_that_fit_succeed,
    a_key_is_repeated_where_nothing_more_fits,
    a_limit_counts_from_the_moment_it_is_set,
    tenants_share_nothing_and_users_their_tenants_quota,
    two_processes_fill_one_quota_exactly,
    redis_comes_and_goes_with_the_settings,
);
