//! The sweeps as operators see them: run by the schedule or by hand, dry or not, and what they leave behind.

mod abandoned_uploads;
mod by_hand;
mod growth;
mod old_failures;
mod orphans;
mod real_processes;
mod stuck_calls;
pub mod stuck_files;

use serde_json::{Value, json};

use crate::test_app::{Answer, TestApp};

pub const DAY_MS: i64 = 86_400_000;

/// Asks for a sweep by the API.
pub async fn ask(server: &TestApp, name: &str, dry_run: bool) -> Answer {
    let path = format!("/api/v2/maintenance/sweeps/{name}/run");
    server.operator().post(&path, json!({ "dryRun": dry_run })).await
}

/// Runs a sweep by the API, without errors; answers what it found and did.
pub async fn sweep(server: &TestApp, name: &str) -> Value {
    let ran = ask(server, name, false).await.expect(200);
    assert_eq!(ran["error"], Value::Null, "{ran}");
    ran["result"].clone()
}

/// The same, finding everything and changing nothing.
pub async fn dry_run(server: &TestApp, name: &str) -> Value {
    let ran = ask(server, name, true).await.expect(200);
    assert_eq!((&ran["error"], &ran["dryRun"]), (&Value::Null, &json!(true)), "{ran}");
    ran["result"].clone()
}
