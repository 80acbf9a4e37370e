//! A restore changes the modification time of an object, and so its ETag, but not its bytes.

use std::time::{Duration, SystemTime};

use serde_json::json;

use super::{id, object_of, sha256};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

const BYTES: &[u8] = b"bytes that were restored";

async fn uploaded_with_checksum(server: &TestApp) -> String {
    let body = json!({ "fileName": "cargo", "size": BYTES.len(), "checksumSha256": sha256(BYTES) });
    let grant = server.me().post("/api/v2/files/init", body).await.expect(201);
    server.put_bytes(&grant, BYTES).await.expect(200);
    server.me().confirm(&id(&grant)).await.expect(200);
    id(&grant)
}

fn restore(env: &TestEnv, id: &str) {
    let object = std::fs::File::options().write(true).open(object_of(env, id)).expect("the object");
    object
        .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))
        .expect("the time is set");
}

async fn restored_bytes_are_recognized_by_their_checksum(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let file = uploaded_with_checksum(&server).await;
    restore(&env, &file);
    for _ in 0..2 {
        server.me().get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    }
    assert_eq!(server.me().get(&format!("/api/v2/files/{file}")).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

async fn replaced_bytes_are_quarantined(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let file = uploaded_with_checksum(&server).await;
    std::fs::write(object_of(&env, &file), b"bytes that were replaced").expect("the object");
    restore(&env, &file);
    let path = format!("/api/v2/files/{file}");
    server.me().get(&format!("{path}/download")).await.expect_problem(409, "quarantined");
    assert_eq!(server.me().get(&path).await.expect(200)["status"], "quarantined");
    oracle::catalog_is_sound(&server).await;
}

on_each_database!(restored_bytes_are_recognized_by_their_checksum, replaced_bytes_are_quarantined);
