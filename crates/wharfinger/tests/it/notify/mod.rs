//! Notifications to the webhook and to Slack: signed, delivered at least once, in order for each file.

mod delivery;
mod disabled;
mod fleet;
pub mod receiver;
mod refusals;
mod slack;
mod verifying;

use std::time::{Duration, SystemTime};

use crate::test_app::{Client, Database, TestEnv};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;

/// An environment whose servers send notifications to this URL.
pub fn telling(database: Database, url: &str) -> TestEnv {
    TestEnv::with(
        database,
        &[("WEBHOOK_URL", url), ("WEBHOOK_SECRET", SECRET), ("WEBHOOK_ALLOW_PRIVATE", "true")],
    )
}

/// Changes the bytes of a ready file in the store. The next download finds the change and quarantines the file.
async fn quarantine(env: &TestEnv, me: &Client<'_>, file: &str) {
    let path = env.blob_dir().join("uploads/t/u").join(file);
    std::fs::write(&path, b"xyz").expect("the object");
    let object = std::fs::File::options().write(true).open(&path).expect("the object");
    object.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).expect("a time");
    me.get(&format!("/api/v2/files/{file}/download")).await.expect_problem(409, "quarantined");
}
