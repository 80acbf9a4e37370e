//! One bad night, played through. Afterwards the logs, the deletion log, the run history, the metrics and the figures of the
//! page tell the same story with the same numbers.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;
use wharfinger::core::Role;

use crate::pipeline::eicar;
use crate::test_app::{Client, Database, METRICS, TestEnv};
use crate::uploads::id;

/// A tenant of this test only: all tests of the process share the metrics.
const TENANT: &str = "night";
const ORPHAN: &str = "01977420-dc00-7639-b4cc-0216978d32b7";

/// The log lines of this test's thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Log {
    type Writer = Log;

    fn make_writer(&'w self) -> Log {
        self.clone()
    }
}

impl Log {
    fn lines(&self, message: &str) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON line"));
        lines.filter(|line| line["message"] == message).collect()
    }

    /// The only line with this message.
    fn line(&self, message: &str) -> Value {
        let lines = self.lines(message);
        let [line] = lines.as_slice() else { panic!("one line `{message}`, not {lines:#?}") };
        line.clone()
    }
}

async fn run(operator: &Client<'_>, sweep: &str) -> Value {
    let path = format!("/api/v2/maintenance/sweeps/{sweep}/run");
    operator.post(&path, json!({})).await.expect(200)["result"].clone()
}

/// Set in the process that plays the night. Logs and metrics belong to a process, so other tests would change them.
const ALONE: &str = "WHARFINGER_TEST_ALONE";

fn play_in_another_process() {
    let this = std::env::current_exe().expect("this test binary");
    let mut alone = std::process::Command::new(this);
    let output = alone.args(["night::everything_tells_the_same_story", "--exact"]).env(ALONE, "1").output();
    let output = output.expect("it runs");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{error}");
}

