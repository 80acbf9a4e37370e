//! The API for stuck files: which files a caller sees, and what a manual retry does.

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::stuck_files::{OUTSIDE, THRESHOLD_MS, without_job};
use crate::oracle;
use crate::test_app::{Answer, Client, Database, TestEnv, on_each_database};

async fn listed(client: &Client<'_>) -> Value {
    client.get("/api/v2/uploads/stuck").await.expect(200)
}

async fn retry(client: &Client<'_>, file: &str) -> Answer {
    client.post(&format!("/api/v2/uploads/stuck/{file}/retry"), json!({})).await
}

async fn retry_all(client: &Client<'_>) -> Value {
    client.post("/api/v2/uploads/stuck/retry-all", json!({})).await.expect(200)
}

fn ids(list: &Value) -> Vec<&str> {
    list["files"].as_array().expect("a list").iter().map(|file| file["id"].as_str().expect("an id")).collect()
}

async fn a_stuck_file_is_listed_with_its_problem(database: Database) {
    wharfinger::telemetry::prometheus();
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let me = server.me();
    let lost = without_job(&env, &me, "lost").await;
    env.advance(THRESHOLD_MS - 1);
    assert_eq!(listed(&me).await, json!({ "files": [], "total": 0, "nextCursor": null }));
    env.advance(1);
    let expected = json!({
        "id": lost, "fileName": "lost", "status": "queued", "stuckDuration": THRESHOLD_MS, "retryCount": 0,
        "batchId": null, "updatedAt": "2025-06-15T15:06:40.000Z", "problem": "its job was missing",
    });
    assert_eq!(listed(&me).await, json!({ "files": [expected], "total": 1, "nextCursor": null }));
    assert_eq!(retry_all(&me).await["retriedCount"], 1);
    server.settle().await;
    let metrics = server.http.get(format!("{}/metrics", server.url)).send().await.expect("an answer");
    let metrics = metrics.text().await.expect("text");
    for name in [
        "stuck_files ",
        "stuck_file_recovery_total{action=\"reEnqueued\"} ",
        "stuck_file_detection_duration_seconds ",
        "file_pipeline_status{status=\"queued\"} ",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
}

/// I11, for the list and for both retry calls.
async fn callers_see_and_retry_only_the_files_of_their_scope(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let owners = [("t", "u"), ("t", "v"), ("other", "u")];
    let mut files = Vec::new();
    for (tenant, user) in owners {
        files.push(without_job(&env, &server.as_user(tenant, user, Role::User), "lost").await);
        env.advance(1);
    }
    env.advance(THRESHOLD_MS);
    let seen = [
        (server.me(), &files[..1]),
        (server.as_user("t", "v", Role::User), &files[1..2]),
        (server.as_user("t", "boss", Role::Admin), &files[..2]),
        (server.as_user("other", "boss", Role::Admin), &files[2..]),
        (server.as_user("none", "boss", Role::Admin), &files[..0]),
        (server.operator(), &files[..]),
    ];
    for (client, expected) in &seen {
        let list = listed(client).await;
        assert_eq!(ids(&list), expected.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(list["total"], expected.len());
    }
    let colleague = server.as_user("t", "v", Role::User);
    retry(&colleague, &files[0]).await.expect_problem(404, "not_found");
    let none = server.as_user("none", "boss", Role::Admin);
    assert_eq!(
        retry_all(&none).await,
        json!({ "success": true, "retriedCount": 0, "skippedCount": 0, "errors": [], "isBrokenOff": false })
    );
    assert_eq!(env.scalar("SELECT MAX(retry_count) FROM files").await, 0);
    let admin = server.as_user("t", "boss", Role::Admin);
    assert_eq!(retry_all(&admin).await["retriedCount"], 2);
    assert_eq!(ids(&listed(&server.operator()).await), [files[2].as_str()]);
    assert_eq!(retry_all(&server.operator()).await["retriedCount"], 1);
    let history = server.me().get(&format!("/api/v2/files/{}/history", files[0])).await.expect(200);
    assert_eq!(history["events"][3]["actor"], "admin:boss");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn pages_contain_every_stuck_file_once(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let me = server.me();
    let mut all = Vec::new();
    for n in 0..7 {
        all.push(without_job(&env, &me, &format!("lost {n}")).await);
        env.advance(i64::from(n % 2));
    }
    env.advance(THRESHOLD_MS);
    let (mut seen, mut path) = (Vec::new(), "/api/v2/uploads/stuck?limit=3".to_owned());
    loop {
        let page = me.get(&path).await.expect(200);
        assert_eq!(page["total"], 7);
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        match page["nextCursor"].as_str() {
            Some(next) => path = format!("/api/v2/uploads/stuck?limit=3&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 7);
    seen.sort();
    all.sort();
    assert_eq!(seen, all);
    for wrong in ["x", "1", "1.2", "018f4e6e-7f3a-7000-8000-000000000001"] {
        me.get(&format!("/api/v2/uploads/stuck?cursor={wrong}")).await.expect_problem(400, "invalid_request");
    }
}

/// A manual retry works after any number of retries, and before the file is stuck.
async fn a_manual_retry_ignores_the_limit(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("MAX_STUCK_RETRIES", "0")]);
    let server = env.start().await;
    let me = server.me();
    let file = without_job(&env, &me, "lost").await;
    for retry_count in 1..=4 {
        let expected = json!({
            "success": true, "fileId": file, "previousStatus": "queued", "newStatus": "queued", "retryCount": retry_count,
        });
        assert_eq!(retry(&me, &file).await.expect(200), expected);
        env.execute("DELETE FROM jobs").await;
    }
    env.advance(THRESHOLD_MS);
    assert_eq!(retry(&me, &file).await.expect(200)["retryCount"], 5);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// The sweep fails files at the limit. A call for all files does not give them another chance, but one for a single file does.
async fn a_retry_of_all_skips_files_at_the_limit(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("MAX_STUCK_RETRIES", "2")]);
    let server = env.start().await;
    let me = server.me();
    let (below, at) = (without_job(&env, &me, "lost below").await, without_job(&env, &me, "lost at").await);
    let waiting = me.enqueue("only waits", b"cargo").await;
    env.execute("UPDATE files SET retry_count = 1 WHERE file_name = 'lost below'").await;
    env.execute("UPDATE files SET retry_count = 2 WHERE file_name = 'lost at'").await;
    env.advance(THRESHOLD_MS);
    let expected = json!({
        "success": true, "retriedCount": 1, "skippedCount": 2, "errors": [], "isBrokenOff": false,
    });
    assert_eq!(retry_all(&me).await, expected);
    let retries = async |file: &str| me.file(file).await["retryCount"].clone();
    assert_eq!(
        (retries(&below).await, retries(&at).await, retries(&waiting).await),
        (json!(2), json!(2), json!(0))
    );
    assert_eq!(retry(&me, &at).await.expect(200)["retryCount"], 3);
    server.settle().await;
    for file in [&below, &at, &waiting] {
        assert_eq!(me.file(file).await["status"], "ready");
    }
    oracle::all_is_healed(&env, &server).await;
}

async fn a_manual_retry_skips_the_retry_delay(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[OUTSIDE]);
    let server = env.start().await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    let file = me.enqueue("a", b"cargo").await;
    let lease = async || {
        let answer = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
        answer["jobs"].get(0).cloned()
    };
    let job = lease().await.expect("a job");
    let in_work = retry(&me, &file).await.expect_problem(409, "in_work");
    assert_eq!(in_work["leaseUntil"], job["leaseUntil"]);
    assert_eq!(me.file(&file).await["status"], "scanning", "the worker keeps its lease");
    let path = format!("/api/v2/workers/jobs/{}/fail", job["jobId"].as_str().expect("an id"));
    worker.post(&path, json!({ "leaseToken": job["leaseToken"], "error": "out of paper" })).await.expect(200);
    assert_eq!(lease().await, None, "the job waits for its retry delay");
    let retried = retry(&me, &file).await.expect(200);
    assert_eq!(
        (&retried["newStatus"], &retried["retryCount"]),
        (&json!("queued"), &json!(0)),
        "the file was not stuck, so no recovery is counted"
    );
    assert_eq!(lease().await.expect("a job")["attempt"], 2);
    oracle::catalog_is_sound(&server).await;
}

async fn only_files_in_the_pipeline_can_be_retried(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[OUTSIDE]);
    let server = env.start().await;
    let me = server.me();
    let registered = me.init("a", 3).await.expect(201);
    let registered = registered["fileId"].as_str().expect("an id");
    retry(&me, registered).await.expect_problem(400, "not_in_pipeline");
    let worker = server.as_user("ops", "w", Role::Worker);
    for (output, status) in [
        (json!({ "verdict": "clean" }), "ready"),
        (json!({ "verdict": "infected", "signature": "x" }), "quarantined"),
        (Value::Null, "failed"),
    ] {
        let file = me.enqueue(status, b"cargo").await;
        let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
        let job = &lease["jobs"][0];
        let path = format!("/api/v2/workers/jobs/{}", job["jobId"].as_str().expect("an id"));
        match status {
            "failed" => {
                let body =
                    json!({ "leaseToken": job["leaseToken"], "error": "encrypted", "retryable": false });
                worker.post(&format!("{path}/fail"), body).await.expect(200);
            }
            _ => {
                let body = json!({ "leaseToken": job["leaseToken"], "output": output });
                worker.post(&format!("{path}/complete"), body).await.expect(200);
            }
        }
        let before = me.file(&file).await;
        assert_eq!(before["status"], status);
        let problem = retry(&me, &file).await.expect_problem(400, "terminal_state");
        assert_eq!(problem["fileStatus"], status);
        assert_eq!(me.file(&file).await, before);
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
        retry(&me, &file).await.expect_problem(404, "not_found");
    }
    for unknown in ["018f4e6e-7f3a-7000-8000-000000000001", "x", "retry-all"] {
        retry(&me, unknown).await.expect_problem(404, "not_found");
    }
    env.advance(2 * 3_600_000);
    server.settle().await;
    retry(&me, registered).await.expect_problem(410, "gone");
    oracle::all_is_healed(&env, &server).await;
}

/// A file that cannot be retried is reported, and the others are retried.
async fn errors_are_reported_per_file(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let me = server.me();
    let mut files = Vec::new();
    for n in 0..5 {
        files.push(without_job(&env, &me, &format!("lost {n}")).await);
    }
    env.execute("UPDATE files SET stage = 'an unknown stage' WHERE file_name = 'lost 2'").await;
    env.advance(THRESHOLD_MS);
    let error = "Internal error. The server's log has the cause";
    let expected = json!({
        "success": false, "retriedCount": 4, "skippedCount": 0, "isBrokenOff": false,
        "errors": [{ "fileId": files[2], "error": error }],
    });
    assert_eq!(retry_all(&me).await, expected);
    retry(&me, &files[2]).await.expect_problem(500, "internal");
    env.execute("UPDATE files SET stage = 'scan' WHERE file_name = 'lost 2'").await;
    retry(&me, &files[2]).await.expect(200);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_database! {
    a_stuck_file_is_listed_with_its_problem,
    callers_see_and_retry_only_the_files_of_their_scope,
    pages_contain_every_stuck_file_once,
    a_manual_retry_ignores_the_limit,
    a_retry_of_all_skips_files_at_the_limit,
    a_manual_retry_skips_the_retry_delay,
    only_files_in_the_pipeline_can_be_retried,
    errors_are_reported_per_file,
}
