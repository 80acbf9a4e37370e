//! A real worker process is killed (SIGKILL) in the middle of each stage. Another worker finishes the file, and each
//! result is stored once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ALL;
use crate::cli::program::{Place, Served};
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv};

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Long enough for heartbeats on a busy machine, and short enough for a test.
const LEASE_MS: &str = "3000";

/// Waits until the file has this status. Returns false if the file became ready before.
async fn reaches(me: &Client<'_>, file: &str, status: &str) -> bool {
    let started = Instant::now();
    loop {
        let now = me.file(file).await["status"].clone();
        if now == status {
            return true;
        }
        if now == "ready" {
            return false;
        }
        assert!(started.elapsed() < TIME_LIMIT, "{file} is {now}, expected {status}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Skips the minute that a file waits after a lost worker.
async fn skip_the_delay(env: &TestEnv) {
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
        let first = worker(&place, env, &[("INSTANCE_ID", "first")]);
        let file = me.enqueue("cargo.txt", text.as_bytes()).await;
        let is_running = reaches(&me, &file, status).await;
        first.signal("KILL");
        first.wait();
        if !is_running {
            continue;
        }
        let before = me.file(&file).await;
        if before["status"] != status {
            continue;
        }
        let second = worker(&place, env, &[("INSTANCE_ID", "second")]);
        assert!(reaches(&me, &file, "queued").await, "{stage}");
        skip_the_delay(env).await;
        assert!(reaches(&me, &file, "ready").await, "{stage}");
        second.terminate();
        let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
        let events = history["events"].as_array().expect("a list");
        let ready: Vec<&Value> = events.iter().filter(|event| event["to"] == "ready").collect();
        assert_eq!(ready.len(), 1, "{events:?}");
        let reason = format!("the worker for {stage} stopped sending heartbeats");
        let lost =
            |event: &&Value| event["reason"].as_str().is_some_and(|text| text.contains(reason.as_str()));
        // More than one lease is lost if the second worker is slower than its lease too.
        let (started, lost) =
            (events.iter().filter(|event| event["to"] == status).count(), events.iter().filter(lost).count());
        assert!(
            lost >= 1 && started == lost + 1,
            "{stage} was started {started} times, lost {lost} times: {events:?}"
        );
        let all = super::told(&me).await;
        let of_file: Vec<&Value> =
            all.iter().filter(|notification| notification["fileId"] == file.as_str()).collect();
        assert_eq!((of_file.len(), &of_file[0]["kind"]), (1, &json!("file-ready")));
        let chunks = super::chunks(&me, &file).await;
        let mut end = 0;
        for (n, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk["ordinal"], n);
            assert!(chunk["start"].as_u64().expect("a start") >= end, "{stage}: chunk {n} is there twice");
            end = chunk["end"].as_u64().expect("an end");
        }
        assert!(end as usize >= text.trim_end().chars().count(), "{stage}: the chunks do not cover the text");
        return;
    }
    panic!("no worker was killed in the middle of {stage}");
}

/// No worker is left to recover the lease, so the sweeper requeues the file for a later worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_survives_the_loss_of_all_workers() {
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
        let first = worker(&place, &env, &[("INSTANCE_ID", "first")]);
        let file = me.enqueue("cargo.txt", text.as_bytes()).await;
        let is_running = reaches(&me, &file, "extracting").await;
        first.signal("KILL");
        first.wait();
        if is_running && me.file(&file).await["status"] == "extracting" {
            break file;
        }
    };
    let environment: Vec<(&str, &str)> = env.environment().collect();
    let sweeper = place.serve_as("sweeper", &environment);
    assert!(reaches(&me, &file, "queued").await, "the sweeper requeues the file");
    skip_the_delay(&env).await;
    assert_eq!(me.file(&file).await["retryCount"], 1);
    oracle::no_file_is_stuck(&server).await;
    let second = worker(&place, &env, &[("INSTANCE_ID", "second")]);
    assert!(reaches(&me, &file, "chunking").await || me.file(&file).await["status"] == "ready");
    reaches(&me, &file, "ready").await;
    second.terminate();
    sweeper.terminate();
    let statuses = super::statuses(&me, &file).await;
    assert_eq!(statuses.iter().filter(|status| *status == "ready").count(), 1, "{statuses:?}");
    assert_eq!(
        statuses.iter().filter(|status| *status == "scanning").count(),
        1,
        "a completed stage ran again: {statuses:?}"
    );
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    let recovered = events.iter().filter(|event| event["actor"] == "stuck-file-recovery").count();
    assert_eq!(me.file(&file).await["retryCount"], recovered, "each recovery is counted once: {events:?}");
    oracle::catalog_is_sound(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_survives_the_loss_of_its_worker_in_every_stage() {
    let env = TestEnv::in_real_time(
        Database::Postgres,
        &[
            ("PIPELINE_STAGES", ALL),
            ("JOB_LEASE_MS", LEASE_MS),
            ("CHUNK_OVERLAP", "0"),
            // For the worker processes: this server has only the `api` role.
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
    // Objects of the killed workers are deleted or have a cleanup.
    oracle::catalog_is_sound(&server).await;
}
