//! Service keys: created and revoked by the real program beside a server, used over HTTP.

use harness::postgres::Postgres;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::block_in_place;
use wharfinger_calls::faults::Faults;

use crate::cli::program::run_on;
use crate::test_app::{Answer, Client, Database, START, TestApp, TestEnv, on_each_database};

const MINUTE_MS: i64 = 60_000;

/// A key that `wharfinger key create` printed: the answer of `--json`.
fn create(env: &TestEnv, arguments: &[&str]) -> Value {
    let arguments = [&["key", "create", "--json"], arguments].concat();
    block_in_place(|| run_on(env, &arguments)).expect(0).json().remove(0)
}

fn text<'v>(value: &'v Value, member: &str) -> &'v str {
    value[member].as_str().unwrap_or_else(|| panic!("{member} in {value}"))
}

fn with<'s>(server: &'s TestApp, key: &Value) -> Client<'s> {
    Client { server, token: text(key, "key").to_owned() }
}

fn revoke(env: &TestEnv, key: &Value) {
    block_in_place(|| run_on(env, &["key", "revoke", text(key, "keyId")])).expect(0);
}

async fn send_event(client: &Client<'_>) -> Answer {
    client.post("/api/v2/events", json!({ "n": 1 })).await
}

async fn a_key_may_do_what_its_role_may(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("WHARFINGER_METRICS", "token")]);
    let server = env.start().await;
    server.app.start_ingest().await.expect("it takes events");
    let user = create(&env, &["--role", "user", "--tenant", "t", "--user", "u"]);
    let admin = create(&env, &["--role", "admin", "--tenant", "t"]);
    let operator = create(&env, &["--role", "operator", "--name", "the cron job"]);
    let worker = create(&env, &["--role", "worker"]);
    let ingest = create(&env, &["--role", "ingest", "--tenant", "t"]);
    let metrics = create(&env, &["--role", "metrics"]);

    let me = with(&server, &user);
    let file = me.enqueue("mine", b"harmless").await;
    let path = format!("/api/v2/files/{file}");
    assert_eq!(server.me().get(&path).await.expect(200)["fileName"], "mine", "the user of the key owns it");
    with(&server, &admin).get(&path).await.expect(200);
    let status = "/api/v1/maintenance/cleanup/status";
    with(&server, &admin).get(status).await.expect(200);
    me.get(status).await.expect_problem(403, "forbidden");
    let limit = |client: &Client<'_>| {
        client.request(Method::PUT, "/api/v2/tenants/t/quota").json(&json!({ "limit": 1000 }))
    };
    let by_operator = with(&server, &operator);
    by_operator.send(limit(&by_operator)).await.expect(200);
    let by_admin = with(&server, &admin);
    by_admin.send(limit(&by_admin)).await.expect_problem(403, "forbidden");
    // Who did it is in the history, by the id of the key where it has no user.
    let history = me.get(&format!("{path}/history")).await.expect(200);
    assert_eq!(history["events"][0]["actor"], "user:u");
    by_admin.delete(&format!("/api/v2/files/{}", me.enqueue("other", b"x").await)).await.expect(204);
    let actors = env.texts("SELECT actor FROM file_history WHERE to_status = 'deleted'").await;
    assert_eq!(actors, [format!("admin:key-{}", text(&admin, "keyId"))]);

    // A worker with a tenant leases only files of that tenant.
    let lease = json!({ "stages": ["scan"] });
    let narrow = create(&env, &["--role", "worker", "--tenant", "another"]);
    let leased = with(&server, &narrow).post("/api/v2/workers/lease", lease.clone()).await.expect(200);
    assert_eq!(leased["jobs"], json!([]));
    let leased = with(&server, &worker).post("/api/v2/workers/lease", lease.clone()).await.expect(200);
    assert_eq!(leased["jobs"][0]["fileId"], file.as_str());

    // The narrow roles make their own calls and no other.
    for (key, may_send, may_scrape) in [
        (&user, 202, 403),
        (&admin, 202, 403),
        (&operator, 202, 200),
        (&worker, 403, 403),
        (&ingest, 202, 403),
        (&metrics, 403, 200),
    ] {
        let client = with(&server, key);
        assert_eq!(send_event(&client).await.status, may_send, "{key}");
        assert_eq!(client.get("/metrics").await.status, may_scrape, "{key}");
    }
    for key in [&ingest, &metrics] {
        let client = with(&server, key);
        for path in
            ["/api/v2/files", "/api/v2/quota", "/api/v2/keys", "/api/v2/uploads/dashboard", "/api/v2/stream"]
        {
            client.get(path).await.expect_problem(403, "forbidden");
        }
        client.init("a", 1).await.expect_problem(403, "forbidden");
        client.post("/api/v2/batches", json!({ "files": [] })).await.expect_problem(403, "forbidden");
        client.post("/api/v2/workers/lease", lease.clone()).await.expect_problem(403, "forbidden");
        client.delete(&path).await.expect_problem(403, "forbidden");
    }
    assert!(me.file(&file).await["status"].is_string());
}

