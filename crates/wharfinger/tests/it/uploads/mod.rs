//! Uploads through the API: init, upload, confirm, download, delete, limits and cleanup.

mod cleanups;
mod confirm;
mod deletion;
mod download;
mod idempotency;
mod incoming;
mod life;
mod listing;
mod parts;
mod quota;
mod restore;
mod rules;
mod signed_put;
mod tampering;
mod transfers;
mod window;

use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::test_app::TestEnv;

/// The default window, and the default grace period of a small file.
pub const WINDOW_MS: i64 = 3_600_000;
pub const GRACE_MS: i64 = 60_000;

/// The `fileId` of an answer.
pub fn id(answer: &Value) -> String {
    answer["fileId"].as_str().expect("an id").to_owned()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The path of the object of this file of user `u` of tenant `t`.
fn object_of(env: &TestEnv, id: &str) -> PathBuf {
    env.blob_dir().join("uploads/t/u").join(id)
}

/// Writes bytes directly to the object's path, without the API.
fn plant(env: &TestEnv, id: &str, bytes: &[u8]) {
    let path = object_of(env, id);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("the user's folder");
    std::fs::write(path, bytes).expect("the object");
}
