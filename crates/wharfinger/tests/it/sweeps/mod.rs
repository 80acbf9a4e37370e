//! Sweeps as operators see them: on schedule, manual and as a dry run. Also tests what each sweep deletes and keeps.

mod abandoned_uploads;
mod deletions;
mod history;
mod manual_runs;
mod old_failures;
mod old_quarantine;
mod orphans;
mod real_processes;
mod retention;
pub mod stuck_files;
mod stuck_files_api;

use serde_json::{Value, json};

use crate::test_app::{Answer, TestApp};

pub const DAY_MS: i64 = 86_400_000;

/// Starts a sweep through the API.
pub async fn run_sweep(server: &TestApp, name: &str, dry_run: bool) -> Answer {
    let path = format!("/api/v2/maintenance/sweeps/{name}/run");
    server.operator().post(&path, json!({ "dryRun": dry_run })).await
}

/// Runs a sweep through the API, expects no error and returns its result.
pub async fn sweep(server: &TestApp, name: &str) -> Value {
    let ran = run_sweep(server, name, false).await.expect(200);
    assert_eq!(ran["error"], Value::Null, "{ran}");
    ran["result"].clone()
}

/// Like [`sweep`], as a dry run.
pub async fn dry_run(server: &TestApp, name: &str) -> Value {
    let ran = run_sweep(server, name, true).await.expect(200);
    assert_eq!((&ran["error"], &ran["dryRun"]), (&Value::Null, &json!(true)), "{ran}");
    ran["result"].clone()
}
