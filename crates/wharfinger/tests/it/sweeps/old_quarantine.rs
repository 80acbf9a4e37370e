//! Quarantined files are deleted like old failures: after a retention, with one warning in time (I12).

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::{DAY_MS, dry_run, run_sweep, sweep};
use crate::oracle;
use crate::pipeline::told;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const NAME: &str = "orphan-cleanup";

fn env(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
    TestEnv::with_stages(database, "scan", &[&[("PIPELINE_BUILTIN_STAGES", "")], settings].concat())
}

/// An outside worker finds something in a new file.
pub async fn infected(server: &TestApp, bytes: &[u8]) -> String {
    let file = server.me().enqueue("cargo", bytes).await;
    let worker = server.as_user("ops", "w", Role::Worker);
    let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
    let job = &lease["jobs"][0];
    let path = format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str().expect("a job"));
    let output = json!({ "verdict": "infected", "signature": "Worm" });
    let body = json!({ "leaseToken": job["leaseToken"], "output": output });
    assert_eq!(worker.post(&path, body).await.expect(200)["status"], "quarantined");
    file
}

fn counts(result: &Value) -> (u64, u64) {
    let number = |name: &str| result["oldFailures"][name].as_u64().expect("a number");
    (number("warnings"), number("deleted"))
}

async fn swept(server: &TestApp) -> (u64, u64) {
    counts(&sweep(server, NAME).await)
}

async fn warnings(me: &Client<'_>) -> Vec<Value> {
    told(me).await.into_iter().filter(|told| told["kind"] == "file-deletion-warning").collect()
}

async fn a_quarantined_file_has_one_warning_at_83_days_and_is_deleted_at_90(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let me = server.me();
    let file = infected(&server, b"cargo").await;
    let deletion_date = me.file(&file).await["deletionDate"].clone();
    assert_eq!(deletion_date, "2025-09-13T15:06:40.000Z");
    env.advance(83 * DAY_MS - 1);
    assert_eq!(swept(&server).await, (0, 0), "too early for a warning");
    env.advance(1);
    assert_eq!(counts(&dry_run(&server, NAME).await), (1, 0));
    assert_eq!(swept(&server).await, (1, 0));
    let warnings = warnings(&me).await;
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0]["data"], json!({ "reason": "infected: Worm", "deletionDate": deletion_date }));
    let message = "cargo is quarantined and will be deleted after 2025-09-13T15:06:40.000Z.";
    assert_eq!(warnings[0]["message"], message);
    assert_eq!(me.file(&file).await["deletionDate"], deletion_date);
    env.advance(7 * DAY_MS - 1);
    assert_eq!(swept(&server).await, (0, 0), "the warning is less than 7 days old");
    assert_eq!(me.file(&file).await["status"], "quarantined");
    env.advance(1);
    assert_eq!(swept(&server).await, (0, 1));
    me.get(&format!("/api/v2/files/{file}")).await.expect_problem(410, "gone");
    let last = &told(&me).await[0];
    assert_eq!((&last["kind"], &last["data"]["sizeReclaimed"]), (&json!("file-cleaned-up"), &json!(5)));
    assert_eq!(last["message"], "cargo was quarantined and has been deleted.");
    let gone =
        server.operator().post(&format!("/api/v2/files/{file}/release"), json!({ "reason": "late" })).await;
    gone.expect_problem(410, "gone");
    server.settle().await;
    assert_eq!(me.used().await, 0);
    oracle::all_is_healed(&env, &server).await;
}

/// The sweep has not run for months.
async fn the_warning_always_comes_7_days_before_the_deletion(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let file = infected(&server, b"cargo").await;
    env.advance(200 * DAY_MS);
    assert_eq!(swept(&server).await, (1, 0));
    env.advance(7 * DAY_MS - 1);
    assert_eq!(swept(&server).await, (0, 0));
    assert_eq!(server.me().file(&file).await["status"], "quarantined");
    env.advance(1);
    assert_eq!(swept(&server).await, (0, 1));
    oracle::catalog_is_sound(&server).await;
}

async fn a_release_cancels_the_warning(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    let file = infected(&server, b"cargo").await;
    env.advance(83 * DAY_MS);
    assert_eq!(swept(&server).await, (1, 0));
    let path = format!("/api/v2/files/{file}/release");
    server.operator().post(&path, json!({ "reason": "a false alarm" })).await.expect(200);
    assert_eq!(server.me().file(&file).await.get("deletionDate"), None);
    env.advance(100 * DAY_MS);
    assert_eq!(swept(&server).await, (0, 0), "the file is not quarantined now");
    assert_eq!(server.me().file(&file).await["status"], "ready");
    oracle::catalog_is_sound(&server).await;
}

async fn without_a_retention_nothing_is_deleted_until_one_is_set(database: Database) {
    let first = env(database, &[("QUARANTINE_RETENTION_DAYS", "0")]);
    let server = first.start().await;
    let file = infected(&server, b"cargo").await;
    assert_eq!(server.me().file(&file).await.get("deletionDate"), None);
    first.advance(400 * DAY_MS);
    assert_eq!(swept(&server).await, (0, 0));
    server.crash().await;
    // Now it is set. The owner is still warned first.
    let env = first.also(&[("QUARANTINE_RETENTION_DAYS", "24h"), ("FAILED_FILE_WARNING_MS", "1h")]);
    let server = env.start().await;
    assert_eq!(swept(&server).await, (1, 0));
    env.advance(3_600_000 - 1);
    assert_eq!(swept(&server).await, (0, 0));
    env.advance(1);
    assert_eq!(swept(&server).await, (0, 1));
    server.me().get(&format!("/api/v2/files/{file}")).await.expect_problem(410, "gone");
    oracle::catalog_is_sound(&server).await;
}

/// I17, and a restored catalog: neither a bad row nor a doubt deletes or stops anything.
async fn one_bad_file_does_not_stop_the_others_and_a_doubt_stops_deletions(database: Database) {
    let env = env(database, &[]);
    let server = env.start().await;
    for _ in 0..3 {
        infected(&server, b"cargo").await;
        env.advance(1);
    }
    env.execute("UPDATE files SET tenant_id = '' WHERE id = (SELECT MIN(id) FROM files)").await;
    env.advance(83 * DAY_MS);
    let ran = run_sweep(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 2, "deleted": 0, "errors": 1 }));
    env.advance(7 * DAY_MS);
    server.app.core.store_is_ours.store(false, std::sync::atomic::Ordering::SeqCst);
    let ran = run_sweep(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 0, "deleted": 0, "errors": 1 }));
    server.app.core.store_is_ours.store(true, std::sync::atomic::Ordering::SeqCst);
    let ran = run_sweep(&server, NAME, false).await.expect(200);
    assert_eq!(ran["result"]["oldFailures"], json!({ "warnings": 0, "deleted": 2, "errors": 1 }));
}

on_each_database! {
    a_quarantined_file_has_one_warning_at_83_days_and_is_deleted_at_90,
    the_warning_always_comes_7_days_before_the_deletion,
    a_release_cancels_the_warning,
    without_a_retention_nothing_is_deleted_until_one_is_set,
    one_bad_file_does_not_stop_the_others_and_a_doubt_stops_deletions,
}
