//! Quarantined files that an operator releases, because the scan was wrong or the object was restored.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::{ALL, chunks, eicar, statuses, told};
use crate::oracle;
use crate::test_app::{Answer, Client, Database, TestApp, TestEnv, on_each_database};
use crate::uploads::{id, sha256};

const REASON: &str = "false alarm: signature 4711 was withdrawn";

async fn release(client: &Client<'_>, file: &str) -> Answer {
    client.post(&format!("/api/v2/files/{file}/release"), json!({ "reason": REASON })).await
}

async fn infected(server: &TestApp) -> String {
    let file = server.me().enqueue("invoice.txt", &eicar()).await;
    server.settle().await;
    assert_eq!(server.me().file(&file).await["status"], "quarantined");
    file
}

async fn a_released_file_continues_after_its_scan(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[]);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    let file = infected(&server).await;
    for client in [&me, &server.as_user("t", "boss", Role::Admin)] {
        release(client, &file).await.expect_problem(403, "forbidden");
    }
    let path = format!("/api/v2/files/{file}/release");
    for body in [json!({}), json!({ "reason": " \n" }), json!({ "reason": "x".repeat(1_001) })] {
        let problem = operator.post(&path, body).await.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], "reason", "{problem}");
    }
    let unknown = "018f4e6e-7f3a-7000-8000-000000000001";
    release(&operator, unknown).await.expect_problem(404, "not_found");
    assert_eq!(me.file(&file).await["status"], "quarantined");

    let answer = release(&operator, &file).await.expect(200);
    assert_eq!(answer, json!({ "fileId": file, "status": "queued" }));
    let problem = release(&operator, &file).await.expect_problem(409, "not_quarantined");
    assert_eq!(problem["fileStatus"], "queued");
    let log = operator.get("/api/v2/maintenance/audit").await.expect(200);
    let [entry] = &log["entries"].as_array().expect("a list")[..] else { panic!("one entry: {log}") };
    let logged = (&entry["action"], &entry["tenant"], &entry["subject"], &entry["detail"]["reason"]);
    assert_eq!(logged, (&json!("file-released"), &json!("t"), &json!(file), &json!(REASON)));
    server.settle().await;
    let ready = me.file(&file).await;
    assert_eq!((&ready["status"], &ready["error"]), (&json!("ready"), &Value::Null), "{ready}");
    let expected = "registered uploaded queued scanning quarantined queued extracting queued chunking queued \
                    embedding ready";
    assert_eq!(statuses(&me, &file).await.join(" "), expected, "it is not scanned again");
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    let released = &history["events"][5];
    assert_eq!(released["reason"], format!("released: {REASON}; extract queued"));
    assert!(released["actor"].as_str().expect("an actor").starts_with("operator:"), "{released}");
    assert!(!chunks(&me, &file).await.is_empty());
    me.get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    let mut kinds: Vec<String> = told(&me).await.iter().map(|told| told["kind"].to_string()).collect();
    // Both have the same time, because the clock does not move.
    kinds.sort();
    assert_eq!(kinds, ["\"file-quarantined\"", "\"file-ready\""]);
    oracle::all_is_healed(&env, &server).await;

    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    release(&operator, &file).await.expect_problem(404, "not_found");
}

async fn without_a_stage_after_the_scan_it_is_ready(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let file = infected(&server).await;
    let answer = release(&server.operator(), &file).await.expect(200);
    assert_eq!(answer["status"], "ready");
    let problem = release(&server.operator(), &file).await.expect_problem(409, "not_quarantined");
    assert_eq!(problem["fileStatus"], "ready");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM jobs").await, 0);
    server.me().get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    oracle::all_is_healed(&env, &server).await;
}

const BYTES: &[u8] = b"forty crates of coffee";
const OTHERS: &[u8] = b"forty crates of poison";

/// Replaces the object. The modification time and so the ETag changes, as in a restore.
fn replace(env: &TestEnv, file: &str, bytes: &[u8], age_s: u64) {
    let path = env.blob_dir().join("uploads/t/u").join(file);
    std::fs::write(&path, bytes).expect("written");
    let object = std::fs::File::options().write(true).open(path).expect("the object");
    object.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(age_s)).expect("a time");
}

