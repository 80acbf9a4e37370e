//! The history of files, archived as events, including the events that waited while archiving was off.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use wharfinger::worker::Supervisor;

use super::{TIMEOUT, below, lines};
use crate::test_app::{Database, TestEnv, on_each_database};

on_each_database!(
    every_step_of_a_file_is_archived_once,
    waiting_events_are_archived_after_archiving_was_switched_off
);

const SETTINGS: [(&str, &str); 2] = [("AUDIT_TO_INGEST", "true"), ("INGEST_BATCH_AGE_MS", "20")];

/// The archived events by id. A repeated event has the same id.
fn archived(blobs: &Path) -> BTreeMap<String, Value> {
    let stored = below(&blobs.join("RAW"));
    let events = stored.values().flat_map(|gz| lines(gz)).map(|line| {
        assert_eq!(line["tenant"], "t");
        (line["body"]["id"].as_str().expect("an id").to_owned(), line["body"].clone())
    });
    events.collect()
}

async fn until_archived(blobs: &Path, count: usize) -> Vec<String> {
    let started = Instant::now();
    loop {
        let events = archived(blobs);
        if events.len() >= count {
            let mut kinds: Vec<(u64, String)> = events
                .values()
                .map(|event| {
                    let version = event["version"].as_u64().expect("a version");
                    (version, event["type"].as_str().expect("a type").to_owned())
                })
                .collect();
            kinds.sort();
            return kinds.into_iter().map(|(_, kind)| kind).collect();
        }
        assert!(started.elapsed() < TIMEOUT, "{events:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the outbox has no line for the archive. A line is deleted only after its event has arrived.
async fn until_outbox_is_empty(env: &TestEnv) {
    let started = Instant::now();
    while env.scalar("SELECT COUNT(*) FROM outbox WHERE destination = 'archive'").await != 0 {
        assert!(started.elapsed() < TIMEOUT, "an archived event is still in the outbox");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn every_step_of_a_file_is_archived_once(database: Database) {
    let env = TestEnv::with(database, &SETTINGS);
    let server = env.start().await;
    server.app.start_ingest().await.expect("ingest starts");
    let supervisor = Supervisor::start(&server.app).await;
    let me = server.me();
    let id = me.upload("report.txt", b"hello").await;
    me.delete(&format!("/api/v2/files/{id}")).await.expect(204);
    let kinds = until_archived(&env.blob_dir(), 4).await;
    assert_eq!(kinds, ["file.registered", "file.uploaded", "file.ready", "file.deleted"]);
    for event in archived(&env.blob_dir()).values() {
        assert_eq!((&event["fileId"], &event["tenant"]), (&Value::from(id.clone()), &Value::from("t")));
        assert_eq!((&event["user"], &event["fileName"]), (&Value::from("u"), &Value::from("report.txt")));
    }
    until_outbox_is_empty(&env).await;
    supervisor.stop().await;
}

async fn waiting_events_are_archived_after_archiving_was_switched_off(database: Database) {
    let env = TestEnv::with(database, &SETTINGS);
    let server = env.start().await;
    let id = server.me().upload("report.txt", b"hello").await;
    drop(server);
    assert_ne!(env.scalar("SELECT COUNT(*) FROM outbox WHERE destination = 'archive'").await, 0);
    let server = env.start_but("AUDIT_TO_INGEST", "false").await;
    server.app.start_ingest().await.expect("ingest starts");
    let supervisor = Supervisor::start(&server.app).await;
    until_archived(&env.blob_dir(), 3).await;
    server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    until_outbox_is_empty(&env).await;
    supervisor.stop().await;
    assert_eq!(archived(&env.blob_dir()).len(), 3, "no later event is archived");
}
