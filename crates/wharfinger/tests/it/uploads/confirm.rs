//! Confirm: succeeds only if the object exists and has the right size and checksum, and changes the file only once.

use serde_json::json;

use super::{GRACE_MS, WINDOW_MS, id, object_of, plant, sha256};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

async fn a_file_without_its_object_stays_registered(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    let path = format!("/api/v2/files/{}", id(&grant));
    me.confirm(&id(&grant)).await.expect_problem(409, "object_missing");
    assert_eq!(me.get(&path).await.expect(200)["status"], "registered");
    server.put_bytes(&grant, b"abc").await.expect(200);
    assert_eq!(me.confirm(&id(&grant)).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

async fn an_object_of_the_wrong_size_is_not_confirmed(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    plant(&env, &id(&grant), b"four");
    let problem = me.confirm(&id(&grant)).await.expect_problem(409, "size_mismatch");
    assert_eq!((&problem["expected"], &problem["actual"]), (&json!(3), &json!(4)));
    let path = format!("/api/v2/files/{}", id(&grant));
    assert_eq!(me.get(&path).await.expect(200)["status"], "registered");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    me.get(&path).await.expect_problem(410, "gone");
    assert!(!object_of(&env, &id(&grant)).exists());
    oracle::all_is_healed(&env, &server).await;
}

async fn a_checksum_declared_at_init_is_enforced(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let body = json!({ "fileName": "a", "size": 3, "checksumSha256": sha256(b"abc") });
    let grant = me.post("/api/v2/files/init", body).await.expect(201);
    server.put_bytes(&grant, b"abd").await.expect_problem(400, "checksum_mismatch");
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    me.confirm(&id(&grant)).await.expect_problem(409, "object_missing");
    server.put_bytes(&grant, b"abc").await.expect(200);

    let confirm = format!("/api/v2/files/{}/confirm", id(&grant));
    let other = json!({ "checksumSha256": sha256(b"abd") });
    me.post(&confirm, other).await.expect_problem(409, "checksum_mismatch");
    let path = format!("/api/v2/files/{}", id(&grant));
    assert_eq!(me.get(&path).await.expect(200)["status"], "registered");
    me.post(&confirm, json!({ "checksumSha256": sha256(b"abc") })).await.expect(200);
    oracle::all_is_healed(&env, &server).await;
}

async fn a_checksum_given_at_confirm_is_checked_against_the_bytes(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    let path = format!("/api/v2/files/{}", id(&grant));
    let confirm = format!("{path}/confirm");
    let wrong = json!({ "checksumSha256": sha256(b"abd") });
    me.post(&confirm, wrong.clone()).await.expect_problem(409, "checksum_mismatch");
    let file = me.get(&path).await.expect(200);
    assert_eq!((&file["status"], &file["checksumSha256"]), (&json!("registered"), &json!(null)));

    me.post(&confirm, json!({ "checksumSha256": sha256(b"abc") })).await.expect(200);
    assert_eq!(me.get(&path).await.expect(200)["checksumSha256"], sha256(b"abc"));
    // A repeated confirm returns the present state and ignores its body.
    assert_eq!(me.post(&confirm, wrong).await.expect(200)["status"], "ready");
    assert_eq!(me.get(&path).await.expect(200)["checksumSha256"], sha256(b"abc"));
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test]
async fn an_invalid_checksum_is_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    let confirm = format!("/api/v2/files/{}/confirm", id(&grant));
    let upper = sha256(b"abc").to_uppercase();
    for wrong in [json!(""), json!("abc"), json!(upper), json!("z".repeat(64)), json!(7), json!(["x"])] {
        let problem = me.post(&confirm, json!({ "checksumSha256": wrong })).await;
        let problem = problem.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], "checksumSha256", "{problem}");
    }
    let problem = me.post(&confirm, json!({ "checksum": "x" })).await.expect_problem(400, "invalid_request");
    assert_eq!(problem["errors"][0]["field"], "checksum");
    me.post(&confirm, json!([null])).await.expect_problem(400, "invalid_request");
    // A request without a body has no checksum.
    me.send(me.request(reqwest::Method::POST, &confirm)).await.expect(200);
}

async fn an_ended_file_cannot_be_confirmed(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let reclaimed = me.init("late", 3).await.expect(201);
    server.put_bytes(&reclaimed, b"abc").await.expect(200);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    me.confirm(&id(&reclaimed)).await.expect_problem(410, "gone");

    let deleted = me.init("unwanted", 3).await.expect(201);
    server.put_bytes(&deleted, b"abc").await.expect(200);
    me.delete(&format!("/api/v2/files/{}", id(&deleted))).await.expect(204);
    me.confirm(&id(&deleted)).await.expect_problem(404, "not_found");
    server.settle().await;
    for unknown in
        ["018f4e6e-7f3a-7000-8000-000000000001", "x", "..", "%00", "018f4e6e7f3a70008000000000000001"]
    {
        me.confirm(unknown).await.expect_problem(404, "not_found");
    }
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn concurrent_confirms_change_the_file_once(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    let file = id(&grant);
    let answers = futures::future::join_all((0..20).map(|_| me.confirm(&file))).await;
    for answer in answers {
        assert_eq!(answer.expect(200)["status"], "ready");
    }
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    assert_eq!(history["events"].as_array().expect("a list").len(), 3);
    assert_eq!(me.used().await, 3);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_file_without_its_object_stays_registered,
    an_object_of_the_wrong_size_is_not_confirmed,
    a_checksum_declared_at_init_is_enforced,
    a_checksum_given_at_confirm_is_checked_against_the_bytes,
    an_ended_file_cannot_be_confirmed,
    concurrent_confirms_change_the_file_once,
);
