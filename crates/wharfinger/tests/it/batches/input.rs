//! Errors name the invalid field, and the batches of other users do not exist for a caller.

use reqwest::Method;
use serde_json::{Value, json};
use wharfinger::core::Role;

use super::{cancel, complete, open, path, wanted};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

fn fields(problem: &Value) -> Vec<&str> {
    let errors = problem["errors"].as_array().expect("errors");
    errors.iter().map(|error| error["field"].as_str().expect("a field")).collect()
}

async fn errors_name_the_index_and_the_field_of_a_file(database: Database) {
    let env = TestEnv::with(database, &[("MAX_FILE_SIZE_BYTES", "1000")]);
    let server = env.start().await;
    let me = server.me();
    for (body, field) in [
        (json!({}), "files"),
        (json!({ "files": 7 }), "files"),
        (json!({ "files": [{ "size": 1 }] }), "files[0].fileName"),
        (json!({ "files": [{ "fileName": "a", "size": 1 }, { "fileName": "b" }] }), "files[1].size"),
        (json!({ "files": [{ "fileName": "a", "size": -1 }] }), "files[0].size"),
        (json!({ "files": [{ "fileName": "a", "size": 1, "batchId": "x" }] }), "files[0].batchId"),
        (
            json!({ "files": [{ "fileName": "a", "size": 1 }, { "fileName": "", "size": 1 }] }),
            "files[1].fileName",
        ),
        (json!({ "files": [{ "fileName": "a", "size": 1, "contentType": "x" }] }), "files[0].contentType"),
        (
            json!({ "files": [{ "fileName": "a", "size": 1, "checksumSha256": "x" }] }),
            "files[0].checksumSha256",
        ),
        (json!({ "files": [{ "fileName": "a", "size": 1, "metadata": [] }] }), "files[0].metadata"),
        (json!({ "files": [], "more": 1 }), "more"),
    ] {
        let problem = me.post("/api/v2/batches", body.clone()).await.expect_problem(400, "invalid_request");
        assert_eq!(fields(&problem), [field], "{body}");
    }
    let many: Vec<Value> = (0..100).map(|_| json!({ "fileName": "a/b", "size": 1 })).collect();
    let problem =
        me.post("/api/v2/batches", json!({ "files": many })).await.expect_problem(400, "invalid_request");
    assert_eq!(fields(&problem).len(), 20);
    let large = me.post("/api/v2/batches", wanted(&[1, 1_001])).await.expect_problem(413, "too_large");
    assert_eq!(fields(&large), ["files[1].size"]);
    // Without a token the body is not read.
    let body = json!({ "files": [{ "fileName": "a", "size": 1, "metadata": { "m": "x".repeat(100_000) } }] });
    let unknown = server.http.post(format!("{}/api/v2/batches", server.url)).json(&body).send().await;
    assert_eq!(unknown.expect("an answer").status(), 401);
    me.post("/api/v2/batches", body).await.expect_problem(400, "invalid_request");
    me.post("/api/v2/batches", json!({ "files": [], "more": "x".repeat(17 << 20) }))
        .await
        .expect_problem(413, "too_large");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM upload_batches").await, 0);
    assert_eq!(me.used().await, 0);
}

async fn the_batch_of_another_user_is_not_found(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[1]).await;
    let never = json!({ "batchId": "018f4e6e-7f3a-7000-8000-000000000001" });
    for other in [server.as_user("t", "v", Role::User), server.as_user("other", "u", Role::Admin)] {
        let answers_for = async |batch: &Value| {
            let init = json!({ "fileName": "a", "size": 1, "batchId": batch["batchId"] });
            [
                other.get(&path(batch)).await.expect_problem(404, "not_found"),
                complete(&other, batch).await.expect_problem(404, "not_found"),
                cancel(&other, batch).await.expect_problem(404, "not_found"),
                other.post("/api/v2/files/init", init).await.expect_problem(404, "not_found"),
            ]
        };
        assert_eq!(
            answers_for(&batch).await,
            answers_for(&never).await,
            "the answers are equal for a missing batch"
        );
    }
    me.get("/api/v2/batches/nonsense").await.expect_problem(404, "not_found");
    let worker = server.as_user("t", "u", Role::Worker);
    worker.send(worker.request(Method::GET, &path(&batch))).await.expect_problem(403, "forbidden");
    // An admin sees and cancels the batches of the tenant, but cannot add files to them.
    let admin = server.as_user("t", "boss", Role::Admin);
    assert_eq!(admin.get(&path(&batch)).await.expect(200)["status"], "active");
    let init = json!({ "fileName": "a", "size": 1, "batchId": batch["batchId"] });
    admin.post("/api/v2/files/init", init).await.expect_problem(404, "not_found");
    assert_eq!(cancel(&admin, &batch).await.expect(200)["status"], "cancelled");
    server.settle().await;
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(errors_name_the_index_and_the_field_of_a_file, the_batch_of_another_user_is_not_found);
