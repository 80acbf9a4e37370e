//! Valid and invalid calls that Schemathesis generates from the OpenAPI document. None may cause a server error.

use std::time::Duration;

use wharfinger::core::Role;

use crate::test_app::{Database, TestEnv};

/// Examples per operation and phase. The calls are the same in every run.
const EXAMPLES: &str = "10";
/// This call sends events until the client disconnects.
const ENDLESS: &str = "/api/v2/stream";
const TIME_LIMIT: Duration = Duration::from_secs(600);

async fn calls_as(role: Role) {
    let env = TestEnv::with_stages(Database::Sqlite, "scan,extract,chunk,embed", &[]);
    let server = env.start().await;
    // Files that the calls can use.
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
    let output =
        tokio::time::timeout(TIME_LIMIT, running).await.expect("it ends in time").expect("not cancelled");
    let output = output.expect("python3 runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    println!("{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_generated_call_of_an_operator_is_a_server_error() {
    calls_as(Role::Operator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_generated_call_of_a_user_is_a_server_error() {
    calls_as(Role::User).await;
}
