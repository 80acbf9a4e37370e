//! Calls that Schemathesis makes up from the OpenAPI document, right and wrong ones: no answer is a server error.

use std::time::Duration;

use wharfinger::core::Role;

use crate::test_app::{Database, TestEnv};

/// For one operation and one phase. Beyond that a run is deterministic: the same calls every time.
const EXAMPLES: &str = "10";
/// It sends events until the client hangs up.
const ENDLESS: &str = "/api/v2/stream";
const PATIENCE: Duration = Duration::from_secs(600);

async fn calls_as(role: Role) {
    let env = TestEnv::with_stages(Database::Sqlite, "scan,extract,chunk,embed", &[]);
    let server = env.start().await;
    // Something to find, to fail and to delete.
    for name in ["one.txt", "two.txt"] {
        server.me().enqueue(name, b"text").await;
    }
    server.settle().await;
    let mut schemathesis = harness::schemathesis::run();
    schemathesis
        .arg(format!("{}/openapi.json", server.url))
        .args(["--header", &format!("Authorization: Bearer {}", server.token("t", "u", role))])
        .args(["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"])
        .args(["--exclude-path", ENDLESS, "--max-examples", EXAMPLES])
        .args(["--generation-deterministic", "--continue-on-failure"])
        .args(["--suppress-health-check", "all", "--warnings", "off", "--request-timeout", "60"])
        .current_dir(env.folder());
    let running = tokio::task::spawn_blocking(move || schemathesis.output());
    let output = tokio::time::timeout(PATIENCE, running).await.expect("it ends").expect("not cancelled");
    let output = output.expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_generated_call_of_an_operator_is_a_server_error() {
    calls_as(Role::Operator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_generated_call_of_a_user_is_a_server_error() {
    calls_as(Role::User).await;
}
