//! A release of a quarantined file.

use super::*;

macro_rules! release_on {
    ($($name:ident: $database:ident through $stages:literal),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            hit_every_call(Op::Release, &TestEnv::with_stages(Database::$database, $stages, &[])).await;
        })*
    };
}

release_on! {
    release_on_sqlite: Sqlite through "scan,extract,chunk",
    release_on_postgres: Postgres through "scan,extract,chunk",
    release_to_ready_on_sqlite: Sqlite through "scan",
}

/// An outside worker finds something in a confirmed file.
pub async fn infect(server: &TestApp) {
    let worker = server.as_user("ops", "w", Role::Worker);
    let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
    let job = &lease["jobs"][0];
    let path = format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str().expect("a job"));
    let output = json!({ "verdict": "infected", "signature": "Worm" });
    worker.post(&path, json!({ "leaseToken": job["leaseToken"], "output": output })).await.expect(200);
}

pub async fn release(server: &TestApp, id: &str) -> Answer {
    server.operator().post(&format!("/api/v2/files/{id}/release"), json!({ "reason": "a false alarm" })).await
}

/// A lost answer can be asked for again: either the file is released now, or it was.
pub async fn check_released(server: &TestApp, id: &str, acknowledged: bool) {
    let again = release(server, id).await;
    match acknowledged || again.status != 200 {
        true => drop(again.expect_problem(409, "not_quarantined")),
        false => drop(again.expect(200)),
    }
}

/// For any number of attempts the file was released once, scanned once and is ready (I14).
pub async fn check_released_once(server: &TestApp, id: &str) {
    let me = server.me();
    assert_eq!(me.file(id).await["status"], "ready");
    let history = me.get(&format!("/api/v2/files/{id}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    let count = |is: &dyn Fn(&serde_json::Value) -> bool| events.iter().filter(|event| is(event)).count();
    assert_eq!(count(&|event| event["from"] == "quarantined"), 1, "{history}");
    assert_eq!(count(&|event| event["to"] == "scanning"), 1, "{history}");
    let notifications = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let notifications = notifications["notifications"].as_array().expect("a list");
    let about = notifications.iter().filter(|n| n["fileId"] == id);
    let kinds: BTreeSet<_> = about.clone().filter_map(|n| n["kind"].as_str()).collect();
    assert_eq!((about.count(), kinds), (2, BTreeSet::from(["file-quarantined", "file-ready"])));
    // Keeps the next round fast.
    me.delete(&format!("/api/v2/files/{id}")).await.expect(204);
}
