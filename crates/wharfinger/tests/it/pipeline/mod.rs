//! The pipeline: confirmed files and their stages.

mod any_file;
mod clamd;
pub mod dead_letters;
mod derived;
mod documents;
mod killed;
mod life;
mod python;
mod releasing;
mod search;
mod sharing;
mod stage_workers;
mod unreadable;
mod workers;

use std::time::Duration;

use serde_json::Value;

use crate::test_app::Client;

const ALL: &str = "scan,extract,chunk,embed";

/// The EICAR test string, split so that scanners do not detect this source file.
pub fn eicar() -> Vec<u8> {
    ["X5O!P%@AP[4\\PZX54(P^)7CC)7}$", "EICAR-STANDARD-ANTIVIRUS", "-TEST-FILE!$H+H*"].concat().into_bytes()
}

/// All chunks of a file, read page by page.
async fn chunks(me: &Client<'_>, file: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = me.get(&format!("/api/v2/files/{file}/chunks?limit=7{cursor}")).await.expect(200);
        all.extend(page["chunks"].as_array().expect("a list").iter().cloned());
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// Waits until a running worker has finished the file.
async fn until_ready(client: &Client<'_>, file: &str) {
    for _ in 0..4_000 {
        if client.file(file).await["status"] == "ready" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the file is not ready: {}", client.file(file).await);
}

/// The statuses in the history of a file.
async fn statuses(me: &Client<'_>, file: &str) -> Vec<String> {
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    events.iter().map(|event| event["to"].as_str().expect("a status").to_owned()).collect()
}

/// The notifications of a user.
pub async fn told(me: &Client<'_>) -> Vec<Value> {
    let page = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    page["notifications"].as_array().expect("a list").clone()
}
