//! Scheduled sweeps of several processes with one catalog: one process runs each sweep, another one continues after a
//! crash, and a process that lost its lease changes nothing (I13).

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use wharfinger::core::VerbError;
use wharfinger::sweeps::{LEASE_MS, Sweep, SweepLease, apply_schedule, run_if_due, upload_window};
use wharfinger::worker::Supervisor;
use wharfinger_catalog::{Fence, RunStart, SweepClaim, SweepClaimOutcome};

use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const MINUTE_MS: i64 = 60_000;
const WINDOW_AND_GRACE_MS: i64 = 3_660_000;
const HOURLY: [(&str, &str); 2] =
    [("UPLOAD_WINDOW_SCHEDULE", "0 * * * *"), ("CLEANUP_SWEEP_SCHEDULE", "0 * * * *")];

async fn runs_if_due(server: &TestApp) -> bool {
    run_if_due(&server.app.uploads, Sweep::UploadWindow, &CancellationToken::new()).await.ran
}

/// How often the sweep was leased.
async fn lease_count(env: &TestEnv) -> i64 {
    env.scalar("SELECT COALESCE(MAX(lease_token), 0) FROM sweeps WHERE name = 'upload-window'").await
}

/// Leases the sweep like a process that crashes afterwards.
async fn claim(server: &TestApp) -> Fence {
    let claim = SweepClaim {
        name: upload_window::NAME,
        owner: "a crashed process".into(),
        now: server.app.core.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
        start: RunStart::default(),
    };
    match server.app.core.catalog.claim_sweep(claim).await.expect("claimed") {
        SweepClaimOutcome::Leased(fence) => fence,
        other => panic!("{other:?}"),
    }
}

/// An unconfirmed upload without its delayed check. Only the sweep finds it.
async fn lost_upload(env: &TestEnv, server: &TestApp) -> Value {
    let grant = server.me().init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    env.execute("DELETE FROM jobs").await;
    grant
}

async fn status(me: &Client<'_>, grant: &Value) -> u16 {
    let id = grant["fileId"].as_str().expect("an id");
    me.get(&format!("/api/v2/files/{id}")).await.status.as_u16()
}

async fn one_of_two_processes_runs_a_due_sweep(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (one, other) = (env.start().await, env.start().await);
    for run in 1..=4 {
        let both = tokio::join!(runs_if_due(&one), runs_if_due(&other));
        assert!(both.0 != both.1, "run {run}: {both:?}");
        assert_eq!(lease_count(&env).await, run);
        assert!(!runs_if_due(&one).await && !runs_if_due(&other).await, "it is not due again");
        env.advance(60 * MINUTE_MS);
    }
}

/// The same with the loops of the processes.
async fn the_loops_of_two_processes_run_a_due_sweep_once(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (one, other) = (env.start_as("sweeper").await, env.start_as("sweeper").await);
    let api = env.start_as("api").await;
    let loops = [Supervisor::start(&one.app).await, Supervisor::start(&other.app).await];
    for run in 1..=3 {
        // A run stores its next time when it ends, so all runs must end before the clock moves.
        let ended = "SELECT COUNT(*) FROM sweeps WHERE lease_until = 0 AND last_end_at IS NOT NULL";
        let all_ran = async {
            while lease_count(&env).await < run || env.scalar(ended).await < Sweep::ALL.len() as i64 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all_ran).await.expect("all sweeps ran");
        assert_eq!(lease_count(&env).await, run, "one run at each time");
        env.advance(60 * MINUTE_MS);
    }
    for supervisor in loops {
        supervisor.stop().await;
    }
    oracle::all_is_healed(&env, &api).await;
}

async fn a_denser_schedule_applies_from_the_start(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let hourly = env.start().await;
    assert!(runs_if_due(&hourly).await);
    let denser = env.start_but("UPLOAD_WINDOW_SCHEDULE", "*/10 * * * *").await;
    apply_schedule(&denser.app.core, Sweep::UploadWindow).await.expect("brought forward");
    assert!(!runs_if_due(&denser).await, "not yet");
    env.advance(10 * MINUTE_MS);
    assert!(runs_if_due(&denser).await);
    apply_schedule(&hourly.app.core, Sweep::UploadWindow).await.expect("nothing to bring forward");
    env.advance(10 * MINUTE_MS);
    assert!(runs_if_due(&hourly).await, "any process runs it at the stored time");
}

async fn missed_runs_are_coalesced_into_one(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let first = env.start().await;
    assert!(runs_if_due(&first).await);
    let grant = lost_upload(&env, &first).await;
    first.crash().await;
    env.advance(5 * 60 * MINUTE_MS);
    let (one, other) = (env.start().await, env.start().await);
    let both = tokio::join!(runs_if_due(&one), runs_if_due(&other));
    assert!(both.0 != both.1, "{both:?}");
    assert_eq!(lease_count(&env).await, 2, "one run for five missed times");
    assert!(!runs_if_due(&one).await && !runs_if_due(&other).await);
    assert_eq!(status(&one.me(), &grant).await, 410);
}

async fn another_process_runs_the_sweep_after_a_crash(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (one, other) = (env.start().await, env.start().await);
    let grant = lost_upload(&env, &other).await;
    env.advance(WINDOW_AND_GRACE_MS);
    claim(&one).await;
    one.crash().await;
    let due_run = run_if_due(&other.app.uploads, Sweep::UploadWindow, &CancellationToken::new()).await;
    assert!(!due_run.ran && due_run.again_at <= env.clock.now() + LEASE_MS, "{due_run:?}");
    assert_eq!(status(&other.me(), &grant).await, 200);
    env.advance(LEASE_MS);
    assert!(runs_if_due(&other).await);
    assert_eq!(status(&other.me(), &grant).await, 410);
    other.settle().await;
    oracle::all_is_healed(&env, &other).await;
}

/// A process was paused for longer than its lease, and then runs the whole sweep.
async fn a_process_that_lost_its_lease_changes_nothing(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (paused, active) = (env.start().await, env.start().await);
    let lease = SweepLease::with_fence(&paused.app.core, claim(&paused).await);
    env.advance(LEASE_MS);
    assert!(runs_if_due(&active).await, "taken over");

    let grant = lost_upload(&env, &active).await;
    env.advance(WINDOW_AND_GRACE_MS);
    assert_eq!(upload_window::run(&paused.app.uploads, &lease).await, Err(VerbError::TakenOver));
    let id = grant["fileId"].as_str().expect("an id");
    let file = active.app.core.catalog.file(id.parse().expect("an id")).await.expect("read").expect("there");
    assert_eq!((file.status.as_str(), file.version), ("registered", 1));
    assert_eq!(active.me().used().await, 3);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 0);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM notifications").await, 0);
    let recorded = env.scalar("SELECT last_start_at FROM sweeps WHERE name = 'upload-window'").await;
    assert!(recorded < env.clock.now(), "the end of its run is not stored");

    assert!(runs_if_due(&active).await, "the next run is not claimed");
    assert_eq!(status(&active.me(), &grant).await, 410);
    active.settle().await;
    oracle::all_is_healed(&env, &active).await;
}

on_each_database!(
    one_of_two_processes_runs_a_due_sweep,
    the_loops_of_two_processes_run_a_due_sweep_once,
    a_denser_schedule_applies_from_the_start,
    missed_runs_are_coalesced_into_one,
    another_process_runs_the_sweep_after_a_crash,
    a_process_that_lost_its_lease_changes_nothing,
);
