//! A real worker process that is killed (SIGKILL) in the middle of each stage: another finishes the file within the
//! lease time, and by effect it was worked on once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ALL;
use crate::cli::program::{Place, Served};
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv};

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a heartbeat of a loaded machine, short enough to wait for.
const LEASE_MS: &str = "3000";

/// Waits until a file is called so; answers whether it was seen before it was over.
async fn seen(me: &Client<'_>, file: &str, status: &str) -> bool {
    let started = Instant::now();
    loop {
        let now = me.file(file).await["status"].clone();
        if now == status {
            return true;
        }
        if now == "ready" {
            return false;
        }
        assert!(started.elapsed() < PATIENCE, "{file} is {now}, and was to be {status}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// After a lost worker a file waits for a minute.
async fn a_minute_goes_by(env: &TestEnv) {
    env.execute("UPDATE jobs SET run_at = run_at - 60000 WHERE lost_leases > 0").await;
}

fn worker(place: &Place, env: &TestEnv, settings: &[(&str, &str)]) -> Served {
    let mut environment: Vec<(&str, &str)> = env.environment().collect();
    environment.extend(settings);
    place.serve_as("worker", &environment)
}

async fn is_finished_by_another(server: &TestApp, env: &TestEnv, stage: &str, status: &str, text: &str) {
    let me = server.me();
    let place = Place::new();
    for _ in 0..20 {
        let victim = worker(&place, env, &[("INSTANCE_ID", "victim")]);
        let file = me.enqueue("cargo.txt", text.as_bytes()).await;
        let caught = seen(&me, &file, status).await;
        victim.signal("KILL");
        victim.wait();
        if !caught {
            continue;
        }
        let before = me.file(&file).await;
        if before["status"] != status {
            continue;
        }
        let heir = worker(&place, env, &[("INSTANCE_ID", "heir")]);
        assert!(seen(&me, &file, "queued").await, "{stage}");
        a_minute_goes_by(env).await;
        assert!(seen(&me, &file, "ready").await, "{stage}");
        heir.terminate();
        let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
        let events = history["events"].as_array().expect("a list");
        let ready: Vec<&Value> = events.iter().filter(|event| event["to"] == "ready").collect();
        assert_eq!(ready.len(), 1, "{events:?}");
        let reason = format!("the worker for {stage} stopped sending heartbeats");
        let lost =
            |event: &&Value| event["reason"].as_str().is_some_and(|told| told.contains(reason.as_str()));
        // Once, or more often where the heir is held up for longer than a lease too.
        let (begun, lost) =
            (events.iter().filter(|event| event["to"] == status).count(), events.iter().filter(lost).count());
        assert!(lost >= 1 && begun == lost + 1, "{stage} was begun {begun} times, lost {lost}: {events:?}");
        let told = super::told(&me).await;
        let about: Vec<&Value> = told.iter().filter(|told| told["fileId"] == file.as_str()).collect();
        assert_eq!((about.len(), &about[0]["kind"]), (1, &json!("file-ready")));
        let chunks = super::chunks(&me, &file).await;
        let mut end = 0;
        for (n, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk["ordinal"], n);
            assert!(chunk["start"].as_u64().expect("a start") >= end, "{stage}: chunk {n} is there twice");
            end = chunk["end"].as_u64().expect("an end");
        }
        assert!(end as usize >= text.trim_end().chars().count(), "{stage}: all of the text is there");
        return;
    }
    panic!("{stage} was never caught in the middle");
}

/// No worker is left to take its lease back: the sweeper does, and begins it anew for whoever comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_outlives_all_workers() {
    let settings = [
        ("PIPELINE_STAGES", ALL),
        ("JOB_LEASE_MS", LEASE_MS),
        ("STUCK_FILE_THRESHOLD_MS", "4000"),
        ("STUCK_RECOVERY_SCHEDULE", "* * * * * *"),
    ];
    let env = TestEnv::in_real_time(Database::Postgres, &settings);
    let server = env.start_as("api").await;
    let (me, place) = (server.me(), Place::new());
    let text: String = (0..60_000).map(|n| format!("Line {n} of a long list of cargo.\n")).collect();
    let file = loop {
        let victim = worker(&place, &env, &[("INSTANCE_ID", "victim")]);
        let file = me.enqueue("cargo.txt", text.as_bytes()).await;
        let caught = seen(&me, &file, "extracting").await;
        victim.signal("KILL");
        victim.wait();
        if caught && me.file(&file).await["status"] == "extracting" {
            break file;
        }
    };
    let environment: Vec<(&str, &str)> = env.environment().collect();
    let sweeper = place.serve_as("sweeper", &environment);
    assert!(seen(&me, &file, "queued").await, "the sweeper begins it anew");
    a_minute_goes_by(&env).await;
    assert_eq!(me.file(&file).await["retryCount"], 1);
    oracle::no_file_is_stuck(&server).await;
    let heir = worker(&place, &env, &[("INSTANCE_ID", "heir")]);
    assert!(seen(&me, &file, "chunking").await || me.file(&file).await["status"] == "ready");
    seen(&me, &file, "ready").await;
    heir.terminate();
    sweeper.terminate();
    let way = super::way(&me, &file).await;
    assert_eq!(way.iter().filter(|status| *status == "ready").count(), 1, "{way:?}");
    assert_eq!(
        way.iter().filter(|status| *status == "scanning").count(),
        1,
        "what was done is kept: {way:?}"
    );
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    let recovered = events.iter().filter(|event| event["actor"] == "stuck-file-recovery").count();
    assert_eq!(me.file(&file).await["retryCount"], recovered, "each time is counted once: {events:?}");
    oracle::catalog_is_sound(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_outlives_its_worker_in_every_stage() {
    let env = TestEnv::in_real_time(
        Database::Postgres,
        &[
            ("PIPELINE_STAGES", ALL),
            ("JOB_LEASE_MS", LEASE_MS),
            ("CHUNK_OVERLAP", "0"),
            // The server that answers us works on nothing itself.
            ("PIPELINE_BUILTIN_STAGES", "all"),
        ],
    );
    let server = env.start_as("api").await;
    let text: String = (0..60_000).map(|n| format!("Line {n} of a long list of cargo.\n")).collect();
    for (stage, status) in
        [("scan", "scanning"), ("extract", "extracting"), ("chunk", "chunking"), ("embed", "embedding")]
    {
        is_finished_by_another(&server, &env, stage, status, &text).await;
    }
    // What the killed ones put is under orders, or gone.
    oracle::catalog_is_sound(&server).await;
}