#[tokio::test]
async fn everything_tells_the_same_story() {
    if std::env::var_os(ALONE).is_none() {
        return play_in_another_process();
    }
    wharfinger::telemetry::prometheus();
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);

    let settings = [
        ("ORPHAN_BLOB_GRACE_MS", "0"),
        ("ORPHAN_DELETE_LIMIT_PERCENT", "0"),
        ("BATCH_TIMEOUT_MS", "7200000"),
    ];
    let env = TestEnv::with_stages(Database::Sqlite, "scan", &settings);
    let server = env.start().await;
    let me = server.as_user(TENANT, "u", Role::User);
    let operator = server.as_user("ops", "olga", Role::Operator);
    let object = |name: &str| env.blob_dir().join("uploads").join(TENANT).join("u").join(name);

    // The evening: one file is ready, one is infected.
    me.enqueue("good.txt", b"fine").await;
    let infected = me.enqueue("infected.com", &eicar()).await;
    let undeletable = me.enqueue("undeletable.txt", b"stays").await;
    server.settle().await;
    assert_eq!(me.file(&infected).await["status"], "quarantined");
    // A file loses its job, a batch loses its client, a delete fails, and two objects have no file.
    let stuck = me.enqueue("stuck.txt", b"where is my job").await;
    env.execute("DELETE FROM jobs WHERE file_id = (SELECT id FROM files WHERE file_name = 'stuck.txt')")
        .await;
    let files =
        json!({ "files": [{ "fileName": "kept.txt", "size": 4 }, { "fileName": "lost.txt", "size": 9 }] });
    let batch = me.post("/api/v2/batches", files).await.expect(201);
    server.put_bytes(&batch["files"][0], b"kept").await.expect(200);
    let (kept, lost) = (id(&batch["files"][0]), id(&batch["files"][1]));
    std::fs::remove_file(object(&undeletable)).expect("the object was there");
    std::fs::create_dir_all(object(&undeletable).join("x")).expect("a folder in its place");
    me.delete(&format!("/api/v2/files/{undeletable}")).await.expect(204);
    std::fs::write(object(ORPHAN), b"orphan").expect("an orphan");
    std::fs::write(object("notes.txt"), b"of another program").expect("a foreign object");

    // The night.
    env.advance(3 * 3_600_000);
    let scan = operator.post("/api/v2/uploads/orphans/scan", json!({})).await.expect(200);
    assert_eq!(scan["result"]["orphanBlobs"]["total"], 1, "{scan}");
    let found = operator.get("/api/v2/uploads/orphans").await.expect(200);
    let key = format!("uploads/{TENANT}/u/{ORPHAN}");
    assert_eq!(found["orphanBlobs"]["samples"], json!([key]), "what would go is shown before it goes");
    assert!(object(ORPHAN).exists());
    let stuck_result = run(&operator, "stuck-file-recovery").await;
    let batch_result = run(&operator, "batch-timeout").await;
    let orphan_result = run(&operator, "orphan-cleanup").await;
    let cleanup_result = run(&operator, "pending-cleanups").await;
    let expected = json!({ "totalStuck": 1, "reEnqueued": 1, "permanentlyFailed": 0 });
    for (name, count) in expected.as_object().expect("an object") {
        assert_eq!(stuck_result[name], *count, "{stuck_result}");
    }
    assert_eq!((&batch_result["rescued"], &batch_result["deletedFiles"]), (&json!(1), &json!(1)));
    assert_eq!(orphan_result["orphanBlobs"]["total"], 1);
    assert_eq!(orphan_result["orphanBlobs"]["foreign"], 1);
    assert!(cleanup_result["failed"].as_u64() <= Some(1), "{cleanup_result}");

    // The morning. The files: ready again, kept, gone, and untouched.
    server.settle().await;
    for file in [&stuck, &kept] {
        assert_eq!(me.file(file).await["status"], "ready");
    }
    me.get(&format!("/api/v2/files/{lost}")).await.expect_problem(410, "gone");
    assert!(!object(ORPHAN).exists() && object("notes.txt").exists());

    // The run history and the logs have the results of the runs.
    for (sweep, result) in [
        ("stuck-file-recovery", &stuck_result),
        ("batch-timeout", &batch_result),
        ("orphan-cleanup", &orphan_result),
    ] {
        let runs = operator.get(&format!("/api/v2/maintenance/sweeps/{sweep}/runs")).await.expect(200);
        let by_hand = runs["runs"].as_array().expect("a list").iter();
        let by_hand = by_hand.filter(|run| run["by"] == "operator:olga" && run["dryRun"] == false);
        let results: Vec<&Value> = by_hand.map(|run| &run["result"]).collect();
        assert_eq!(results, [result], "{runs}");
        let finished = log.lines("sweep finished").into_iter().filter(|line| line["job"] == sweep);
        let is_shown = |line: &Value| match sweep {
            "stuck-file-recovery" => line["reEnqueued"] == 1 && line["totalStuck"] == 1,
            "batch-timeout" => line["rescued"] == 1 && line["deletedFiles"] == 1,
            _ => {
                line["orphanBlobs.total"] == 1 && line["orphanBlobs.foreign"] == 1 && line["dryRun"] == false
            }
        };
        assert_eq!(finished.filter(is_shown).count(), 1, "{sweep}: {:#?}", log.lines("sweep finished"));
    }
    let requeued = log.line("stuck file requeued");
    assert_eq!((&requeued["fileName"], &requeued["retryCount"]), (&json!("stuck.txt"), &json!(1)));
    assert_eq!(requeued["stuckDuration"], 3 * 3_600_000);
    assert_eq!(log.line("unconfirmed upload confirmed")["fileId"], kept.as_str());
    assert_eq!(log.line("unconfirmed upload reclaimed")["fileId"], lost.as_str());
    let expired = log.line("batch expired");
    assert_eq!((&expired["rescued"], &expired["deletedFiles"]), (&json!(1), &json!(1)));
    let refused = log.lines("cannot delete an object, trying again later");
    let undeletable_key = format!("uploads/{TENANT}/u/{undeletable}");
    assert!(!refused.is_empty() && refused.iter().all(|line| line["blobPath"] == undeletable_key.as_str()));

    // Each deleted object has one line in the log and one in the deletion log.
    let deletions = operator.get("/api/v2/maintenance/deletions").await.expect(200);
    let mut deleted: Vec<Value> = deletions["deletions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| json!([line["key"], line["reason"], line["sweep"]]))
        .collect();
    deleted.sort_by_key(Value::to_string);
    let lost_key = format!("uploads/{TENANT}/u/{lost}");
    let mut all =
        [json!([key, "orphan_blob", "orphan-cleanup"]), json!([lost_key, "reclaimed", "batch-timeout"])];
    all.sort_by_key(Value::to_string);
    assert_eq!(deleted, all);
    let mut logged: Vec<Value> =
        log.lines("object deleted").iter().map(|line| line["blobPath"].clone()).collect();
    logged.sort_by_key(Value::to_string);
    let mut keys = [json!(key), json!(lost_key)];
    keys.sort_by_key(Value::to_string);
    assert_eq!(logged, keys);

    // The figures of the page, and the metrics.
    let figures = operator.get("/api/v2/uploads/dashboard").await.expect(200);
    let statuses = &figures["statusDistribution"];
    assert_eq!((&statuses["ready"], &statuses["quarantined"]), (&json!(3), &json!(1)), "{figures}");
    assert_eq!((&figures["stuckFiles"], &figures["activeBatches"]), (&json!(0), &json!(0)));
    let found = operator.get("/api/v2/uploads/orphans").await.expect(200);
    assert_eq!((&found["orphanBlobs"]["count"], &found["missingBlobs"]["count"]), (&json!(0), &json!(0)));
    assert_eq!(found["abandonedUploads"]["oldestAge"], 0);
    let cleanups = operator.get("/api/v1/maintenance/cleanup/status").await.expect(200);
    assert_eq!(cleanups["pending"], 1, "the delete that fails is still there: {cleanups}");
    let expected = [
        format!("resource_orphaned_files_cleaned_total{{tenant_id=\"{TENANT}\"}} 1"),
        format!("resource_quota_refunded_bytes_total{{tenant_id=\"{TENANT}\"}} 9"),
        "file_pipeline_status{status=\"quarantined\"} 1".to_owned(),
        "pending_cleanups{state=\"pending\"} 1".to_owned(),
    ];
    // Another test may scrape at the same time, so this tries several times. The number of tenants with a label is bounded, and
    // other tests may have used all of them.
    let _guard = METRICS.lock().await;
    let mut missing = Vec::new();
    for _ in 0..20 {
        let metrics = server.metrics().await;
        let has_label = metrics.contains(&format!("tenant_id=\"{TENANT}\""));
        let is_expected = |line: &&String| has_label || !line.contains("tenant_id");
        let is_missing = |line: &&String| !metrics.lines().any(|shown| shown == line.as_str());
        missing = expected.iter().filter(is_expected).filter(is_missing).collect();
        if missing.is_empty() {
            break;
        }
    }
    assert!(missing.is_empty(), "{missing:?} not in {}", server.metrics().await);
}
