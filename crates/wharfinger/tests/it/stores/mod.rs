//! Uploads to a store that others serve: what it enforces, what is found out at confirm, and whose it is.

mod mark;
mod parts;
mod whole;

use serde_json::{Value, json};

use crate::test_app::TestApp;

/// Past every URL and every grace of a small file.
const LONG_MS: i64 = 2 * 3_600_000;

fn id_of(grant: &Value) -> String {
    grant["fileId"].as_str().expect("an id").to_owned()
}

/// The bytes behind a file's download, with the answer's headers.
async fn downloaded(server: &TestApp, id: &str) -> (Vec<u8>, reqwest::header::HeaderMap) {
    let answer = server.me().get(&format!("/api/v2/files/{id}/download")).await;
    assert_eq!(answer.status, 302, "{}", answer.body);
    let url = answer.headers["location"].to_str().expect("a URL").to_owned();
    let stored = server.http.get(url).send().await.expect("an answer");
    assert_eq!(stored.status(), 200);
    let headers = stored.headers().clone();
    (stored.bytes().await.expect("whole").to_vec(), headers)
}

async fn announce(server: &TestApp, body: Value) -> Value {
    server.me().post("/api/v2/files/init", body).await.expect(201)
}

fn cargo(size: usize) -> Value {
    json!({ "fileName": "cargo.bin", "size": size, "contentType": "application/x-cargo" })
}

/// No two stretches alike.
fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
