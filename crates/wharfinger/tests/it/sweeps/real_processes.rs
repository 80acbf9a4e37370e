//! Real sweepers and workers by the machine's clock, with every window short and every schedule of a second: faults of all
//! kinds are there when they start, one process is killed in the middle, and all is healed, each item once.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::cli::program::{Place, Served};
use crate::oracle;
use crate::pipeline::told;
use crate::test_app::{Client, Database, TestApp, TestEnv};

const PATIENCE: Duration = Duration::from_secs(120);
const EVERY_SECOND: &str = "* * * * * *";
const SETTINGS: [(&str, &str); 19] = [
    ("UPLOAD_WINDOW_MS", "8000"),
    ("UPLOAD_GRACE_MS", "100"),
    ("UPLOAD_MIN_RATE_BYTES", "1000000000"),
    ("BATCH_TIMEOUT_MS", "10000"),
    ("ABANDONED_UPLOAD_THRESHOLD_MS", "10000"),
    ("ORPHAN_BLOB_GRACE_MS", "3600000"),
    ("ORPHAN_DELETE_LIMIT_PERCENT", "0"),
    ("FAILED_FILE_RETENTION_MS", "4000"),
    ("FAILED_FILE_WARNING_MS", "2000"),
    ("STUCK_FILE_THRESHOLD_MS", "3000"),
    ("JOB_LEASE_MS", "3000"),
    ("PIPELINE_STAGES", "extract"),
    ("CLEANUP_MAX_ATTEMPTS", "100"),
    ("UPLOAD_WINDOW_SCHEDULE", EVERY_SECOND),
    ("BATCH_TIMEOUT_SCHEDULE", EVERY_SECOND),
    ("ORPHAN_CLEANUP_SCHEDULE", EVERY_SECOND),
    ("STUCK_RECOVERY_SCHEDULE", EVERY_SECOND),
    ("CLEANUP_SWEEP_SCHEDULE", EVERY_SECOND),
    ("QUOTA_SYNC_SCHEDULE", EVERY_SECOND),
];

fn process(place: &Place, env: &TestEnv, instance: &str) -> Served {
    let mut environment: Vec<(&str, &str)> = env.environment().collect();
    environment.push(("INSTANCE_ID", instance));
    place.serve_as("worker,sweeper", &environment)
}

/// An object that no row knows, of yesterday.
fn stray(env: &TestEnv) {
    let path = env.blob_dir().join("uploads/t/u/00000000-0000-7000-8000-000000000001");
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
    std::fs::write(&path, b"flotsam").expect("an object");
    let file = std::fs::File::options().write(true).open(&path).expect("the object");
    file.set_modified(SystemTime::now() - Duration::from_secs(86_400)).expect("another time");
    // The store was ours before that.
    let path = env.blob_dir().join(".wharfinger/store");
    let mark = std::fs::read_to_string(&path).expect("a mark");
    let words: Vec<&str> = mark.split_whitespace().collect();
    std::fs::write(&path, format!("{} 1\n", words[..3].join(" "))).expect("an older mark");
}

async fn is_over(server: &TestApp, me: &Client<'_>, batch: &str, kept: u64) -> bool {
    let cleanups = server.operator().get("/api/v1/maintenance/cleanup/status").await.expect(200);
    let files = me.get("/api/v2/files?limit=1000").await.expect(200);
    let files = files["files"].as_array().expect("a list");
    let stray = server.operator().get("/api/v2/uploads/orphans").await.expect(200);
    let batch = me.get(&format!("/api/v2/batches/{batch}")).await;
    files.len() as u64 == kept
        && batch.body["status"] == "expired"
        && files.iter().all(|file| file["status"] == "ready")
        && cleanups["pending"] == 0
        && stray["lastScanTime"].is_string()
        && stray["orphanBlobs"]["count"] == 0
}

async fn all_is_healed_by_whoever_is_left(database: Database) {
    let env = TestEnv::in_real_time(database, &SETTINGS);
    let server = env.start_as("api").await;
    let me = server.me();
    for name in ["a", "b", "c"] {
        let grant = me.init(name, 3).await.expect(201);
        server.put_bytes(&grant, b"abc").await.expect(200);
    }
    let files: Vec<Value> = (1..=5).map(|size| json!({ "fileName": "part", "size": size })).collect();
    let batch = me.post("/api/v2/batches", json!({ "files": files })).await.expect(201);
    for (n, grant) in batch["files"].as_array().expect("grants").iter().enumerate().take(2) {
        server.put_bytes(grant, &b"xxxxx"[..=n]).await.expect(200);
        me.confirm(grant["fileId"].as_str().expect("an id")).await.expect(200);
    }
    let broken = me.enqueue("broken.pdf", b"%PDF-1.7 and nothing else").await;
    let lost = me.enqueue("lost.txt", b"its job is lost").await;
    assert_eq!(env.texts("DELETE FROM jobs WHERE queue = 'file-extract' RETURNING id").await.len(), 4);
    stray(&env);
    env.execute("UPDATE quotas SET used_bytes = used_bytes + 1000").await;

    let place = Place::new();
    let (victim, heir) = (process(&place, &env, "victim"), process(&place, &env, "heir"));
    tokio::time::sleep(Duration::from_millis(9_000)).await;
    victim.signal("KILL");
    victim.wait();
    let started = Instant::now();
    let batch = batch["batchId"].as_str().expect("an id");
    while !is_over(&server, &me, batch, 3).await {
        assert!(started.elapsed() < PATIENCE, "not healed in time: {}", me.get("/api/v2/files").await.body);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(heir.terminate().success());
    let history = me.get(&format!("/api/v2/files/{lost}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    let recovered = events.iter().filter(|event| event["actor"] == "stuck-file-recovery").count();
    assert!(recovered >= 1, "{events:?}");
    assert_eq!(me.file(&lost).await["retryCount"], recovered, "each time once: {events:?}");
    me.get(&format!("/api/v2/files/{broken}")).await.expect_problem(410, "gone");
    let told = told(&me).await;
    let count = |kind: &str| told.iter().filter(|told| told["kind"] == kind).count();
    assert_eq!((count("batch-expired"), count("file-deletion-warning"), count("file-failed")), (1, 1, 1));
    assert_eq!(count("file-cleaned-up"), 4, "three uploads and a failure, each once: {told:?}");
    assert_eq!(count("file-ready"), 3);
    oracle::all_is_healed(&env, &server).await;
}

crate::test_app::on_each_database!(all_is_healed_by_whoever_is_left);
