//! Stuck files: a file without a working job is requeued or fails, a file that only waits is not changed (I7, I8, I17).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharfinger::core::{Role, VerbError};
use wharfinger::sweeps::stuck_files::{NAME, Outcome, run};
use wharfinger::sweeps::{LEASE_MS, SweepLease};
use wharfinger_catalog::{Fence, SweepClaim, SweepClaimOutcome};

use crate::notify::receiver::Receiver;
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

pub const THRESHOLD_MS: i64 = 1_800_000;
pub const OUTSIDE: (&str, &str) = ("PIPELINE_BUILTIN_STAGES", "");

async fn swept(server: &TestApp) -> Outcome {
    run(&server.app.core, &SweepLease::unleased(&server.app.core)).await.expect("the sweep runs")
}

fn by_status<const N: usize>(counts: [(&'static str, u64); N]) -> BTreeMap<&'static str, u64> {
    counts.into_iter().collect()
}

async fn lease(server: &TestApp, stage: &str) -> Option<Value> {
    let worker = server.as_user("ops", "w", Role::Worker);
    let answer = worker.post("/api/v2/workers/lease", json!({ "stages": [stage] })).await.expect(200);
    answer["jobs"].get(0).cloned()
}

async fn complete(server: &TestApp, job: &Value, output: Value) -> crate::test_app::Answer {
    let worker = server.as_user("ops", "w", Role::Worker);
    let path = format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str().expect("an id"));
    worker.post(&path, json!({ "leaseToken": job["leaseToken"], "output": output })).await
}

/// Uploads a file. Deletes the jobs of all files whose names start with `lost`.
pub async fn without_job(env: &TestEnv, me: &Client<'_>, name: &str) -> String {
    let file = me.enqueue(name, b"cargo").await;
    env.execute("DELETE FROM jobs WHERE file_id IN (SELECT id FROM files WHERE file_name LIKE 'lost%')")
        .await;
    file
}

async fn notifications_of_kind(me: &Client<'_>, kind: &str) -> Vec<Value> {
    let list = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let list = list["notifications"].as_array().expect("a list").clone();
    list.into_iter().filter(|notification| notification["kind"] == kind).collect()
}

/// The columns of files and jobs that recovery may change, one line per row.
async fn state(env: &TestEnv) -> Vec<String> {
    let files = "SELECT id || ' ' || pipeline_status || ' ' || CAST(version AS TEXT) || ' ' || CAST(retry_count AS TEXT) \
                 || ' ' || CAST(COALESCE(next_check_at, 0) AS TEXT) FROM files ORDER BY id";
    let jobs = "SELECT id || ' ' || state || ' ' || queue || ' ' || CAST(lease_token AS TEXT) || ' ' \
                || CAST(attempts AS TEXT) || ' ' || CAST(updated_at AS TEXT) FROM jobs ORDER BY id";
    let mut all = env.texts(files).await;
    all.extend(env.texts(jobs).await);
    all
}

async fn a_file_without_a_job_resumes_at_its_stage(database: Database) {
    let env = TestEnv::with_stages(database, "extract,chunk", &[OUTSIDE]);
    let server = env.start().await;
    let me = server.me();
    let file = me.enqueue("lost", b"cargo").await;
    let extract = lease(&server, "extract").await.expect("a job");
    complete(&server, &extract, json!({ "text": "cargo" })).await.expect(200);
    without_job(&env, &me, "fine").await;

    env.advance(THRESHOLD_MS - 1);
    assert_eq!(swept(&server).await, Outcome::default(), "the file is not stuck yet");
    env.advance(1);
    let expected = Outcome {
        total_stuck: 2,
        re_enqueued: 1,
        waiting: 1,
        average_stuck_duration: THRESHOLD_MS,
        by_status: by_status([("queued", 2)]),
        ..Outcome::default()
    };
    assert_eq!(swept(&server).await, expected);
    oracle::no_file_is_stuck(&server).await;
    assert_eq!(me.file(&file).await["retryCount"], 1);
    // The output of the extract stage is kept.
    let chunk = lease(&server, "chunk").await.expect("a job");
    assert_eq!((&chunk["fileId"], &chunk["attempt"]), (&json!(file), &json!(1)));
    assert_eq!(chunk["input"], json!({ "text": "cargo" }));
    complete(&server, &chunk, json!({ "chunks": [] })).await.expect(200);
    server.crash().await;

    let env = env.also(&[("PIPELINE_BUILTIN_STAGES", "all")]);
    let server = env.start().await;
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
    assert_eq!(swept(&server).await, Outcome::default());
}

async fn a_second_run_and_a_dry_run_change_nothing(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("MAX_STUCK_RETRIES", "1")]);
    let server = env.start().await;
    let me = server.me();
    for n in 0..3 {
        without_job(&env, &me, &format!("lost {n}")).await;
    }
    env.execute("UPDATE files SET retry_count = 1 WHERE file_name = 'lost 0'").await;
    me.enqueue("waits", b"cargo").await;
    env.advance(THRESHOLD_MS);

    let before = state(&env).await;
    let reported =
        run(&server.app.core, &SweepLease::dry_run(&server.app.core)).await.expect("the sweep runs");
    assert_eq!(state(&env).await, before, "no row has changed");
    let done = swept(&server).await;
    assert_eq!(reported, done);
    assert_eq!((done.total_stuck, done.re_enqueued, done.permanently_failed, done.waiting), (4, 2, 1, 1));

    let before = state(&env).await;
    let again = swept(&server).await;
    assert_eq!((again.total_stuck, again.waiting, again.re_enqueued), (1, 1, 0));
    assert_eq!(state(&env).await, before, "no row has changed");
    server.settle().await;
    assert_eq!(swept(&server).await, Outcome::default());
    oracle::catalog_is_sound(&server).await;
}

