//! Idempotency keys: a repeated init request creates one file with one charge.

use reqwest::Method;
use serde_json::{Value, json};

use super::{GRACE_MS, WINDOW_MS, id};
use crate::oracle;
use crate::test_app::{Answer, Client, Database, TestEnv, on_each_database, patiently};
use wharfinger::core::Role;

async fn init(me: &Client<'_>, key: &str, body: Value) -> Answer {
    let request = me.request(Method::POST, "/api/v2/files/init").header("idempotency-key", key);
    me.send(request.json(&body)).await
}

fn body() -> Value {
    json!({ "fileName": "cargo", "size": 5, "metadata": { "a": 1 } })
}

async fn the_same_key_and_body_return_the_same_file_with_a_valid_url(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let first = init(&me, "k", body()).await.expect(201);
    env.advance(WINDOW_MS);
    let second = init(&me, "k", body()).await.expect(201);
    assert_eq!(id(&second), id(&first));
    assert_eq!(me.used().await, 5);
    server.put_bytes(&first, b"bytes").await.expect_problem(403, "url_expired");
    server.put_bytes(&second, b"bytes").await.expect(200);
    let third = init(&me, "k", body()).await.expect(201);
    assert_eq!(id(&third), id(&first));
    me.confirm(&id(&first)).await.expect(200);

    let replayed = init(&me, "k", body()).await.expect(201);
    assert_eq!(replayed, json!({ "fileId": id(&first), "status": "ready" }));
    // The short path makes the same call.
    let short = me.request(Method::POST, "/files/init").header("idempotency-key", "k").json(&body());
    assert_eq!(me.send(short).await.expect(201), replayed);
    assert_eq!(me.get("/api/v2/files").await.expect(200)["files"].as_array().expect("a list").len(), 1);
    oracle::all_is_healed(&env, &server).await;
}

async fn the_same_key_with_another_body_is_refused(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let first = init(&me, "k", body()).await.expect(201);
    for (member, value) in [
        ("fileName", json!("Cargo")),
        ("size", json!(6)),
        ("contentType", json!("text/plain")),
        ("checksumSha256", json!("0".repeat(64))),
        ("metadata", json!({ "a": 2 })),
        ("metadata", Value::Null),
    ] {
        let mut other = body();
        other[member] = value;
        init(&me, "k", other).await.expect_problem(422, "idempotency_mismatch");
    }
    assert_eq!(me.used().await, 5);
    // The same JSON with another spelling.
    let respelled = r#" { "metadata":{"a":1}, "contentType":null, "size":5 ,"fileName":"c\u0061rgo" } "#;
    let request = me.request(Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
    assert_eq!(id(&me.send(request.body(respelled)).await.expect(201)), id(&first));
    oracle::catalog_is_sound(&server).await;
}

async fn a_key_belongs_to_its_user(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let mut files = std::collections::BTreeSet::new();
    for (tenant, user) in [("t", "u"), ("t", "v"), ("other", "u")] {
        let caller = server.as_user(tenant, user, Role::User);
        files.insert(id(&init(&caller, "k", body()).await.expect(201)));
        // Another user may use the same key with another body.
        let other_user = server.as_user(tenant, &format!("{user}2"), Role::User);
        files.insert(id(&init(&other_user, "k", json!({ "fileName": "x", "size": 1 })).await.expect(201)));
    }
    assert_eq!(files.len(), 6);
    oracle::catalog_is_sound(&server).await;
}

async fn the_key_of_an_ended_file_is_refused(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let deleted = init(&me, "deleted", body()).await.expect(201);
    me.delete(&format!("/api/v2/files/{}", id(&deleted))).await.expect(204);
    init(&me, "deleted", body()).await.expect_problem(410, "gone");
    init(&me, "reclaimed", body()).await.expect(201);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    init(&me, "reclaimed", body()).await.expect_problem(410, "gone");
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn a_refused_request_does_not_use_the_key(database: Database) {
    let env = TestEnv::with(database, &[("DEFAULT_TENANT_QUOTA_BYTES", "4")]);
    let server = env.start().await;
    let me = server.me();
    init(&me, "k", body()).await.expect_problem(403, "quota_exceeded");
    init(&me, "k", json!({ "fileName": "a/b", "size": 1 })).await.expect_problem(400, "invalid_request");
    server.operator().put("/api/v2/tenants/t/quota", json!({ "limit": 5 })).await.expect(200);
    let made = init(&me, "k", body()).await.expect(201);
    assert_eq!(
        id(&init(&me, "k", body()).await.expect(201)),
        id(&made),
        "a full quota does not refuse a repeated request"
    );
    oracle::catalog_is_sound(&server).await;
}

async fn concurrent_requests_with_one_key_create_one_file(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let mut files = std::collections::BTreeSet::new();
    // The second round also extends the window of the existing file.
    for _ in 0..2 {
        let answers = futures::future::join_all((0..50).map(|_| patiently(|| init(&me, "k", body())))).await;
        for answer in answers {
            let grant = answer.expect(201);
            assert!(grant["uploadUrl"].is_string());
            files.insert(id(&grant));
        }
        env.advance(1_000);
    }
    assert_eq!(files.len(), 1);
    assert_eq!(me.used().await, 5);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM files").await, 1);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM jobs").await, 1);
    oracle::catalog_is_sound(&server).await;
}

async fn a_key_expires(database: Database) {
    let env = TestEnv::with(database, &[("IDEMPOTENCY_TTL_MS", "60000")]);
    let server = env.start().await;
    let me = server.me();
    let first = init(&me, "k", body()).await.expect(201);
    env.advance(59_999);
    assert_eq!(id(&init(&me, "k", body()).await.expect(201)), id(&first));
    env.advance(1);
    let second = init(&me, "k", json!({ "fileName": "other", "size": 1 })).await.expect(201);
    assert_ne!(id(&second), id(&first));
    assert_eq!(me.used().await, 6);
    let kept = "SELECT COUNT(*) FROM idempotency_keys";
    assert_eq!(env.scalar(kept).await, 1);
    env.advance(60_000);
    server.settle().await;
    assert_eq!(env.scalar(kept).await, 0, "expired keys are deleted");
    oracle::catalog_is_sound(&server).await;
}

#[tokio::test]
async fn an_invalid_key_is_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    for key in ["", "käse", &"k".repeat(256), "a\tb"] {
        let problem = init(&me, key, body()).await.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], "Idempotency-Key", "{key:?}: {problem}");
    }
    assert_eq!(me.used().await, 0);
    init(&me, &"k".repeat(255), body()).await.expect(201);
    init(&me, "with spaces and \"quotes\"", body()).await.expect(201);
    oracle::catalog_is_sound(&server).await;
}

on_each_database!(
    the_same_key_and_body_return_the_same_file_with_a_valid_url,
    the_same_key_with_another_body_is_refused,
    a_key_belongs_to_its_user,
    the_key_of_an_ended_file_is_refused,
    a_refused_request_does_not_use_the_key,
    concurrent_requests_with_one_key_create_one_file,
    a_key_expires,
);