async fn a_list_of_keys_is_for_operators_and_has_no_secrets(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let first =
        create(&env, &["--role", "ingest", "--tenant", "t", "--name", "<b>events</b>", "--expires", "90d"]);
    let second = create(&env, &["--role", "metrics"]);
    revoke(&env, &second);
    let page = server.operator().get("/api/v2/keys?limit=1").await.expect(200);
    assert_eq!(
        (&page["keys"][0]["keyId"], page["keys"][0]["revokedAt"].is_string()),
        (&second["keyId"], true)
    );
    let next = text(&page, "nextCursor");
    let page = server.operator().get(&format!("/api/v2/keys?limit=1&cursor={next}")).await.expect(200);
    let mut listed = first.clone();
    listed.as_object_mut().expect("an object").remove("key");
    assert_eq!(page, json!({ "keys": [listed], "nextCursor": null }));
    for client in [server.me(), server.as_user("t", "boss", wharfinger::core::Role::Admin)] {
        client.get("/api/v2/keys").await.expect_problem(403, "forbidden");
    }
    // Nothing in the catalog or the list leads back to a key.
    let rows = env.texts("SELECT id || hash || COALESCE(name, '') FROM service_keys").await.concat();
    for key in [&first, &second] {
        let secret = text(key, "key").rsplit('_').next().expect("a secret");
        assert!(!rows.contains(secret) && !page.to_string().contains(secret));
    }
    let hashes = env.texts("SELECT hash FROM service_keys").await;
    assert!(hashes.iter().all(|hash| !page.to_string().contains(hash.as_str())));
}

async fn wrong_keys_are_refused_and_say_why(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let key = create(&env, &["--role", "operator", "--expires", "1h"]);
    let token = text(&key, "key").to_owned();
    with(&server, &key).get("/api/v2/keys").await.expect(200);
    let id = text(&key, "keyId");
    let other = create(&env, &["--role", "operator"]);
    let others_secret = text(&other, "key").rsplit('_').next().expect("a secret");
    for (wrong, why) in [
        ("whf_".to_owned(), "not complete"),
        (format!("whf_{id}"), "not complete"),
        (format!("whf_{id}_"), "not complete"),
        (token[..token.len() - 1].to_owned(), "not complete"),
        (format!("{token}0"), "not complete"),
        (token.to_uppercase().replacen("WHF", "whf", 1), "not complete"),
        (format!("whf_{id}_{}", "0".repeat(64)), "unknown"),
        (format!("whf_{id}_{others_secret}"), "unknown"),
        (format!("whf_{}_{others_secret}", "0".repeat(20)), "unknown"),
    ] {
        let client = Client { server: &server, token: wrong.clone() };
        let problem = client.get("/api/v2/keys").await.expect_problem(401, "unauthorized");
        assert!(text(&problem, "detail").contains(why), "{problem}");
        assert!(!problem.to_string().contains(others_secret) && !problem.to_string().contains(&token));
    }
    // Its end, by the server's clock.
    let end = chrono_ms(text(&key, "expiresAt"));
    env.advance(end - START - 1);
    with(&server, &key).get("/api/v2/keys").await.expect(200);
    env.advance(1);
    let problem = with(&server, &key).get("/api/v2/keys").await.expect_problem(401, "unauthorized");
    assert!(text(&problem, "detail").contains("expired"), "{problem}");
    with(&server, &other).get("/api/v2/keys").await.expect(200);
}

