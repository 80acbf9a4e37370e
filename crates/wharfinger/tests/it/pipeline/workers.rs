//! External workers: the calls of a lease, and calls after a lease is lost.

use serde_json::{Value, json};
use wharfinger::auth::LeaseScope;
use wharfinger::core::Role;
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::stage::Stage;

use super::{ALL, chunks, statuses};
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, caller, on_each_database};

const EXTERNAL: [(&str, &str); 1] = [("PIPELINE_BUILTIN_STAGES", "")];

fn worker(server: &TestApp) -> Client<'_> {
    server.as_user("ops", "w", Role::Worker)
}

async fn lease(worker: &Client<'_>, stage: &str) -> Option<Value> {
    let answer =
        worker.post("/api/v2/workers/lease", json!({ "stages": [stage], "max": 1 })).await.expect(200);
    answer["jobs"].get(0).cloned()
}

async fn call(worker: &Client<'_>, job: &Value, verb: &str, rest: Value) -> crate::test_app::Answer {
    let mut body = rest;
    body["leaseToken"] = job["leaseToken"].clone();
    let path = format!("/api/v2/workers/jobs/{}/{verb}", job["jobId"].as_str().expect("an id"));
    worker.post(&path, body).await
}

async fn complete(worker: &Client<'_>, job: &Value, output: Value) -> Value {
    call(worker, job, "complete", json!({ "output": output })).await.expect(200)
}

async fn an_external_worker_processes_a_file_through_all_stages(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("kai.txt", b"Kai eins. Kai zwei.").await;
    server.settle().await;
    assert_eq!(me.file(&file).await["status"], "queued", "no built-in stage processes it");
    assert_eq!(lease(&worker, "extract").await, None);

    let scan = lease(&worker, "scan").await.expect("a job");
    assert_eq!(me.file(&file).await["status"], "scanning");
    assert_eq!(
        (&scan["fileId"], &scan["fileName"], &scan["size"]),
        (&json!(file), &json!("kai.txt"), &json!(19))
    );
    assert_eq!((&scan["stage"], &scan["attempt"], &scan["input"]), (&json!("scan"), &json!(1), &json!({})));
    let bytes =
        server.http.get(scan["downloadUrl"].as_str().expect("a URL")).send().await.expect("an answer");
    assert_eq!(bytes.text().await.expect("bytes"), "Kai eins. Kai zwei.");
    assert_eq!(complete(&worker, &scan, json!({ "verdict": "clean" })).await["status"], "queued");

    let extract = lease(&worker, "extract").await.expect("a job");
    assert_eq!(extract["input"], json!({ "verdict": "clean" }));
    complete(&worker, &extract, json!({ "text": "Kai eins. Kai zwei." })).await;
    let chunk = lease(&worker, "chunk").await.expect("a job");
    assert_eq!(chunk["input"], json!({ "text": "Kai eins. Kai zwei." }));
    let made = json!([{ "text": "Kai eins.", "start": 0, "end": 9 }, { "text": "Kai zwei.", "start": 10, "end": 19 }]);
    complete(&worker, &chunk, json!({ "chunks": made })).await;
    let embed = lease(&worker, "embed").await.expect("a job");
    assert_eq!(embed["input"], json!({ "chunks": made }));
    let ended = complete(&worker, &embed, json!({ "vectors": [[1.0, 0.0], [0.0, 1.0]] })).await;
    assert_eq!(ended["status"], "ready");
    assert_eq!(me.file(&file).await["status"], "ready");
    assert_eq!(chunks(&me, &file).await[1]["text"], "Kai zwei.");
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    assert_eq!(history["events"][4]["actor"], "worker:w");
    oracle::all_is_healed(&env, &server).await;
}

