//! Manual sweep runs: who may start them, what they return, and that a sweep does not run twice or write in a dry run.

use serde_json::{Value, json};
use wharfinger::core::Role;
use wharfinger::sweeps::{LEASE_MS, Sweep};
use wharfinger_catalog::{RunStart, SweepClaim};

use super::{dry_run, run_sweep, sweep};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

const LIST: &str = "/api/v2/maintenance/sweeps";
const HOUR_MS: i64 = 3_600_000;

async fn listed(server: &TestApp, name: &str) -> Value {
    let list = server.operator().get(LIST).await.expect(200);
    let sweeps = list["sweeps"].as_array().expect("a list");
    sweeps.iter().find(|sweep| sweep["name"] == name).expect("listed").clone()
}

async fn only_operators_may_run_sweeps(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    for role in [Role::User, Role::Admin, Role::Worker] {
        let client = server.as_user("t", "u", role);
        client.get(LIST).await.expect_problem(403, "forbidden");
        let run = format!("{LIST}/upload-window/run");
        client.post(&run, json!({})).await.expect_problem(403, "forbidden");
    }
    let operator = server.operator();
    operator.post(&format!("{LIST}/unknown/run"), json!({})).await.expect_problem(404, "not_found");
    let run = format!("{LIST}/upload-window/run");
    operator.post(&run, json!({ "dryrun": true })).await.expect_problem(400, "invalid_request");
    operator.send(operator.request(reqwest::Method::POST, &run)).await.expect(200);
}

async fn each_sweep_is_listed_with_its_last_and_next_run(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let names = server.operator().get(LIST).await.expect(200);
    let names: Vec<&str> =
        names["sweeps"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, Sweep::ALL.map(Sweep::name));
    let before = listed(&server, "upload-window").await;
    assert_eq!(
        before,
        json!({
            "name": "upload-window", "schedule": "*/5 * * * *", "nextRun": "2025-06-15T15:10:00.000Z",
            "lastRun": null, "lastSuccess": null, "duration": null, "result": null, "error": null, "runningOn": null,
        })
    );
    let me = server.me();
    me.init("a", 3).await.expect(201);
    env.advance(2 * HOUR_MS);
    let found = json!({ "checked": 1, "reclaimed": 1, "rescued": 0, "errors": 0 });
    let result = sweep(&server, "upload-window").await;
    for (name, value) in found.as_object().expect("an object") {
        assert_eq!(&result[name], value, "{name} in {result}");
    }
    let after = listed(&server, "upload-window").await;
    assert_eq!(after["lastRun"], "2025-06-15T17:06:40.000Z");
    assert_eq!(after["lastSuccess"], "2025-06-15T17:06:40.000Z");
    assert_eq!(after["nextRun"], "2025-06-15T17:10:00.000Z");
    assert_eq!((&after["result"], &after["duration"]), (&result, &json!(0)));
}

async fn a_running_sweep_is_not_started_again(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let claim = SweepClaim {
        name: "upload-window",
        owner: "another 17".into(),
        now: env.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
        start: RunStart::default(),
    };
    server.app.core.catalog.claim_sweep(claim).await.expect("an answer");
    let refused = run_sweep(&server, "upload-window", false).await.expect_problem(409, "sweep_running");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("another 17")), "{refused}");
    assert_eq!(listed(&server, "upload-window").await["runningOn"], "another 17");
    dry_run(&server, "upload-window").await;
    sweep(&server, "batch-timeout").await;
    // Its lease expires.
    env.advance(LEASE_MS);
    assert_eq!(listed(&server, "upload-window").await["runningOn"], Value::Null);
    sweep(&server, "upload-window").await;
}

/// Creates work for each sweep.
async fn prepare(env: &TestEnv, server: &TestApp) {
    let me = server.me();
    for name in ["a", "b"] {
        let grant = me.init(name, 3).await.expect(201);
        server.put_bytes(&grant, b"abc").await.expect(200);
    }
    let files = json!({ "files": [{ "fileName": "c", "size": 1 }, { "fileName": "d", "size": 2 }] });
    me.post("/api/v2/batches", files).await.expect(201);
    let file = me.upload("e", b"gone").await;
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    env.execute("UPDATE quotas SET used_bytes = used_bytes + 7").await;
    env.advance(25 * HOUR_MS);
}

async fn a_dry_run_reports_the_same_and_changes_nothing(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    prepare(&env, &server).await;
    let before = env.scalar("SELECT CAST(SUM(version) AS BIGINT) FROM files").await;
    let stored = oracle::stored(&env, &server).await;
    let mut reported = Vec::new();
    for name in ["batch-timeout", "pending-cleanups", "quota-sync", "upload-window"] {
        reported.push((name, dry_run(&server, name).await));
        assert_eq!(dry_run(&server, name).await, reported[reported.len() - 1].1, "second dry run of {name}");
        assert_eq!(listed(&server, name).await["lastRun"], Value::Null, "{name}");
    }
    assert_eq!(env.scalar("SELECT CAST(SUM(version) AS BIGINT) FROM files").await, before);
    assert_eq!(oracle::stored(&env, &server).await, stored);
    let (batches, cleanups, quotas, uploads) =
        (&reported[0].1, &reported[1].1, &reported[2].1, &reported[3].1);
    assert_eq!((&batches["expiredBatches"], &batches["deletedFiles"]), (&json!(1), &json!(2)));
    assert_eq!(cleanups["attempted"], 1);
    assert_eq!(quotas["driftBytes"], 7);
    assert_eq!((&uploads["checked"], &uploads["reclaimed"]), (&json!(4), &json!(4)));

    assert_eq!(sweep(&server, "quota-sync").await["driftBytes"], 7);
    assert_eq!(sweep(&server, "batch-timeout").await["deletedFiles"], 2);
    let result = sweep(&server, "upload-window").await;
    assert_eq!(result["reclaimed"], 2, "the files of the batch are reclaimed already: {result}");
    assert!(sweep(&server, "pending-cleanups").await["done"].as_u64() >= Some(1));
    server.settle().await;
    for name in ["batch-timeout", "pending-cleanups", "quota-sync", "upload-window"] {
        let result = sweep(&server, name).await;
        let idle = result
            .as_object()
            .expect("an object")
            .iter()
            .all(|(name, value)| name == "tenants" || *value == 0);
        assert!(idle, "the second run of {name} did something: {result}");
    }
    oracle::all_is_healed(&env, &server).await;
}

/// I17: a batch that cannot be read blocks its own files and no others.
async fn an_unreadable_batch_does_not_stop_the_sweep(database: Database) {
    let env = TestEnv::with(database, &[("BATCH_TIMEOUT_MS", "3600000")]);
    let server = env.start().await;
    let me = server.me();
    let files = json!({ "files": [{ "fileName": "c", "size": 1 }] });
    me.post("/api/v2/batches", files).await.expect(201);
    me.init("a", 3).await.expect(201);
    env.execute("UPDATE upload_batches SET tenant_id = ''").await;
    env.advance(25 * HOUR_MS);
    let ran = run_sweep(&server, "upload-window", false).await.expect(200);
    assert_eq!((&ran["result"]["reclaimed"], &ran["result"]["errors"]), (&json!(1), &json!(1)), "{ran}");
    assert!(ran["error"].is_string(), "{ran}");
}

on_each_database! {
    an_unreadable_batch_does_not_stop_the_sweep,
    only_operators_may_run_sweeps,
    each_sweep_is_listed_with_its_last_and_next_run,
    a_running_sweep_is_not_started_again,
    a_dry_run_reports_the_same_and_changes_nothing,
}