async fn enqueued_with_checksum(server: &TestApp) -> String {
    let body = json!({
        "fileName": "cargo.txt", "size": BYTES.len(), "contentType": "text/plain", "checksumSha256": sha256(BYTES),
    });
    let grant = server.me().post("/api/v2/files/init", body).await.expect(201);
    server.put_bytes(&grant, BYTES).await.expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    id(&grant)
}

/// Other bytes must never be served or processed.
async fn a_changed_file_is_released_only_with_its_confirmed_bytes(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[]);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    let file = enqueued_with_checksum(&server).await;
    server.settle().await;
    replace(&env, &file, OTHERS, 1_000);
    let download = format!("/api/v2/files/{file}/download");
    me.get(&download).await.expect_problem(409, "quarantined");
    for _ in 0..2 {
        let problem = release(&operator, &file).await.expect_problem(409, "object_changed");
        assert!(problem["detail"].as_str().expect("a detail").contains("Restore"), "{problem}");
    }
    let object = env.blob_dir().join("uploads/t/u").join(&file);
    let moved = env.folder().join("moved");
    std::fs::rename(&object, &moved).expect("moved");
    release(&operator, &file).await.expect_problem(409, "object_missing");
    std::fs::rename(&moved, &object).expect("moved back");
    assert_eq!(me.file(&file).await["status"], "quarantined");

    // Restored, with another ETag: the checksum proves the bytes.
    replace(&env, &file, BYTES, 2_000);
    assert_eq!(release(&operator, &file).await.expect(200)["status"], "ready");
    me.get(&download).await.expect(302);
    assert_eq!(me.file(&file).await["status"], "ready");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM jobs").await, 0, "all stages were done before");
    assert!(!chunks(&me, &file).await.is_empty());
    oracle::all_is_healed(&env, &server).await;
}

/// It is scanned, because the scan did not end before.
async fn a_file_that_changed_before_its_scan_is_scanned_after_its_release(database: Database) {
    let env = TestEnv::with_stages(database, "scan,extract", &[]);
    let server = env.start().await;
    let me = server.me();
    let file = enqueued_with_checksum(&server).await;
    replace(&env, &file, OTHERS, 1_000);
    server.settle().await;
    assert_eq!(me.file(&file).await["status"], "quarantined");
    replace(&env, &file, BYTES, 2_000);
    assert_eq!(release(&server.operator(), &file).await.expect(200)["status"], "queued");
    server.settle().await;
    let expected = "registered uploaded queued scanning quarantined queued scanning queued extracting ready";
    assert_eq!(statuses(&me, &file).await.join(" "), expected);
    oracle::all_is_healed(&env, &server).await;
}

/// Without a checksum, only the ETag of the confirm proves the bytes.
async fn without_a_checksum_a_restored_file_is_not_released(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    let file = me.upload("cargo", BYTES).await;
    let object = env.blob_dir().join("uploads/t/u").join(&file);
    let moved = env.folder().join("moved");
    std::fs::rename(&object, &moved).expect("moved");
    replace(&env, &file, OTHERS, 1_000);
    let download = format!("/api/v2/files/{file}/download");
    me.get(&download).await.expect_problem(409, "quarantined");
    replace(&env, &file, BYTES, 2_000);
    release(&operator, &file).await.expect_problem(409, "object_changed");
    // The object of the confirm itself, with its time.
    std::fs::rename(&moved, &object).expect("moved back");
    assert_eq!(release(&operator, &file).await.expect(200)["status"], "ready");
    me.get(&download).await.expect(302);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database! {
    a_released_file_continues_after_its_scan,
    without_a_stage_after_the_scan_it_is_ready,
    a_changed_file_is_released_only_with_its_confirmed_bytes,
    a_file_that_changed_before_its_scan_is_scanned_after_its_release,
    without_a_checksum_a_restored_file_is_not_released,
}