fn chrono_ms(time: &str) -> i64 {
    chrono::DateTime::parse_from_rfc3339(time).expect("RFC 3339").timestamp_millis()
}

/// Two processes on PostgreSQL; SQLite has one.
async fn a_revoked_key_stops_working_within_a_minute(database: Database) {
    let env = TestEnv::new(database);
    let servers = match database {
        Database::Sqlite => vec![env.start().await],
        _ => vec![env.start().await, env.start().await],
    };
    let (kept, key) = (create(&env, &["--role", "operator"]), create(&env, &["--role", "operator"]));
    for server in &servers {
        for key in [&kept, &key] {
            with(server, key).get("/api/v2/keys").await.expect(200);
        }
    }
    revoke(&env, &key);
    env.advance(MINUTE_MS);
    for server in &servers {
        let problem = with(server, &key).get("/api/v2/keys").await.expect_problem(401, "unauthorized");
        assert!(text(&problem, "detail").contains("revoked"), "{problem}");
        with(server, &kept).get("/api/v2/keys").await.expect(200);
    }
    // A key that was removed by hand is unknown.
    env.execute("DELETE FROM service_keys").await;
    env.advance(MINUTE_MS);
    for server in &servers {
        with(server, &kept).get("/api/v2/keys").await.expect_problem(401, "unauthorized");
    }
}

async fn the_last_use_is_written_beside_the_requests(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let key = create(&env, &["--role", "user", "--tenant", "t", "--user", "u"]);
    let last_use = async || {
        let keys = server.operator().get("/api/v2/keys").await.expect(200);
        keys["keys"][0]["lastUsedAt"].as_str().map(|at| chrono_ms(at) - START)
    };
    let me = with(&server, &key);
    me.get("/api/v2/quota").await.expect(200);
    assert_eq!(last_use().await, None, "no request writes");
    server.settle().await;
    assert_eq!(last_use().await, Some(0));
    // Many uses within a minute are one write.
    for _ in 0..5 {
        env.advance(MINUTE_MS / 5);
        me.get("/api/v2/quota").await.expect(200);
        server.settle().await;
        assert_eq!(last_use().await, Some(0));
    }
    env.advance(MINUTE_MS);
    server.settle().await;
    assert_eq!(last_use().await, Some(MINUTE_MS), "the last of them, although none came after it");
    // A refused call is no use.
    env.advance(10 * MINUTE_MS);
    let wrong = format!("whf_{}_{}", text(&key, "keyId"), "0".repeat(64));
    Client { server: &server, token: wrong }.get("/api/v2/quota").await.expect_problem(401, "unauthorized");
    server.settle().await;
    assert_eq!(last_use().await, Some(MINUTE_MS));
}

