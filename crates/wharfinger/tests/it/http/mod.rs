//! The HTTP API: authentication, isolation between users, input checks, and answers to wrong requests.

mod audit;
mod auth;
mod bad_input;
mod claims;
pub mod connections;
mod cors;
mod generated;
mod health;
mod http2;
mod isolation;
mod jwks;
mod jwks_url;
mod logs;
mod openapi;
mod routes;
mod search;
mod service_keys;
pub mod signing_keys;
mod traces;

use serde_json::{Value, json};

use crate::test_app::{Answer, START, TestApp};

/// An hour after the clock's start, in seconds.
const EXP: i64 = START / 1_000 + 3_600;

fn claims() -> Value {
    json!({ "sub": "u", "tenant": "t", "exp": EXP })
}

/// Requests the quota, which every valid user token may read.
async fn get_quota(server: &TestApp, authorization: Option<&str>) -> Answer {
    let mut request = server.http.get(format!("{}/api/v2/quota", server.url));
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    Answer::read(request.send().await.expect("an answer")).await
}

async fn get_quota_with(server: &TestApp, token: &str) -> Answer {
    get_quota(server, Some(&format!("Bearer {token}"))).await
}