/// I8: a worker whose lease was lost comes back, and its calls are refused.
async fn a_late_worker_changes_nothing(database: Database) {
    let env = TestEnv::with_stages(database, "extract", &[OUTSIDE]);
    let server = env.start().await;
    let me = server.me();
    let file = me.enqueue("a", b"cargo").await;
    let old = lease(&server, "extract").await.expect("a job");
    env.advance(THRESHOLD_MS);
    let outcome = swept(&server).await;
    assert_eq!((outcome.total_stuck, outcome.re_enqueued), (1, 1));
    assert_eq!(outcome.by_status, by_status([("extracting", 1)]));
    let stale = async |moment: &str| {
        let before = state(&env).await;
        let answer = complete(&server, &old, json!({ "text": "late" })).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (409, "lease_lost"), "{moment}");
        assert_eq!(state(&env).await, before, "{moment}");
    };
    stale("before another worker leases the job").await;
    env.advance(60_000);
    let new = lease(&server, "extract").await.expect("a job");
    assert_ne!(new["jobId"], old["jobId"]);
    stale("while another worker has the lease").await;
    complete(&server, &new, json!({ "text": "cargo" })).await.expect(200);
    stale("after another worker completed the job").await;
    assert_eq!(me.file(&file).await["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

async fn a_file_without_recoveries_left_fails_with_a_notification(database: Database) {
    let slack = Receiver::start().await;
    let settings = [
        ("MAX_STUCK_RETRIES", "2"),
        ("SLACK_WEBHOOK_URL", slack.url.as_str()),
        ("WEBHOOK_ALLOW_PRIVATE", "true"),
    ];
    let env = TestEnv::with_stages(database, "scan", &settings);
    let server = env.start().await;
    let me = server.me();
    let file = without_job(&env, &me, "lost").await;
    for retry in 1..=2 {
        env.advance(THRESHOLD_MS);
        assert_eq!(swept(&server).await.re_enqueued, 1);
        let now = me.file(&file).await;
        assert_eq!((&now["status"], &now["retryCount"]), (&json!("queued"), &json!(retry)));
        env.execute("DELETE FROM jobs").await;
    }
    assert_eq!(notifications_of_kind(&me, "file-failed").await, Vec::<Value>::new());
    env.advance(THRESHOLD_MS);
    let outcome = swept(&server).await;
    assert_eq!((outcome.total_stuck, outcome.re_enqueued, outcome.permanently_failed), (1, 0, 1));
    let why = "scan did not finish after 2 recoveries";
    let failed = me.file(&file).await;
    assert_eq!((&failed["status"], &failed["error"]), (&json!("failed"), &json!(why)));
    let failures = notifications_of_kind(&me, "file-failed").await;
    assert_eq!((failures.len(), &failures[0]["data"]), (1, &json!({ "reason": why, "stage": "scan" })));
    let dead_letters = me.get("/api/v2/dlq").await.expect(200);
    assert_eq!(dead_letters["jobs"][0]["fileId"], file.as_str());
    assert_eq!(dead_letters["jobs"][0]["reason"], "no recoveries left");
    assert_eq!(dead_letters["jobs"][0]["lastError"], "its job was missing");
    server.settle().await;
    let texts: Vec<Value> = slack.got().iter().map(|got| got.body["text"].clone()).collect();
    assert_eq!(
        texts,
        [json!(format!("Wharfinger: lost of tenant t failed permanently: {why} (file {file})"))]
    );
    assert_eq!(swept(&server).await, Outcome::default());

    // When the cause is repaired, a redrive completes the file.
    let job = dead_letters["jobs"][0]["jobId"].as_str().expect("an id");
    me.post(&format!("/api/v2/dlq/{job}/redrive"), json!({})).await.expect(200);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn without_retries_a_stuck_file_fails_immediately(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[("MAX_STUCK_RETRIES", "0")]);
    let server = env.start().await;
    let me = server.me();
    let file = without_job(&env, &me, "lost").await;
    env.advance(THRESHOLD_MS);
    assert_eq!(swept(&server).await.permanently_failed, 1);
    assert_eq!(me.file(&file).await["error"], "scan did not finish");
    oracle::catalog_is_sound(&server).await;
}

/// A long queue uses up no retries.
async fn waiting_files_do_not_fail(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[OUTSIDE, ("MAX_STUCK_RETRIES", "0")]);
    let server = env.start().await;
    let me = server.me();
    for n in 0..30 {
        me.enqueue(&format!("waits {n}"), b"cargo").await;
    }
    lease(&server, "scan").await.expect("a job");
    let before = state(&env).await;
    for days in 1..=3 {
        env.advance(86_400_000);
        // One worker keeps its lease.
        env.execute(
            "UPDATE jobs SET lease_until = 9000000000000, deadline_at = 9000000000000 WHERE state = 'leased'",
        )
        .await;
        let outcome = swept(&server).await;
        let by_status = by_status([("queued", 29), ("scanning", 1)]);
        let average_stuck_duration = days * 86_400_000;
        let expected =
            Outcome { total_stuck: 30, waiting: 30, average_stuck_duration, by_status, ..Outcome::default() };
        assert_eq!(outcome, expected);
        assert_eq!(state(&env).await, before, "the sweep changed nothing");
    }
    let listed = me.get("/api/v2/uploads/stuck?limit=1000").await.expect(200);
    assert_eq!((&listed["total"], listed["files"].as_array().map(Vec::len)), (&json!(30), Some(30)));
    assert!(
        listed["files"].as_array().expect("a list").iter().all(|file| file["problem"].is_null()),
        "{listed}"
    );
    let all = me.post("/api/v2/uploads/stuck/retry-all", json!({})).await.expect(200);
    assert_eq!((&all["retriedCount"], &all["skippedCount"]), (&json!(0), &json!(30)));
    assert_eq!(state(&env).await, before, "the manual retry changed nothing");
}

/// I17: one file cannot be written and two cannot be read. The others are requeued at once, and these after their
/// repair.
async fn files_that_fail_every_time_do_not_block_the_others(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let me = server.me();
    for n in 0..40 {
        without_job(&env, &me, &format!("lost {n}")).await;
    }
    // The next line of its history exists already, so the file cannot be changed.
    let refused = "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) \
                   SELECT id, version + 1, 0, 'queued', 'queued', 'test', 'conflicting row' FROM files WHERE file_name = 'lost 7'";
    env.execute(refused).await;
    env.execute("UPDATE files SET stage = 'an unknown stage' WHERE file_name IN ('lost 0', 'lost 39')").await;
    env.advance(THRESHOLD_MS);
    for (total_stuck, re_enqueued) in [(40, 37), (3, 0), (3, 0)] {
        let outcome = swept(&server).await;
        let found = (outcome.total_stuck, outcome.re_enqueued, outcome.errors);
        assert_eq!(found, (total_stuck, re_enqueued, 3));
    }
    wharfinger::pipeline::run::run_due(&server.app.pipeline).await.expect("the jobs run");
    let ready = "SELECT COUNT(*) FROM files WHERE pipeline_status = 'ready' AND retry_count = 1";
    assert_eq!(env.scalar(ready).await, 37);
    env.execute("DELETE FROM file_history WHERE actor = 'conflicting row'").await;
    env.execute("UPDATE files SET stage = 'scan' WHERE stage = 'an unknown stage'").await;
    assert_eq!(swept(&server).await.re_enqueued, 3);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// Two concurrent sweeps without a lease requeue each file once.
async fn two_sweepers_handle_each_file_once(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let (one, other) = (env.start().await, env.start().await);
    let me = one.me();
    for n in 0..40 {
        without_job(&env, &me, &format!("lost {n}")).await;
    }
    env.advance(THRESHOLD_MS);
    let (first, second) = tokio::join!(swept(&one), swept(&other));
    assert_eq!(first.re_enqueued + second.re_enqueued, 40, "{first:?} {second:?}");
    assert_eq!(env.scalar("SELECT MAX(retry_count) FROM files").await, 1);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM jobs").await, 40);
    one.settle().await;
    oracle::all_is_healed(&env, &one).await;
}

async fn claim(server: &TestApp) -> Fence {
    let claim = SweepClaim {
        name: NAME,
        owner: "a crashed process".into(),
        now: server.app.core.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
        start: wharfinger_catalog::RunStart::default(),
    };
    match server.app.core.catalog.claim_sweep(claim).await.expect("an answer") {
        SweepClaimOutcome::Leased(fence) => fence,
        other => panic!("{other:?}"),
    }
}

/// I13.
async fn a_sweep_that_lost_its_lease_changes_nothing(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let (old, new) = (env.start().await, env.start().await);
    without_job(&env, &new.me(), "lost").await;
    let old_lease = SweepLease::with_fence(&old.app.core, claim(&old).await);
    env.advance(THRESHOLD_MS);
    let new_lease = SweepLease::with_fence(&new.app.core, claim(&new).await);
    let before = state(&env).await;
    assert_eq!(run(&old.app.core, &old_lease).await, Err(VerbError::TakenOver));
    assert_eq!(state(&env).await, before);
    assert_eq!(run(&new.app.core, &new_lease).await.map(|outcome| outcome.re_enqueued), Ok(1));
    new.settle().await;
    oracle::all_is_healed(&env, &new).await;
}

/// A stopped sweep starts no other page. The next run finds the remaining files.
async fn a_stopped_sweep_starts_nothing_new(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    without_job(&env, &server.me(), "lost").await;
    env.advance(THRESHOLD_MS);
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    let outcome = run(&server.app.core, &SweepLease::unleased(&server.app.core).with_stop(&stop)).await;
    assert_eq!(outcome, Ok(Outcome::default()));
    assert_eq!(swept(&server).await.re_enqueued, 1);
}

/// Three workers in a row lost their leases, and only the sweep noticed.
async fn the_sweep_fails_a_file_that_lost_three_workers(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[OUTSIDE, ("MAX_STUCK_RETRIES", "100")]);
    let server = env.start().await;
    let me = server.me();
    let file = me.enqueue("poison", b"poison").await;
    for lost in 1..=3 {
        lease(&server, "scan").await.expect("a job");
        env.advance(THRESHOLD_MS);
        let outcome = swept(&server).await;
        let expected = if lost < 3 { (1, 0) } else { (0, 1) };
        assert_eq!((outcome.re_enqueued, outcome.permanently_failed), expected);
        env.advance(THRESHOLD_MS / 2);
    }
    assert_eq!(me.file(&file).await["status"], "failed");
    assert_eq!(lease(&server, "scan").await, None);
    oracle::catalog_is_sound(&server).await;
}

on_each_database! {
    a_file_without_a_job_resumes_at_its_stage,
    a_second_run_and_a_dry_run_change_nothing,
    a_late_worker_changes_nothing,
    a_file_without_recoveries_left_fails_with_a_notification,
    without_retries_a_stuck_file_fails_immediately,
    waiting_files_do_not_fail,
    files_that_fail_every_time_do_not_block_the_others,
    two_sweepers_handle_each_file_once,
    a_sweep_that_lost_its_lease_changes_nothing,
    a_stopped_sweep_starts_nothing_new,
    the_sweep_fails_a_file_that_lost_three_workers,
}
