//! The history of each sweep: runs on schedule, by hand and dry, crashed and stopped ones, and which of them are kept.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharfinger::core::Role;
use wharfinger::sweeps::{LEASE_MS, ManualRun, Sweep, SweepRunError, run_if_due, run_now};
use wharfinger::worker::Supervisor;
use wharfinger_catalog::{RUN_LOST, RunStart, SweepClaim};

use super::{dry_run, run_sweep, sweep};
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

const LIST: &str = "/api/v2/maintenance/sweeps";
const HOUR_MS: i64 = 3_600_000;

async fn runs(server: &TestApp, name: &str) -> Vec<Value> {
    let page = server.operator().get(&format!("{LIST}/{name}/runs?limit=1000")).await.expect(200);
    page["runs"].as_array().expect("a list").clone()
}

/// The members of a run that a test can know.
fn known(run: &Value) -> Value {
    let mut run = run.clone();
    assert!(run["runId"].take().is_string(), "{run}");
    run
}

async fn runs_by_hand_and_dry_runs_are_kept(database: Database) {
    let env = TestEnv::with(database, &[("INSTANCE_ID", "host-7")]);
    let server = env.start().await;
    assert_eq!(runs(&server, "upload-window").await, Vec::<Value>::new());
    server.me().init("a", 3).await.expect(201);
    env.advance(2 * HOUR_MS);
    let dry = dry_run(&server, "upload-window").await;
    env.advance(HOUR_MS);
    let real = sweep(&server, "upload-window").await;
    let shown = runs(&server, "upload-window").await;
    let expected = |at: &str, is_dry: bool, result: &Value| {
        json!({
            "runId": null, "startedAt": at, "endedAt": at, "duration": 0, "dryRun": is_dry, "by": "operator:op",
            "instance": "host-7", "idle": false, "result": result, "error": null,
        })
    };
    assert_eq!(real["reclaimed"], 1);
    assert_eq!(
        shown.iter().map(known).collect::<Vec<_>>(),
        [
            expected("2025-06-15T18:06:40.000Z", false, &real),
            expected("2025-06-15T17:06:40.000Z", true, &dry)
        ]
    );
    // Runs by hand are kept even if they found nothing.
    for _ in 0..3 {
        sweep(&server, "pending-cleanups").await;
        env.advance(1);
    }
    server.operator().post("/api/v1/maintenance/cleanup/trigger", json!({})).await.expect(200);
    let idle = runs(&server, "pending-cleanups").await;
    let is_idle: Vec<_> = idle.iter().map(|run| run["idle"] == true).collect();
    assert_eq!(is_idle, [true, true, true, false], "the first one deleted the object: {idle:?}");
    assert!(idle.iter().all(|run| run["by"] == "operator:op"), "{idle:?}");

    let first = server.operator().get(&format!("{LIST}/pending-cleanups/runs?limit=2")).await.expect(200);
    let cursor = first["nextCursor"].as_str().expect("a cursor");
    let path = format!("{LIST}/pending-cleanups/runs?limit=2&cursor={cursor}");
    assert_eq!(server.operator().get(&path).await.expect(200)["runs"][0], idle[2]);

    for role in [Role::User, Role::Admin, Role::Worker] {
        let client = server.as_user("t", "u", role);
        client.get(&format!("{LIST}/upload-window/runs")).await.expect_problem(403, "forbidden");
    }
    server.operator().get(&format!("{LIST}/unknown/runs")).await.expect_problem(404, "not_found");
    server
        .operator()
        .get(&format!("{LIST}/upload-window/runs?cursor=x"))
        .await
        .expect_problem(400, "invalid_request");
}

async fn a_crashed_run_is_unfinished_until_another_process_takes_over(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let start = RunStart { by: "schedule".into(), instance: "crashed".into(), is_dry_run: false };
    let claim = SweepClaim {
        name: "quota-sync",
        owner: "crashed 17".into(),
        now: env.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
        start,
    };
    server.app.core.catalog.claim_sweep(claim).await.expect("an answer");
    let open = runs(&server, "quota-sync").await;
    assert_eq!(open.len(), 1);
    assert_eq!((&open[0]["endedAt"], &open[0]["duration"]), (&Value::Null, &Value::Null));
    assert_eq!((&open[0]["instance"], &open[0]["error"]), (&json!("crashed"), &Value::Null));
    env.advance(LEASE_MS - 1);
    run_sweep(&server, "quota-sync", false).await.expect_problem(409, "sweep_running");
    assert_eq!(runs(&server, "quota-sync").await, open, "a refused run leaves no trace");
    env.advance(1);
    sweep(&server, "quota-sync").await;
    let shown = runs(&server, "quota-sync").await;
    assert_eq!(shown.len(), 2);
    assert_eq!((&shown[1]["error"], &shown[1]["duration"]), (&json!(RUN_LOST), &json!(LEASE_MS)));
    assert_eq!(shown[0]["error"], Value::Null);
}

