//! Scheduled sweeps of several processes on one catalog: each run is one process's turn, a process that dies is
//! followed by another, and one that lost its turn changes nothing more (I13).

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use wharfinger::core::VerbError;
use wharfinger::sweeps::{LEASE_MS, Sweep, SweepLease, apply_schedule, run_if_due, upload_window};
use wharfinger::worker::Supervisor;
use wharfinger_catalog::{Fence, SweepClaim, SweepClaimOutcome};

use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const MINUTE_MS: i64 = 60_000;
const WINDOW_AND_GRACE_MS: i64 = 3_660_000;
const HOURLY: [(&str, &str); 2] =
    [("UPLOAD_WINDOW_SCHEDULE", "0 * * * *"), ("CLEANUP_SWEEP_SCHEDULE", "0 * * * *")];

async fn ran(server: &TestApp) -> bool {
    run_if_due(&server.app.uploads, Sweep::UploadWindow, &CancellationToken::new()).await.ran
}

/// The number of turns there have been.
async fn turns(env: &TestEnv) -> i64 {
    env.scalar("SELECT COALESCE(MAX(lease_token), 0) FROM sweeps WHERE name = 'upload-window'").await
}

/// As a process that claims its turn and then does nothing.
async fn claim(server: &TestApp) -> Fence {
    let claim = SweepClaim {
        name: upload_window::NAME,
        owner: "one that dies".into(),
        now: server.app.core.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
    };
    match server.app.core.catalog.claim_sweep(claim).await.expect("asked") {
        SweepClaimOutcome::Leased(fence) => fence,
        other => panic!("{other:?}"),
    }
}

/// An upload that nobody confirms and whose delayed check was lost: only the sweep finds it.
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

async fn one_of_two_runs_at_the_scheduled_time(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (one, other) = (env.start().await, env.start().await);
    for run in 1..=4 {
        let both = tokio::join!(ran(&one), ran(&other));
        assert!(both.0 != both.1, "run {run}: {both:?}");
        assert_eq!(turns(&env).await, run);
        assert!(!ran(&one).await && !ran(&other).await, "it is not due again");
        env.advance(60 * MINUTE_MS);
    }
}

/// The same with the loops themselves, which nobody tells when to look.
async fn the_loops_of_two_take_turns(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (one, other) = (env.start_as("sweeper").await, env.start_as("sweeper").await);
    let api = env.start_as("api").await;
    let loops = [Supervisor::start(&one.app).await, Supervisor::start(&other.app).await];
    for run in 1..=3 {
        // Only of what is at rest the next time is written down, by the clock as it stands.
        let at_rest = "SELECT COUNT(*) FROM sweeps WHERE lease_until = 0 AND last_end_at IS NOT NULL";
        let all_ran = async {
            while turns(&env).await < run || env.scalar(at_rest).await < Sweep::ALL.len() as i64 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all_ran).await.expect("it runs");
        assert_eq!(turns(&env).await, run, "once each time");
        env.advance(60 * MINUTE_MS);
    }
    for supervisor in loops {
        supervisor.stop().await;
    }
    oracle::all_is_healed(&env, &api).await;
}

async fn a_denser_schedule_holds_from_the_start(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let hourly = env.start().await;
    assert!(ran(&hourly).await);
    let denser = env.start_but("UPLOAD_WINDOW_SCHEDULE", "*/10 * * * *").await;
    apply_schedule(&denser.app.core, Sweep::UploadWindow).await.expect("brought forward");
    assert!(!ran(&denser).await, "not yet");
    env.advance(10 * MINUTE_MS);
    assert!(ran(&denser).await);
    apply_schedule(&hourly.app.core, Sweep::UploadWindow).await.expect("nothing to bring forward");
    env.advance(10 * MINUTE_MS);
    assert!(ran(&hourly).await, "whoever is there runs it at the time written down");
}

async fn runs_that_were_missed_are_made_up_for_once(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let first = env.start().await;
    assert!(ran(&first).await);
    let grant = lost_upload(&env, &first).await;
    first.crash().await;
    env.advance(5 * 60 * MINUTE_MS);
    let (one, other) = (env.start().await, env.start().await);
    let both = tokio::join!(ran(&one), ran(&other));
    assert!(both.0 != both.1, "{both:?}");
    assert_eq!(turns(&env).await, 2, "once for the five that were missed");
    assert!(!ran(&one).await && !ran(&other).await);
    assert_eq!(status(&one.me(), &grant).await, 410);
}

async fn who_dies_in_its_turn_is_followed_by_another(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (one, other) = (env.start().await, env.start().await);
    let grant = lost_upload(&env, &other).await;
    env.advance(WINDOW_AND_GRACE_MS);
    claim(&one).await;
    one.crash().await;
    let looked = run_if_due(&other.app.uploads, Sweep::UploadWindow, &CancellationToken::new()).await;
    assert!(!looked.ran && looked.again_at <= env.clock.now() + LEASE_MS, "{looked:?}");
    assert_eq!(status(&other.me(), &grant).await, 200);
    env.advance(LEASE_MS);
    assert!(ran(&other).await);
    assert_eq!(status(&other.me(), &grant).await, 410);
    other.settle().await;
    oracle::all_is_healed(&env, &other).await;
}

/// The whole sweep of a process that slept through its lease, and then a single change of it.
async fn who_lost_its_turn_changes_nothing_more(database: Database) {
    let env = TestEnv::with(database, &HOURLY);
    let (zombie, heir) = (env.start().await, env.start().await);
    let lease = SweepLease::with_fence(&zombie.app.core, claim(&zombie).await);
    env.advance(LEASE_MS);
    assert!(ran(&heir).await, "taken over");

    let grant = lost_upload(&env, &heir).await;
    env.advance(WINDOW_AND_GRACE_MS);
    assert_eq!(upload_window::run(&zombie.app.uploads, &lease).await, Err(VerbError::TakenOver));
    let id = grant["fileId"].as_str().expect("an id");
    let file = heir.app.core.catalog.file(id.parse().expect("an id")).await.expect("read").expect("there");
    assert_eq!((file.status.as_str(), file.version), ("registered", 1));
    assert_eq!(heir.me().used().await, 3);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 0);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM notifications").await, 0);
    let recorded = env.scalar("SELECT last_start_at FROM sweeps WHERE name = 'upload-window'").await;
    assert!(recorded < env.clock.now(), "its end is not written down either");

    assert!(ran(&heir).await, "the next is nobody's yet");
    assert_eq!(status(&heir.me(), &grant).await, 410);
    heir.settle().await;
    oracle::all_is_healed(&env, &heir).await;
}

on_each_database!(
    one_of_two_runs_at_the_scheduled_time,
    the_loops_of_two_take_turns,
    a_denser_schedule_holds_from_the_start,
    runs_that_were_missed_are_made_up_for_once,
    who_dies_in_its_turn_is_followed_by_another,
    who_lost_its_turn_changes_nothing_more,
);
