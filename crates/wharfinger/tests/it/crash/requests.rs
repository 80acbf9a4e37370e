//! Requests of the operations under test.

use serde_json::json;

use super::BYTES;
use crate::batches;
use crate::test_app::{Answer, TestApp};

/// Of a tenant without files.
pub const POLICY: &str = "/api/v2/tenants/empty/policy";

pub async fn open_batch(server: &TestApp, key: &str) -> Answer {
    batches::open_with_key(&server.me(), key, &batches::wanted(&[BYTES.len(); 2])).await
}

pub async fn init_with_key(server: &TestApp, key: &str) -> Answer {
    let me = server.me();
    let body = json!({ "fileName": "cargo", "size": BYTES.len() });
    let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", key);
    me.send(request.json(&body)).await
}
