//! Text, chunks and vectors are limited by the size of the file. The rest is cut, and the file is marked as truncated.

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::{ALL, chunks};
use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database};

/// Bytes of text, of chunks and of vectors.
async fn derived_bytes(env: &TestEnv) -> i64 {
    env.scalar(
        "SELECT CAST(COALESCE((SELECT SUM(bytes) FROM text_parts), 0) \
             + COALESCE((SELECT SUM(LENGTH(text) + COALESCE(LENGTH(vector), 0)) FROM chunks), 0) AS BIGINT)",
    )
    .await
}

async fn text_above_the_limit_is_cut(database: Database) {
    let limits = [("DERIVED_MAX_FACTOR", "1"), ("DERIVED_MIN_BYTES", "4000")];
    let env = TestEnv::with_stages(database, ALL, &limits);
    let server = env.start().await;
    let me = server.me();
    let text = "Forty crates of coffee were signed for. ".repeat(500);
    let (long, short) =
        (me.enqueue("long.txt", text.as_bytes()).await, me.enqueue("short.txt", b"short").await);
    server.settle().await;
    let (long_file, short_file) = (me.file(&long).await, me.file(&short).await);
    assert_eq!((&long_file["status"], &long_file["textTruncated"]), (&json!("ready"), &json!(true)));
    assert_eq!((&short_file["status"], &short_file["textTruncated"]), (&json!("ready"), &Value::Null));
    let kept: usize =
        chunks(&me, &long).await.iter().map(|chunk| chunk["text"].as_str().map_or(0, str::len)).sum();
    assert!(kept > 3_000, "the start of the text is kept: {kept}");
    let derived = derived_bytes(&env).await;
    assert!(derived <= text.len() as i64 + 4_000, "{derived} bytes of {}", text.len());
    oracle::all_is_healed(&env, &server).await;
}

/// An external worker completes a stage of the next file.
async fn step(worker: &Client<'_>, stage: &str, output: Value) -> Value {
    let leased = worker.post("/api/v2/workers/lease", json!({ "stages": [stage] })).await.expect(200);
    let job = &leased["jobs"][0];
    let body = json!({ "leaseToken": job["leaseToken"], "output": output });
    let path = format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str().expect("an id"));
    worker.post(&path, body).await.expect(200)
}

async fn outputs_of_external_workers_are_limited_too(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    let file = me.enqueue("tiny", b"tiny").await;
    step(&worker, "scan", json!({ "verdict": "clean" })).await;
    step(&worker, "extract", json!({ "text": "word ".repeat(1 << 20) })).await;
    let many: Vec<Value> =
        (0..5_000).map(|n| json!({ "text": "x".repeat(1_000), "start": n, "end": n + 1 })).collect();
    step(&worker, "chunk", json!({ "chunks": many })).await;
    let count = env.scalar("SELECT COUNT(*) FROM chunks").await;
    assert!(count > 100 && count < 1_000, "{count}");
    step(&worker, "embed", json!({ "vectors": vec![json!([1.0, 0.0]); count as usize] })).await;
    let file = me.file(&file).await;
    assert_eq!((&file["status"], &file["textTruncated"]), (&json!("ready"), &json!(true)));
    let derived = derived_bytes(&env).await;
    assert!(derived <= 1 << 20, "{derived} bytes of 4");
    oracle::all_is_healed(&env, &server).await;
}

/// An external worker chooses the length of its vectors. A NUL is stored as a character of three bytes.
async fn long_vectors_and_nul_characters_count_too(database: Database) {
    let settings = [("PIPELINE_BUILTIN_STAGES", ""), ("DERIVED_MIN_BYTES", "60000")];
    let env = TestEnv::with_stages(database, ALL, &settings);
    let server = env.start().await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    let file = me.enqueue("tiny", b"tiny").await;
    step(&worker, "scan", json!({ "verdict": "clean" })).await;
    step(&worker, "extract", json!({ "text": "\0".repeat(60_000) })).await;
    let text = env.scalar("SELECT CAST(SUM(bytes) AS BIGINT) FROM text_parts").await;
    assert!(text > 10_000 && derived_bytes(&env).await <= 60_000, "{text}");
    let many: Vec<Value> = (0..20).map(|n| json!({ "text": "\0\0\0", "start": n, "end": n + 1 })).collect();
    step(&worker, "chunk", json!({ "chunks": many })).await;
    let vectors = vec![vec![1.0; 1_024]; 20];
    step(&worker, "embed", json!({ "vectors": vectors })).await;
    let derived = derived_bytes(&env).await;
    assert!(derived > 30_000 && derived <= 60_000, "{derived} bytes of 4");
    let file = me.file(&file).await;
    assert_eq!((&file["status"], &file["textTruncated"]), (&json!("ready"), &json!(true)));
    oracle::all_is_healed(&env, &server).await;
}

/// The minimum per file applies only to as many files as fit into the tenant's quota at that size.
async fn the_derived_data_of_many_small_files_is_limited(database: Database) {
    let stages = [("DEFAULT_TENANT_QUOTA_BYTES", "100000"), ("DERIVED_MIN_BYTES", "20000")];
    let env = TestEnv::with_stages(database, "scan,extract", &stages);
    let server = env.start_but("PIPELINE_BUILTIN_STAGES", "scan").await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    for n in 0..8 {
        me.enqueue(&format!("{n}"), b"tiny").await;
    }
    server.settle().await;
    for _ in 0..8 {
        step(&worker, "extract", json!({ "text": "word ".repeat(4_000) })).await;
    }
    let derived = derived_bytes(&env).await;
    assert!(derived > 8 * 4_000 && derived <= 100_000, "{derived} bytes");
    oracle::all_is_healed(&env, &server).await;
}

on_each_database! {
    text_above_the_limit_is_cut,
    outputs_of_external_workers_are_limited_too,
    long_vectors_and_nul_characters_count_too,
    the_derived_data_of_many_small_files_is_limited,
}