async fn a_stopped_run_says_so_and_stays_due(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let stop = CancellationToken::new();
    stop.cancel();
    assert!(run_if_due(&server.app.uploads, Sweep::BatchTimeout, &stop).await.ran);
    let shown = runs(&server, "batch-timeout").await;
    let error = shown[0]["error"].as_str().expect("a text");
    assert!(error.contains("the next run continues") && shown[0]["endedAt"].is_string(), "{shown:?}");
    assert_eq!(shown[0]["by"], "schedule");
    env.advance(1);
    let manual = ManualRun { by: "a test".into(), is_dry_run: true, stop, ..ManualRun::default() };
    let stopped = run_now(&server.app.uploads, Sweep::BatchTimeout, &manual).await;
    assert!(matches!(stopped, Err(SweepRunError::Failed(_))), "{stopped:?}");
    let last = &runs(&server, "batch-timeout").await[0];
    assert_eq!((&last["by"], &last["dryRun"]), (&json!("a test"), &json!(true)));
    let list = server.operator().get(LIST).await.expect(200);
    assert_eq!(list["sweeps"][2]["lastRun"], Value::Null, "neither was a whole run");
    assert!(run_if_due(&server.app.uploads, Sweep::BatchTimeout, &CancellationToken::new()).await.ran);
}

/// A sweep that fails is in the history with its error.
async fn a_failed_run_has_its_error(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    server.me().upload("a", b"abc").await;
    let disk = env.unmount_disk();
    assert!(run_sweep(&server, "orphan-cleanup", false).await.expect(200)["error"].is_string());
    let failed = runs(&server, "orphan-cleanup").await.remove(0);
    let error = failed["error"].as_str().expect("a text");
    assert!(error.contains("Is its disk mounted?"), "{failed}");
    assert!(failed["result"]["executionTime"].is_number(), "{failed}");
    disk.remount();
}

/// The loops of a process: the reaper and the scheduled sweeps.
async fn many_deletes_are_few_runs(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let loops = Supervisor::start(&server.app).await;
    for _ in 0..20 {
        let file = server.me().upload("a", b"abc").await;
        server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    let deleted = async |runs: &[Value]| {
        runs.iter().map(|run| run["result"]["done"].as_u64().unwrap_or(0)).sum::<u64>()
    };
    let all_deleted = async {
        while deleted(&runs(&server, "pending-cleanups").await).await < 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), all_deleted).await;
    let shown = runs(&server, "pending-cleanups").await;
    waited.unwrap_or_else(|_| panic!("not all deletes are in {shown:?}"));
    assert_eq!(deleted(&shown).await, 20, "each delete is counted once: {shown:?}");
    assert!(shown.iter().all(|run| run["by"] == "schedule"), "{shown:?}");
    let idle = shown.iter().filter(|run| run["idle"] == true).count();
    assert!(idle <= 1, "{shown:?}");
    loops.stop().await;
}

async fn idle_runs_on_schedule_replace_each_other(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let file = server.me().upload("a", b"abc").await;
    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    for _ in 0..10 {
        for sweep in [Sweep::PendingCleanups, Sweep::QuotaSync] {
            assert!(run_if_due(&server.app.uploads, sweep, &CancellationToken::new()).await.ran);
        }
        env.advance(24 * HOUR_MS);
    }
    let shown = runs(&server, "pending-cleanups").await;
    let done: Vec<_> = shown.iter().map(|run| (&run["idle"], &run["result"]["done"])).collect();
    assert_eq!(done, [(&json!(true), &json!(0)), (&json!(false), &json!(1))], "{shown:?}");
    assert_eq!(shown[0]["startedAt"], "2025-06-24T15:06:40.000Z", "the last one");
    assert_eq!(runs(&server, "quota-sync").await.len(), 10, "of other sweeps all are kept");
}

on_each_database! {
    runs_by_hand_and_dry_runs_are_kept,
    a_crashed_run_is_unfinished_until_another_process_takes_over,
    a_stopped_run_says_so_and_stays_due,
    a_failed_run_has_its_error,
    many_deletes_are_few_runs,
    idle_runs_on_schedule_replace_each_other,
}
