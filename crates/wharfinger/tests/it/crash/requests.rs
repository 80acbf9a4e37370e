//! Requests of the operations under test.

use serde_json::json;
use wharfinger::sweeps::{self, Sweep, SweepLease};

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

pub async fn run_sweep(server: &TestApp, sweep: Sweep) -> Option<Answer> {
    let _ = sweeps::run_unleased(&server.app.uploads, sweep, &SweepLease::unleased(&server.app.core)).await;
    None
}

/// The grant of an earlier server with the address of this one.
pub fn on_this_server(grant: &serde_json::Value, server: &TestApp) -> serde_json::Value {
    let here = |url: &serde_json::Value| {
        let path = url.as_str().expect("an upload URL").split_once("/blobs/").expect("a local URL").1;
        serde_json::Value::from(format!("{}/blobs/{path}", server.url))
    };
    let mut grant = grant.clone();
    match grant["multipart"]["parts"].as_array_mut() {
        Some(parts) => parts.iter_mut().for_each(|part| part["url"] = here(&part["url"])),
        None => grant["uploadUrl"] = here(&grant["uploadUrl"]),
    }
    grant
}
