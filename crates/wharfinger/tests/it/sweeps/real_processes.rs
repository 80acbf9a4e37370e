//! Real processes with sweeper and worker roles, in real time, with short windows and sweeps every second. They start
//! with faults of every kind. One process is killed, and the other repairs each item once.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::cli::program::{Place, Served};
use crate::oracle;
use crate::pipeline::told;
use crate::test_app::{Client, Database, TestApp, TestEnv};

const TIMEOUT: Duration = Duration::from_secs(120);
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

/// Writes an orphan object that is a day old.
fn plant_orphan(env: &TestEnv) {
    let path = env.blob_dir().join("uploads/t/u/00000000-0000-7000-8000-000000000001");
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("the parent folder");
    std::fs::write(&path, b"unknown").expect("an object");
    let file = std::fs::File::options().write(true).open(&path).expect("the object");
    file.set_modified(SystemTime::now() - Duration::from_secs(86_400)).expect("the time is set");
    // A marker that is older than the orphan: without it the object would count as foreign.
    let path = env.blob_dir().join(".wharfinger/store");
    let marker = std::fs::read_to_string(&path).expect("a marker");
    let words: Vec<&str> = marker.split_whitespace().collect();
    std::fs::write(&path, format!("{} 1\n", words[..3].join(" "))).expect("an older marker");
}

async fn is_repaired(server: &TestApp, me: &Client<'_>, batch: &str, kept: u64) -> bool {
    let cleanups = server.operator().get("/api/v1/maintenance/cleanup/status").await.expect(200);
    let files = me.get("/api/v2/files?limit=1000").await.expect(200);
    let files = files["files"].as_array().expect("a list");
    let orphans = server.operator().get("/api/v2/uploads/orphans").await.expect(200);
    let batch = me.get(&format!("/api/v2/batches/{batch}")).await;
    files.len() as u64 == kept
        && batch.body["status"] == "expired"
        && files.iter().all(|file| file["status"] == "ready")
        && cleanups["pending"] == 0
        && orphans["lastScanTime"].is_string()
        && orphans["orphanBlobs"]["count"] == 0
}

async fn the_remaining_process_repairs_everything(database: Database) {
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
    plant_orphan(&env);
    env.execute("UPDATE quotas SET used_bytes = used_bytes + 1000").await;

    let place = Place::new();
    let (killed, survivor) = (process(&place, &env, "killed"), process(&place, &env, "survivor"));
    tokio::time::sleep(Duration::from_millis(9_000)).await;
    killed.signal("KILL");
    killed.wait();
    let started = Instant::now();
    let batch = batch["batchId"].as_str().expect("an id");
    while !is_repaired(&server, &me, batch, 3).await {
        assert!(started.elapsed() < TIMEOUT, "not repaired in time: {}", me.get("/api/v2/files").await.body);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(survivor.terminate().success());
    let history = me.get(&format!("/api/v2/files/{lost}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    let recovered = events.iter().filter(|event| event["actor"] == "stuck-file-recovery").count();
    assert!(recovered >= 1, "{events:?}");
    assert_eq!(me.file(&lost).await["retryCount"], recovered, "each recovery is counted once: {events:?}");
    me.get(&format!("/api/v2/files/{broken}")).await.expect_problem(410, "gone");
    let notifications = told(&me).await;
    let count = |kind: &str| notifications.iter().filter(|one| one["kind"] == kind).count();
    assert_eq!((count("batch-expired"), count("file-deletion-warning"), count("file-failed")), (1, 1, 1));
    assert_eq!(
        count("file-cleaned-up"),
        4,
        "three uploads and one failed file, each once: {notifications:?}"
    );
    assert_eq!(count("file-ready"), 3);
    oracle::all_is_healed(&env, &server).await;
}

crate::test_app::on_each_database!(the_remaining_process_repairs_everything);
