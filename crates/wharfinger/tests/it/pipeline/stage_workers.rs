//! Files that wait for a stage without a worker are reported by `/readyz`, the metrics and `doctor`.

use serde_json::{Value, json};
use wharfinger::core::Role;

use crate::test_app::{Database, METRICS, TestApp, TestEnv, on_each_database};

async fn warnings(env: &TestEnv, server: &TestApp) -> Vec<String> {
    // An answer is used again for a second.
    env.advance(1_000);
    let answer = server.http.get(format!("{}/readyz", server.url)).send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "the process is ready all the same");
    let body: Value = serde_json::from_str(&answer.text().await.expect("a text")).expect("JSON");
    let warnings = body["warnings"].as_array().expect("a list").iter();
    warnings.map(|warning| warning.as_str().expect("a text").to_owned()).collect()
}

async fn a_stage_without_a_worker_is_reported_after_a_minute(database: Database) {
    wharfinger::telemetry::prometheus();
    let env = TestEnv::with_stages(database, "scan,extract", &[("PIPELINE_BUILTIN_STAGES", "extract")]);
    let server = env.start().await;
    let me = server.me();
    let worker = server.as_user("ops", "scanner", Role::Worker);
    let ask = async |stage: &str| {
        worker.post("/api/v2/workers/lease", json!({ "stages": [stage], "max": 1 })).await.expect(200)
    };
    let file = me.enqueue("a.txt", b"one").await;
    server.settle().await;
    env.advance(57_000);
    assert_eq!(warnings(&env, &server).await, Vec::<String>::new());
    env.advance(2_000);
    let found = warnings(&env, &server).await;
    let [warning] = found.as_slice() else { panic!("one warning, not {found:?}") };
    assert!(warning.starts_with("no worker has asked for jobs of the stage scan yet"), "{warning}");
    {
        let _guard = METRICS.lock().await;
        let metrics = server.metrics().await;
        let is_shown = |line: &str| metrics.lines().any(|shown| shown == line);
        assert!(is_shown("wharfinger_stage_without_worker{stage=\"scan\"} 1"), "{metrics}");
        assert!(is_shown("wharfinger_stage_without_worker{stage=\"extract\"} 0"), "{metrics}");
    }
    // The clock of this command is far ahead, so no worker has been there for a long time.
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_wharfinger"));
    let output = program.arg("doctor").env_clear().envs(env.environment()).output().await.expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("FAIL stages     no worker has asked for jobs of the stage scan yet"), "{text}");

    let leased = ask("scan").await;
    assert_eq!(leased["jobs"][0]["fileId"], file.as_str());
    assert_eq!(warnings(&env, &server).await, Vec::<String>::new());
    // This worker is busy or gone. Another file waits.
    me.enqueue("b.txt", b"two").await;
    env.advance(27_000);
    ask("extract").await;
    assert_eq!(warnings(&env, &server).await, Vec::<String>::new());
    env.advance(31_000);
    let found = warnings(&env, &server).await;
    assert!(found[0].starts_with("no worker has asked for jobs of the stage scan since 20"), "{found:?}");
    // A worker that asks and finds nothing counts too.
    ask("scan").await;
    env.advance(30_000);
    assert_eq!(warnings(&env, &server).await, Vec::<String>::new());
}

on_each_database!(a_stage_without_a_worker_is_reported_after_a_minute);