/// I8: calls with an old token are rejected, and the result of each stage is stored once.
async fn calls_with_a_lost_lease_change_nothing(database: Database) {
    let env = TestEnv::with_stages(database, "extract", &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("a", b"cargo").await;
    let old = lease(&worker, "extract").await.expect("a job");
    env.advance(59_000);
    let kept = call(&worker, &old, "heartbeat", json!({})).await.expect(200);
    assert_eq!(kept["leaseUntil"], "2025-06-15T15:08:39.000Z");
    env.advance(59_999);
    assert_eq!(lease(&worker, "extract").await, None);
    env.advance(1);
    server.settle().await;
    env.advance(60_000);
    let stale = async |moment: &str| {
        let before = (me.file(&file).await, statuses(&me, &file).await);
        for (verb, rest) in [
            ("heartbeat", json!({})),
            ("complete", json!({ "output": { "text": "late" } })),
            ("fail", json!({ "error": "late" })),
            ("fail", json!({ "error": "late", "retryable": false })),
        ] {
            let answer = call(&worker, &old, verb, rest).await;
            assert_eq!((answer.status.as_u16(), answer.code()), (409, "lease_lost"), "{verb} {moment}");
        }
        assert_eq!((me.file(&file).await, statuses(&me, &file).await), before, "{moment}");
    };
    stale("before another worker has a lease").await;
    let new = lease(&worker, "extract").await.expect("a job");
    assert_eq!((&new["jobId"], &new["attempt"]), (&old["jobId"], &json!(2)));
    stale("while another worker has a lease").await;
    complete(&worker, &new, json!({ "text": "cargo" })).await;
    stale("after another worker completed the job").await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_worker_over_the_stage_timeout_loses_its_lease(database: Database) {
    let settings = [EXTERNAL[0], ("STAGE_TIMEOUT_MS", "100000"), ("JOB_MAX_ATTEMPTS", "1")];
    let env = TestEnv::with_stages(database, "scan", &settings);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("a", b"cargo").await;
    let job = lease(&worker, "scan").await.expect("a job");
    for _ in 0..3 {
        env.advance(33_000);
        call(&worker, &job, "heartbeat", json!({})).await.expect(200);
    }
    env.advance(1_000);
    server.settle().await;
    call(&worker, &job, "heartbeat", json!({})).await.expect_problem(409, "lease_lost");
    let failed = me.file(&file).await;
    assert_eq!(failed["status"], "failed");
    assert!(failed["error"].as_str().expect("a reason").contains("exceeded the time limit"), "{failed}");
}

/// The delay grows with each lost worker. Then the file is a dead letter, and can be redriven.
async fn a_file_that_loses_three_workers_fails(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("poison", b"poison").await;
    for pause_ms in [60_000, 15 * 60_000, 1] {
        lease(&worker, "scan").await.expect("a job");
        env.advance(60_000);
        server.settle().await;
        env.advance(pause_ms - 1);
        assert_eq!(lease(&worker, "scan").await, None, "the file waits for {pause_ms} ms");
        env.advance(1);
    }
    let found = me.file(&file).await;
    assert_eq!(found["status"], "failed", "{found}");
    assert_eq!(found["error"], "3 workers in a row were lost during scan");
    assert_eq!(lease(&worker, "scan").await, None);
    let dead_letters = me.get("/api/v2/dlq").await.expect(200);
    let job = dead_letters["jobs"][0]["jobId"].as_str().expect("a dead letter");
    me.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect(200);
    let again = lease(&worker, "scan").await.expect("a job");
    complete(&worker, &again, json!({ "verdict": "clean" })).await;
    assert_eq!(me.file(&file).await["status"], "ready");
    oracle::catalog_is_sound(&server).await;
}

/// A later stage fails during the lease call. Jobs that are already leased would count as lost workers if the call
/// failed too.
async fn jobs_leased_before_an_error_reach_the_worker(database: Database) {
    let env = TestEnv::with_stages(database, "scan,extract", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let file = server.me().enqueue("a", b"cargo").await;
    server.crash().await;
    let mut was_leased = 0;
    for n in 1..60 {
        let faults = Faults::at(0, Fault::Fail);
        let server = env.start_with(faults.clone()).await;
        faults.rearm_at(n, Fault::Fail);
        let asked = json!({ "stages": ["scan", "extract"], "max": 5 });
        let answer = worker(&server).post("/api/v2/workers/lease", asked).await;
        let hit = faults.hit().is_some();
        faults.rearm_at(0, Fault::Fail);
        if answer.status == 200 {
            let jobs = answer.expect(200)["jobs"].as_array().expect("a list").clone();
            was_leased += usize::from(!jobs.is_empty());
            for job in &jobs {
                call(&worker(&server), job, "fail", json!({ "error": "again" })).await.expect(200);
            }
        }
        // After any failure the file waits or its lease is returned. No lost worker is counted.
        worker(&server).post("/api/v2/workers/lease", json!({ "stages": ["extract"] })).await.expect(200);
        let lost = "SELECT COALESCE(MAX(lost_leases), 0) FROM jobs";
        assert_eq!(env.scalar(lost).await, 0, "call {n}");
        env.execute("UPDATE jobs SET run_at = 0, attempts = 0, rank = NULL WHERE state = 'waiting'").await;
        let status = server.me().file(&file).await["status"].clone();
        assert_eq!(status, "queued", "after a failure at call {n}");
        server.crash().await;
        if !hit {
            break;
        }
    }
    assert!(was_leased > 1, "{was_leased}");
}

/// I23: a worker that disconnects before the answer is not counted as lost.
async fn a_lease_is_returned_when_its_client_disconnects(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &EXTERNAL);
    let faults = Faults::block_at("sign get");
    let server = env.start_with(faults.clone()).await;
    let file = server.me().enqueue("a", b"cargo").await;
    let asked = worker(&server);
    {
        let asking = asked.post("/api/v2/workers/lease", json!({ "stages": ["scan"] }));
        tokio::select! {
            _ = asking => panic!("answered without its URL"),
            () = faults.reached() => {}
        }
    }
    assert_eq!(server.me().file(&file).await["status"], "scanning");
    faults.release();
    let returned = async {
        while server.me().file(&file).await["status"] != "queued" {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), returned).await.expect("the lease is returned");
    assert_eq!(env.scalar("SELECT MAX(lost_leases) FROM jobs").await, 0);
    let job = lease(&asked, "scan").await.expect("a job at once");
    assert_eq!(job["attempt"], 1);
    complete(&asked, &job, json!({ "verdict": "clean" })).await;
    oracle::all_is_healed(&env, &server).await;
}

/// A lease belongs to the worker that took it, and its token cannot be guessed.
async fn another_worker_cannot_use_a_lease(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("a", b"cargo").await;
    let job = lease(&worker, "scan").await.expect("a job");
    let token = job["leaseToken"].as_str().expect("a text").to_owned();
    let number = token.split('.').next().expect("a number").to_owned();
    let others = [
        server.as_user("ops", "other", Role::Worker),
        server.as_user("t", "w", Role::Worker),
        server.as_user("ops", "w", Role::Operator),
    ];
    let calls = [
        ("heartbeat", json!({})),
        ("complete", json!({ "output": { "verdict": "clean" } })),
        ("fail", json!({ "error": "not my job", "retryable": false })),
    ];
    for (verb, body) in &calls {
        for other in &others {
            call(other, &job, verb, body.clone()).await.expect_problem(409, "lease_lost");
        }
        for guess in ["", "1", &number, &format!("{number}."), &format!("{number}.{}", "0".repeat(64))] {
            let mut guessed = job.clone();
            guessed["leaseToken"] = json!(guess);
            call(&worker, &guessed, verb, body.clone()).await.expect_problem(409, "lease_lost");
        }
        let mut number_only = job.clone();
        number_only["leaseToken"] = json!(1);
        call(&worker, &number_only, verb, body.clone()).await.expect_problem(400, "invalid_request");
    }
    assert_eq!(me.file(&file).await["status"], "scanning", "nothing has changed");
    complete(&worker, &job, json!({ "verdict": "clean" })).await;
    oracle::all_is_healed(&env, &server).await;
}

/// Claims of the token limit what a worker may lease.
async fn a_worker_leases_only_what_its_token_allows(database: Database) {
    let env = TestEnv::with_stages(database, "scan,extract", &EXTERNAL);
    let server = env.start().await;
    let scoped = |stages: Option<Vec<Stage>>, tenants: Option<&[&str]>| {
        let name = |name: &&str| TenantId::new(name).expect("a tenant");
        let scope = LeaseScope { stages, tenants: tenants.map(|names| names.iter().map(name).collect()) };
        let until = server.app.core.clock.now() + 3_600_000;
        let token = server.app.tokens.mint_scoped(&caller("ops", "w", Role::Worker), &scope, until);
        Client { server: &server, token: token.expect("a secret") }
    };
    for n in 0..30 {
        server.me().enqueue(&format!("many {n}"), b"cargo").await;
    }
    let single = server.as_user("small", "u", Role::User).enqueue("one", b"cargo").await;
    let one_tenant = scoped(Some(vec![Stage::Scan]), Some(&["small", "empty"]));
    let ask = json!({ "stages": ["scan"], "max": 50 });
    let leased = one_tenant.post("/api/v2/workers/lease", ask.clone()).await.expect(200);
    let files: Vec<&Value> =
        leased["jobs"].as_array().expect("a list").iter().map(|job| &job["fileId"]).collect();
    assert_eq!(files, [&json!(single)], "only files of its tenants");
    one_tenant
        .post("/api/v2/workers/lease", json!({ "stages": ["scan", "extract"] }))
        .await
        .expect_problem(403, "forbidden");
    let no_tenant = scoped(None, Some(&[]));
    assert_eq!(no_tenant.post("/api/v2/workers/lease", ask.clone()).await.expect(200)["jobs"], json!([]));
    let every_tenant = scoped(Some(vec![Stage::Scan, Stage::Extract]), None);
    assert_eq!(
        every_tenant.post("/api/v2/workers/lease", ask).await.expect(200)["jobs"].as_array().map(Vec::len),
        Some(30)
    );
}

/// An expired lease that cannot be recovered must not block the queue or fail the calls of workers.
async fn an_unrecoverable_lease_does_not_block_other_files(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    for n in 0..5 {
        me.enqueue(&format!("cargo {n}"), b"cargo").await;
        lease(&worker, "scan").await.expect("a job");
    }
    env.execute("UPDATE files SET stage = 'unknown stage' WHERE file_name = 'cargo 1'").await;
    env.advance(60_000);
    assert_eq!(lease(&worker, "scan").await, None);
    env.advance(60_000);
    for _ in 0..4 {
        let job = lease(&worker, "scan").await.expect("a job");
        assert_eq!(job["attempt"], 2);
        complete(&worker, &job, json!({ "verdict": "clean" })).await;
    }
    assert_eq!(lease(&worker, "scan").await, None);
    env.execute("UPDATE files SET stage = 'scan' WHERE file_name = 'cargo 1'").await;
    assert_eq!(lease(&worker, "scan").await, None);
    env.advance(60_000);
    let job = lease(&worker, "scan").await.expect("a job");
    complete(&worker, &job, json!({ "verdict": "clean" })).await;
    oracle::all_is_healed(&env, &server).await;
}

async fn failures_are_retried_later_up_to_the_limit(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[EXTERNAL[0], ("JOB_MAX_ATTEMPTS", "2")]);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("a", b"cargo").await;
    let first = lease(&worker, "scan").await.expect("a job");
    let answer = call(&worker, &first, "fail", json!({ "error": "out of paper" })).await.expect(200);
    assert_eq!(answer["status"], "queued");
    assert_eq!(lease(&worker, "scan").await, None, "not at once");
    env.advance(5_000);
    let second = lease(&worker, "scan").await.expect("a job");
    assert_eq!(second["attempt"], 2);
    let answer = call(&worker, &second, "fail", json!({ "error": "out of ink" })).await.expect(200);
    assert_eq!(answer["status"], "failed");
    assert_eq!(me.file(&file).await["error"], "out of ink");
    let dead_letters = me.get("/api/v2/dlq").await.expect(200);
    assert_eq!(dead_letters["jobs"][0]["reason"], "no attempts left");
}

async fn a_large_input_is_served_at_a_signed_url(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[EXTERNAL[0], ("DERIVED_MIN_BYTES", "4MiB")]);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    me.enqueue("a", b"cargo").await;
    let text: String = (0..30_000).map(|n| format!("\"Zeile\" {n}\tÄ\n")).collect();
    let scan = lease(&worker, "scan").await.expect("a job");
    complete(&worker, &scan, json!({ "verdict": "clean" })).await;
    let extract = lease(&worker, "extract").await.expect("a job");
    complete(&worker, &extract, json!({ "text": text })).await;
    let read = async |job: &Value| {
        let url = job["input"]["url"].as_str().unwrap_or_else(|| panic!("no URL in {job}")).to_owned();
        let answer = server.http.get(&url).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        (url, answer.json::<Value>().await.expect("JSON"))
    };
    let chunk = lease(&worker, "chunk").await.expect("a job");
    let (url, input) = read(&chunk).await;
    assert_eq!(input, json!({ "text": text }));
    for wrong in [url.replace("lease=", "lease=9"), format!("{}0", &url[..url.len() - 1])] {
        let answer = server.http.get(&wrong).send().await.expect("an answer");
        assert!(wrong == url || answer.status() == 404, "{}", answer.status());
    }
    let made: Vec<Value> =
        (0..1_200).map(|n| json!({ "text": format!("Ä{n}"), "start": n, "end": n + 1 })).collect();
    complete(&worker, &chunk, json!({ "chunks": made })).await;
    let stale = server.http.get(&url).send().await.expect("an answer");
    assert_eq!(stale.status(), 409, "the lease is over");
    let embed = lease(&worker, "embed").await.expect("a job");
    let (_, input) = read(&embed).await;
    assert_eq!(input, json!({ "chunks": made }));
    let vectors: Vec<Value> = (0..1_200).map(|n| json!([1.0, n])).collect();
    assert_eq!(complete(&worker, &embed, json!({ "vectors": vectors })).await["status"], "ready");
}

