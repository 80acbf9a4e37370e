//! Dead letters: who can see them, redrive and discard.

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::{statuses, told};
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

async fn dead_letters(client: &Client<'_>) -> Vec<Value> {
    client.get("/api/v2/dlq").await.expect(200)["jobs"].as_array().expect("a list").clone()
}

/// A worker reports a permanent failure of a new file. Returns the ids of the file and of its dead letter.
pub async fn failed(server: &TestApp) -> (String, String) {
    let me = server.me();
    let file = me.enqueue("cargo", b"cargo").await;
    let worker = server.as_user("ops", "w", Role::Worker);
    let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
    let job = lease["jobs"][0]["jobId"].as_str().expect("a job").to_owned();
    let token = &lease["jobs"][0]["leaseToken"];
    let body = json!({ "leaseToken": token, "error": "it is encrypted", "retryable": false });
    let answer = worker.post(&format!("/api/v2/workers/jobs/{job}/fail"), body).await.expect(200);
    assert_eq!(answer["status"], "failed");
    (file, job)
}

async fn a_dead_letter_is_shown_to_its_owner_and_admins(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let (file, job) = failed(&server).await;
    let expected = json!({
        "jobId": job, "fileId": file, "fileName": "cargo", "stage": "scan", "reason": "it is encrypted",
        "attempts": 1, "lastError": "it is encrypted", "diedAt": "2025-06-15T15:06:40.000Z",
    });
    for client in [server.me(), server.as_user("t", "boss", Role::Admin), server.operator()] {
        assert_eq!(dead_letters(&client).await, std::slice::from_ref(&expected));
    }
    for client in [server.as_user("t", "other", Role::User), server.as_user("x", "u", Role::Admin)] {
        assert_eq!(dead_letters(&client).await, Vec::<Value>::new());
        client.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect_problem(404, "not_found");
        client.delete(&format!("/api/v2/dlq/{job}")).await.expect_problem(404, "not_found");
    }
    oracle::catalog_is_sound(&server).await;
}

/// Each attempt may use resources up to its limits. So an owner has few redrives, and an admin has no limit.
async fn redrives_of_an_owner_are_limited(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let (_, job) = failed(&server).await;
    let worker = server.as_user("ops", "w", Role::Worker);
    let path = format!("/api/v2/dlq/{job}/redrive");
    let fails_again = async || {
        let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
        let token = &lease["jobs"][0]["leaseToken"];
        let body = json!({ "leaseToken": token, "error": "beyond its limits", "retryable": false });
        worker.post(&format!("/api/v2/workers/jobs/{job}/fail"), body).await.expect(200);
    };
    for _ in 0..3 {
        server.me().post(&path, json!({})).await.expect(200);
        fails_again().await;
    }
    let problem = server.me().post(&path, json!({})).await.expect_problem(409, "redrive_limit");
    assert!(problem["detail"].as_str().expect("a detail").contains("An admin can"), "{problem}");
    assert_eq!(dead_letters(&server.me()).await.len(), 1, "the dead letter is still there");
    server.as_user("t", "boss", Role::Admin).post(&path, json!({})).await.expect(200);
    oracle::catalog_is_sound(&server).await;
}

async fn a_redriven_file_is_finished(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let (file, job) = failed(&server).await;
    let me = server.me();
    let answer = me.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect(200);
    assert_eq!(answer, json!({ "fileId": file, "status": "queued" }));
    me.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect_problem(404, "not_found");
    assert_eq!(dead_letters(&me).await, Vec::<Value>::new());
    assert_eq!(me.file(&file).await["error"], Value::Null);
    server.crash().await;

    let env = env.also(&[("PIPELINE_BUILTIN_STAGES", "all")]);
    let server = env.start().await;
    server.settle().await;
    let me = server.me();
    assert_eq!(
        statuses(&me, &file).await.join(" "),
        "registered uploaded queued scanning failed queued scanning ready"
    );
    let kinds: Vec<Value> = told(&me).await.iter().map(|notification| notification["kind"].clone()).collect();
    assert!(kinds.contains(&json!("file-failed")) && kinds.contains(&json!("file-ready")), "{kinds:?}");
    oracle::all_is_healed(&env, &server).await;
}

async fn a_discarded_dead_letter_leaves_its_file_failed(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let (file, job) = failed(&server).await;
    let me = server.me();
    me.delete(&format!("/api/v2/dlq/{job}")).await.expect(204);
    me.delete(&format!("/api/v2/dlq/{job}")).await.expect_problem(404, "not_found");
    assert_eq!(me.file(&file).await["status"], "failed");
    oracle::catalog_is_sound(&server).await;
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn pages_of_dead_letters_contain_each_one_once(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(failed(&server).await.1);
        env.advance(1);
    }
    all.reverse();
    let me = server.me();
    let mut seen = Vec::new();
    let mut path = "/api/v2/dlq?limit=2".to_owned();
    loop {
        let page = me.get(&path).await.expect(200);
        let jobs = page["jobs"].as_array().expect("a list").clone();
        seen.extend(jobs.iter().map(|job| job["jobId"].as_str().expect("an id").to_owned()));
        match page["nextCursor"].as_str() {
            Some(next) => path = format!("/api/v2/dlq?limit=2&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, all);
}

on_each_database! {
    a_dead_letter_is_shown_to_its_owner_and_admins,
    redrives_of_an_owner_are_limited,
    a_redriven_file_is_finished,
    a_discarded_dead_letter_leaves_its_file_failed,
    pages_of_dead_letters_contain_each_one_once,
}
