//! Batches of uploads, until they are completed, cancelled or expired.

mod cancel_and_expire;
mod complete;
mod input;

use serde_json::{Value, json};

use crate::test_app::{Answer, Client, TestApp};

pub const DAY_MS: i64 = 86_400_000;

/// The body of a request that opens a batch with files of these sizes.
pub fn wanted(sizes: &[usize]) -> Value {
    let files: Vec<Value> = sizes
        .iter()
        .enumerate()
        .map(|(n, size)| json!({ "fileName": format!("f{n}"), "size": size }))
        .collect();
    json!({ "files": files })
}

pub async fn open(me: &Client<'_>, sizes: &[usize]) -> Value {
    me.post("/api/v2/batches", wanted(sizes)).await.expect(201)
}

pub async fn open_with_key(me: &Client<'_>, key: &str, body: &Value) -> Answer {
    let request = me.request(reqwest::Method::POST, "/api/v2/batches").header("idempotency-key", key);
    me.send(request.json(body)).await
}

/// Uploads the bytes of a registered file of a batch.
pub async fn fill(server: &TestApp, grant: &Value, size: usize) {
    server.put_bytes(grant, &vec![b'x'; size]).await.expect(200);
}

pub fn path(batch: &Value) -> String {
    format!("/api/v2/batches/{}", batch["batchId"].as_str().expect("a batch's id"))
}

pub async fn complete(me: &Client<'_>, batch: &Value) -> Answer {
    me.post(&format!("{}/complete", path(batch)), json!({})).await
}

pub async fn cancel(me: &Client<'_>, batch: &Value) -> Answer {
    me.post(&format!("{}/cancel", path(batch)), json!({})).await
}

/// One field of each file in an answer.
pub fn each<'v>(answer: &'v Value, member: &str) -> Vec<&'v str> {
    let files = answer["files"].as_array().expect("files");
    files.iter().map(|file| file[member].as_str().unwrap_or_default()).collect()
}