async fn an_invalid_output_is_refused_and_changes_nothing(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("a", b"cargo").await;
    let good = [
        ("scan", json!({ "verdict": "clean" })),
        ("extract", json!({ "text": "a\u{0}b" })),
        ("chunk", json!({ "chunks": [{ "text": "a", "start": 0, "end": 1 }] })),
        ("embed", json!({ "vectors": [[0.5, 0.5]] })),
    ];
    let bad = [
        vec![json!({}), json!({ "verdict": "maybe" }), json!("clean"), json!(null)],
        vec![json!({}), json!({ "text": 7 }), json!({ "text": null })],
        vec![
            json!({}),
            json!({ "chunks": "a" }),
            json!({ "chunks": [{ "text": "a", "start": 2, "end": 1 }] }),
            json!({ "chunks": [{ "text": "a", "start": 0, "end": u64::MAX }] }),
        ],
        vec![
            json!({ "vectors": [] }),
            json!({ "vectors": [[1.0], [2.0]] }),
            json!({ "vectors": [[]] }),
            json!({ "vectors": [["a"]] }),
            json!({ "vectors": [[1e300]] }),
        ],
    ];
    for ((stage, good), bad) in good.into_iter().zip(bad) {
        let job = lease(&worker, stage).await.expect("a job");
        for output in bad {
            let answer = call(&worker, &job, "complete", json!({ "output": output })).await;
            let problem = answer.expect_problem(400, "invalid_request");
            assert!(
                problem["errors"][0]["field"].as_str().expect("a field").starts_with("output"),
                "{problem}"
            );
        }
        complete(&worker, &job, good).await;
    }
    assert_eq!(me.file(&file).await["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_workers_and_operators_can_lease_and_workers_have_no_other_calls() {
    let env = TestEnv::with_stages(Database::Sqlite, "scan", &EXTERNAL);
    let server = env.start().await;
    server.me().enqueue("a", b"cargo").await;
    for client in [server.me(), server.as_user("t", "boss", Role::Admin)] {
        let body = json!({ "stages": ["scan"] });
        client.post("/api/v2/workers/lease", body).await.expect_problem(403, "forbidden");
    }
    let worker = worker(&server);
    worker.get("/api/v2/files").await.expect_problem(403, "forbidden");
    worker.get("/api/v2/dlq").await.expect_problem(403, "forbidden");
    for (body, code, field) in [
        (json!({ "stages": [] }), "invalid_request", "stages"),
        (json!({ "stages": ["paint"] }), "invalid_request", "stages"),
        (json!({ "stages": ["scan"], "max": 0 }), "invalid_request", "max"),
        (json!({ "stages": ["scan"], "max": 101 }), "invalid_request", "max"),
        (json!({ "stages": ["scan"], "leaseMs": 0 }), "invalid_request", "leaseMs"),
        (json!({ "stages": ["embed"] }), "not_in_pipeline", ""),
    ] {
        let problem = worker.post("/api/v2/workers/lease", body).await.expect_problem(400, code);
        assert!(field.is_empty() || problem["errors"][0]["field"] == field, "{problem}");
    }
    let operator = server.operator();
    let job = lease(&operator, "scan").await.expect("operators can lease");
    let answer = complete(&operator, &job, json!({ "verdict": "infected", "signature": "Worm.X" })).await;
    assert_eq!(answer["status"], "quarantined");
}

/// A stage between two others does not change the input of the second.
async fn a_stage_gets_its_input_in_any_order_of_stages(database: Database) {
    let settings = [EXTERNAL[0], ("PIPELINE_SCAN_FIRST", "false")];
    let env = TestEnv::with_stages(database, "extract,scan,chunk,embed", &settings);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let file = me.enqueue("a", b"cargo").await;
    let extract = lease(&worker, "extract").await.expect("a job");
    assert_eq!(extract["input"], json!({}));
    complete(&worker, &extract, json!({ "text": "cargo" })).await;
    let scan = lease(&worker, "scan").await.expect("a job");
    complete(&worker, &scan, json!({ "verdict": "clean" })).await;
    let chunk = lease(&worker, "chunk").await.expect("a job");
    assert_eq!(chunk["input"], json!({ "text": "cargo" }));
    server.crash().await;

    // A file keeps the stages that it was confirmed with.
    let env = env.also(&[("PIPELINE_STAGES", "scan")]);
    let server = env.start().await;
    let worker = self::worker(&server);
    complete(&worker, &chunk, json!({ "chunks": [{ "text": "cargo", "start": 0, "end": 5 }] })).await;
    let embed = lease(&worker, "embed").await.expect("a job");
    complete(&worker, &embed, json!({ "vectors": [[1.0]] })).await;
    assert_eq!(server.me().file(&file).await["status"], "ready");
    let body = json!({ "stages": ["embed"] });
    worker.post("/api/v2/workers/lease", body).await.expect_problem(400, "not_in_pipeline");
}

/// Changed and missing files must not keep other files from the worker.
async fn changed_and_missing_files_are_not_leased(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &EXTERNAL);
    let server = env.start().await;
    let (me, worker) = (server.me(), worker(&server));
    let (changed, missing) = (me.enqueue("a", b"cargo").await, me.enqueue("b", b"cargo").await);
    let unchanged = me.enqueue("c", b"cargo").await;
    let path = |id: &str| env.blob_dir().join(format!("uploads/t/u/{id}"));
    std::fs::remove_file(path(&changed)).expect("removed");
    std::fs::write(path(&changed), b"CARGO").expect("written");
    std::fs::remove_file(path(&missing)).expect("removed");
    let answer =
        worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"], "max": 9 })).await.expect(200);
    let jobs = answer["jobs"].as_array().expect("a list");
    assert_eq!(jobs.iter().map(|job| &job["fileId"]).collect::<Vec<_>>(), [&json!(unchanged)]);
    for (file, status) in [(&changed, "quarantined"), (&missing, "failed"), (&unchanged, "scanning")] {
        assert_eq!(me.file(file).await["status"], status);
    }
    // A file that changes during the scan is not accepted as clean.
    std::fs::remove_file(path(&unchanged)).expect("removed");
    std::fs::write(path(&unchanged), b"Cargo").expect("written");
    assert_eq!(complete(&worker, &jobs[0], json!({ "verdict": "clean" })).await["status"], "quarantined");
    oracle::catalog_is_sound(&server).await;
}

on_each_database! {
    a_stage_gets_its_input_in_any_order_of_stages,
    changed_and_missing_files_are_not_leased,
    an_external_worker_processes_a_file_through_all_stages,
    calls_with_a_lost_lease_change_nothing,
    a_worker_over_the_stage_timeout_loses_its_lease,
    a_file_that_loses_three_workers_fails,
    jobs_leased_before_an_error_reach_the_worker,
    an_unrecoverable_lease_does_not_block_other_files,
    a_lease_is_returned_when_its_client_disconnects,
    another_worker_cannot_use_a_lease,
    a_worker_leases_only_what_its_token_allows,
    failures_are_retried_later_up_to_the_limit,
    a_large_input_is_served_at_a_signed_url,
    an_invalid_output_is_refused_and_changes_nothing,
}
