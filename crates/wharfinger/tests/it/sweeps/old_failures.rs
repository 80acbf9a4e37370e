//! Failed files: warned about once, deleted when the warning has been out for its whole time, never without it (I12).

use serde_json::{Value, json};

use super::{DAY_MS, ask, dry_run, sweep};
use crate::oracle;
use crate::pipeline::dead_letters::failed;
use crate::pipeline::told;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const NAME: &str = "orphan-cleanup";

fn env(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
    let mut all = vec![("PIPELINE_BUILTIN_STAGES", "")];
    all.extend(settings);
    TestEnv::with_stages(database, "scan", &all)
}

async fn old_failures(server: &TestApp) -> (u64, u64) {
    counts(&sweep(server, NAME).await)
}

fn counts(result: &Value) -> (u64, u64) {
    let number = |name: &str| result["oldFailures"][name].as_u64().expect("a number");
    (number("warnings"), number("deleted"))
}

async fn of_kind(me: &Client<'_>, kind: &str) -> Vec<Value> {
    told(me).await.into_iter().filter(|told| told["kind"] == kind).collect()
}

async fn warned_once_at_23_days_and_deleted_at_30(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (file, _) = failed(&server).await;
    let me = server.me();
    env.advance(23 * DAY_MS - 1);
    assert_eq!(old_failures(&server).await, (0, 0), "before its time");
    env.advance(1);
    assert_eq!(counts(&dry_run(&server, NAME).await), (1, 0));
    assert_eq!(of_kind(&me, "file-deletion-warning").await, Vec::<Value>::new(), "a dry run tells nobody");
    assert_eq!(old_failures(&server).await, (1, 0));
    let warnings = of_kind(&me, "file-deletion-warning").await;
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        warnings[0]["data"],
        json!({ "reason": "it is encrypted", "deletionDate": "2025-07-15T15:06:40.000Z" })
    );
    assert_eq!((&warnings[0]["fileId"], &warnings[0]["fileName"]), (&json!(file), &json!("cargo")));
    env.advance(7 * DAY_MS - 1);
    assert_eq!(old_failures(&server).await, (0, 0), "its warning has not been out for seven days");
    assert_eq!(me.file(&file).await["status"], "failed");
    env.advance(1);
    assert_eq!(counts(&dry_run(&server, NAME).await), (0, 1));
    assert_eq!(me.file(&file).await["status"], "failed", "a dry run deletes nothing");
    assert_eq!(old_failures(&server).await, (0, 1));
    assert_eq!(old_failures(&server).await, (0, 0), "a second run does nothing");
    me.get(&format!("/api/v2/files/{file}")).await.expect_problem(410, "gone");
    assert_eq!(of_kind(&me, "file-deletion-warning").await.len(), 1, "warned once");
    let gone = of_kind(&me, "file-cleaned-up").await;
    assert_eq!(gone[0]["data"]["sizeReclaimed"], 5, "{gone:?}");
    server.settle().await;
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

/// Nobody swept for two months.
async fn who_was_not_warned_is_warned_first(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (file, _) = failed(&server).await;
    let me = server.me();
    env.advance(60 * DAY_MS);
    assert_eq!(old_failures(&server).await, (1, 0));
    env.advance(7 * DAY_MS - 1);
    assert_eq!(old_failures(&server).await, (0, 0));
    assert_eq!(me.file(&file).await["status"], "failed");
    env.advance(1);
    assert_eq!(old_failures(&server).await, (0, 1));
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_redrive_takes_the_warning_back(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (file, job) = failed(&server).await;
    let me = server.me();
    env.advance(23 * DAY_MS);
    assert_eq!(old_failures(&server).await, (1, 0));
    me.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect(200);
    env.advance(30 * DAY_MS);
    assert_eq!(old_failures(&server).await, (0, 0), "it is not failed");
    // It fails again: its time begins anew, and so does its warning.
    let worker = server.as_user("ops", "w", wharfinger::core::Role::Worker);
    let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
    let body = json!({ "leaseToken": lease["jobs"][0]["leaseToken"], "error": "still", "retryable": false });
    worker.post(&format!("/api/v2/workers/jobs/{job}/fail"), body).await.expect(200);
    assert_eq!(old_failures(&server).await, (0, 0));
    env.advance(23 * DAY_MS);
    assert_eq!(old_failures(&server).await, (1, 0));
    assert_eq!(of_kind(&me, "file-deletion-warning").await.len(), 2);
    assert_eq!(me.file(&file).await["status"], "failed");
}

/// The settings of now count, also for what failed under others; a shorter retention does not shorten the warning.
async fn a_changed_retention_counts_for_old_failures_too(database: Database) {
    let first = env(database, &[]);
    let server = first.start().await;
    let (file, _) = failed(&server).await;
    server.crash().await;
    let env = first.also(&[("FAILED_FILE_RETENTION_MS", "3600000"), ("FAILED_FILE_WARNING_MS", "1800000")]);
    let server = env.start().await;
    env.advance(3_600_000);
    assert_eq!(old_failures(&server).await, (1, 0), "unwarned, so first warned");
    env.advance(1_800_000 - 1);
    assert_eq!(old_failures(&server).await, (0, 0));
    env.advance(1);
    assert_eq!(old_failures(&server).await, (0, 1));
    server.me().get(&format!("/api/v2/files/{file}")).await.expect_problem(410, "gone");
}

/// A catalog from a backup does not know what became of its files since.
async fn nothing_is_deleted_while_the_store_is_in_doubt(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (file, _) = failed(&server).await;
    env.advance(23 * DAY_MS);
    assert_eq!(old_failures(&server).await, (1, 0));
    env.advance(7 * DAY_MS);
    server.app.core.store_is_ours.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(old_failures(&server).await, (0, 0));
    assert_eq!(server.me().file(&file).await["status"], "failed");
    server.app.core.store_is_ours.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(old_failures(&server).await, (0, 1));
}

/// I17: a row that cannot be changed does not keep the others from being done.
async fn one_that_fails_every_time_does_not_stop_the_others(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let mut files = Vec::new();
    for _ in 0..5 {
        files.push(failed(&server).await.0);
        env.advance(1);
    }
    // The oldest is the first that is looked at.
    env.execute("UPDATE files SET tenant_id = '' WHERE id = (SELECT MIN(id) FROM files)").await;
    env.advance(23 * DAY_MS);
    let ran = ask(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 4, "deleted": 0, "errors": 1 }));
    assert!(ran["error"].as_str().is_some_and(|error| error.contains("1 files could not")), "{ran}");
    env.advance(7 * DAY_MS);
    let ran = ask(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 0, "deleted": 4, "errors": 1 }));
}

on_each_database! {
    warned_once_at_23_days_and_deleted_at_30,
    who_was_not_warned_is_warned_first,
    a_redrive_takes_the_warning_back,
    a_changed_retention_counts_for_old_failures_too,
    nothing_is_deleted_while_the_store_is_in_doubt,
    one_that_fails_every_time_does_not_stop_the_others,
}