/// A stranger can invent as many keys as it likes.
async fn unknown_keys_cause_few_queries(database: Database) {
    let env = TestEnv::new(database);
    let faults = Faults::counting();
    let server = env.start_with(faults.clone()).await;
    let key = create(&env, &["--role", "operator"]);
    with(&server, &key).get("/api/v2/quota").await.expect(200);
    let knock = async |id: u64| {
        let token = format!("whf_{id:020x}_{}", "5".repeat(64));
        Client { server: &server, token }.get("/api/v2/keys").await.expect_problem(401, "unauthorized");
    };
    let before = faults.calls();
    for _ in 0..100 {
        knock(1).await;
    }
    let same = faults.calls() - before;
    assert!(same <= 4, "one id: {same} calls");
    let before = faults.calls();
    for batch in 0..20 {
        let knocks: Vec<_> = (0..20).map(|n| knock(1_000 + 20 * batch + n)).collect();
        futures::future::join_all(knocks).await;
    }
    let many = faults.calls() - before;
    assert!(many <= 40, "400 ids: {many} calls");
    // Known keys work meanwhile, and a new one soon after.
    with(&server, &key).get("/api/v2/quota").await.expect(200);
    let new = create(&env, &["--role", "operator"]);
    env.advance(30_000);
    with(&server, &new).get("/api/v2/quota").await.expect(200);
}

/// The catalog is away: what is known goes on, what is not known is no reason to send a client away.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_catalog_is_away_the_last_known_keys_stay_valid() {
    let mut postgres = block_in_place(Postgres::start).expect("a server of its own");
    let url = postgres.create_database();
    let secret = ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more");
    let env = TestEnv::with(
        Database::Sqlite,
        &[("WHARFINGER_DATABASE_URL", &url), secret, ("WHARFINGER_METRICS", "token")],
    );
    let keys = [
        create(&env, &["--role", "ingest", "--tenant", "t"]),
        create(&env, &["--role", "ingest", "--tenant", "t"]),
        create(&env, &["--role", "metrics"]),
    ];
    let server = env.start_as("ingest").await;
    server.app.start_ingest().await.expect("it takes events");
    // A process reads all keys at its start: also the second, which was never used here.
    server.app.service_keys.refresh().await;
    send_event(&with(&server, &keys[0])).await.expect(202);
    let refused = create(&env, &["--role", "ingest", "--tenant", "t"]);
    revoke(&env, &refused);
    env.advance(MINUTE_MS);
    send_event(&with(&server, &refused)).await.expect_problem(401, "unauthorized");

    block_in_place(|| postgres.kill()).expect("killed");
    for _ in 0..3 {
        env.advance(10 * MINUTE_MS);
        for key in &keys[..2] {
            send_event(&with(&server, key)).await.expect(202);
        }
        assert_eq!(with(&server, &keys[2]).get("/metrics").await.status, 200);
        send_event(&with(&server, &refused)).await.expect_problem(401, "unauthorized");
    }
    let unknown = format!("whf_{}_{}", "7".repeat(20), "7".repeat(64));
    let unknown = Client { server: &server, token: unknown };
    send_event(&unknown).await.expect_problem(503, "unavailable");

    block_in_place(|| postgres.start_again()).expect("started again");
    revoke(&env, &keys[0]);
    env.advance(MINUTE_MS);
    send_event(&with(&server, &keys[0])).await.expect_problem(401, "unauthorized");
    send_event(&with(&server, &keys[1])).await.expect(202);
    env.advance(MINUTE_MS);
    send_event(&unknown).await.expect_problem(401, "unauthorized");
}

/// A read that never ends delays a request by a few seconds at most.
#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_that_does_not_answer_is_not_waited_for() {
    let env = TestEnv::new(Database::Sqlite);
    let key = create(&env, &["--role", "user", "--tenant", "t", "--user", "u"]);
    // All keys, and then this key alone.
    let server = env.start_with(Faults::block_first_at("query", 2)).await;
    // The process has read no key yet, so it cannot say that this one is wrong.
    with(&server, &key).get("/api/v2/session").await.expect_problem(503, "unavailable");
    with(&server, &key).get("/api/v2/session").await.expect(200);
}

on_each_database!(
    a_key_may_do_what_its_role_may,
    a_list_of_keys_is_for_operators_and_has_no_secrets,
    wrong_keys_are_refused_and_say_why,
    a_revoked_key_stops_working_within_a_minute,
    the_last_use_is_written_beside_the_requests,
    unknown_keys_cause_few_queries,
);
