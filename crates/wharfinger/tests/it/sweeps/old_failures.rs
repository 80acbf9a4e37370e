//! Failed files get one warning and are deleted at the end of the warning period, never without a warning (I12).

use serde_json::{Value, json};

use super::{DAY_MS, dry_run, run_sweep, sweep};
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

async fn notifications_of_kind(me: &Client<'_>, kind: &str) -> Vec<Value> {
    told(me).await.into_iter().filter(|notification| notification["kind"] == kind).collect()
}

async fn an_old_failure_has_one_warning_at_23_days_and_is_deleted_at_30(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (file, _) = failed(&server).await;
    let me = server.me();
    env.advance(23 * DAY_MS - 1);
    assert_eq!(old_failures(&server).await, (0, 0), "too early for a warning");
    env.advance(1);
    assert_eq!(counts(&dry_run(&server, NAME).await), (1, 0));
    assert_eq!(
        notifications_of_kind(&me, "file-deletion-warning").await,
        Vec::<Value>::new(),
        "a dry run sends no notification"
    );
    assert_eq!(old_failures(&server).await, (1, 0));
    let warnings = notifications_of_kind(&me, "file-deletion-warning").await;
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        warnings[0]["data"],
        json!({ "reason": "it is encrypted", "deletionDate": "2025-07-15T15:06:40.000Z" })
    );
    assert_eq!((&warnings[0]["fileId"], &warnings[0]["fileName"]), (&json!(file), &json!("cargo")));
    env.advance(7 * DAY_MS - 1);
    assert_eq!(old_failures(&server).await, (0, 0), "the warning is less than 7 days old");
    assert_eq!(me.file(&file).await["status"], "failed");
    env.advance(1);
    assert_eq!(counts(&dry_run(&server, NAME).await), (0, 1));
    assert_eq!(me.file(&file).await["status"], "failed", "a dry run deletes nothing");
    assert_eq!(old_failures(&server).await, (0, 1));
    assert_eq!(old_failures(&server).await, (0, 0), "a second run does nothing");
    me.get(&format!("/api/v2/files/{file}")).await.expect_problem(410, "gone");
    assert_eq!(notifications_of_kind(&me, "file-deletion-warning").await.len(), 1, "one warning");
    let cleaned_up = notifications_of_kind(&me, "file-cleaned-up").await;
    assert_eq!(cleaned_up[0]["data"]["sizeReclaimed"], 5, "{cleaned_up:?}");
    server.settle().await;
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

/// The sweep has not run for two months.
async fn the_warning_always_comes_7_days_before_the_deletion(database: Database) {
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

async fn a_redrive_cancels_the_warning(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let (file, job) = failed(&server).await;
    let me = server.me();
    env.advance(23 * DAY_MS);
    assert_eq!(old_failures(&server).await, (1, 0));
    me.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect(200);
    env.advance(30 * DAY_MS);
    assert_eq!(old_failures(&server).await, (0, 0), "the file is not failed now");
    // The second failure starts a new retention period with a new warning.
    let worker = server.as_user("ops", "w", wharfinger::core::Role::Worker);
    let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
    let body = json!({ "leaseToken": lease["jobs"][0]["leaseToken"], "error": "still", "retryable": false });
    worker.post(&format!("/api/v2/workers/jobs/{job}/fail"), body).await.expect(200);
    assert_eq!(old_failures(&server).await, (0, 0));
    env.advance(23 * DAY_MS);
    assert_eq!(old_failures(&server).await, (1, 0));
    assert_eq!(notifications_of_kind(&me, "file-deletion-warning").await.len(), 2);
    assert_eq!(me.file(&file).await["status"], "failed");
}

/// The present settings apply to files that failed under other settings. A shorter retention does not shorten the
/// warning period.
async fn a_changed_retention_applies_to_existing_failures(database: Database) {
    let first = env(database, &[]);
    let server = first.start().await;
    let (file, _) = failed(&server).await;
    server.crash().await;
    let env = first.also(&[("FAILED_FILE_RETENTION_MS", "3600000"), ("FAILED_FILE_WARNING_MS", "1800000")]);
    let server = env.start().await;
    env.advance(3_600_000);
    assert_eq!(old_failures(&server).await, (1, 0), "the warning comes before the deletion");
    env.advance(1_800_000 - 1);
    assert_eq!(old_failures(&server).await, (0, 0));
    env.advance(1);
    assert_eq!(old_failures(&server).await, (0, 1));
    server.me().get(&format!("/api/v2/files/{file}")).await.expect_problem(410, "gone");
}

/// After a restore from a backup, the catalog does not know the later state of its files.
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

/// I17: a row that cannot be written does not block the others.
async fn a_file_that_fails_every_time_does_not_stop_the_others(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let mut files = Vec::new();
    for _ in 0..5 {
        files.push(failed(&server).await.0);
        env.advance(1);
    }
    // The sweep checks the oldest file first.
    env.execute("UPDATE files SET tenant_id = '' WHERE id = (SELECT MIN(id) FROM files)").await;
    env.advance(23 * DAY_MS);
    let ran = run_sweep(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 4, "deleted": 0, "errors": 1 }));
    assert!(ran["error"].as_str().is_some_and(|error| error.contains("1 files could not")), "{ran}");
    env.advance(7 * DAY_MS);
    let ran = run_sweep(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 0, "deleted": 4, "errors": 1 }));
}

on_each_database! {
    an_old_failure_has_one_warning_at_23_days_and_is_deleted_at_30,
    the_warning_always_comes_7_days_before_the_deletion,
    a_redrive_cancels_the_warning,
    a_changed_retention_applies_to_existing_failures,
    nothing_is_deleted_while_the_store_is_in_doubt,
    a_file_that_fails_every_time_does_not_stop_the_others,
}
