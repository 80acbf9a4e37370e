//! Scans that crash, are taken over, run twice, or cannot read a part of the store. No orphan is lost, left or deleted
//! twice.

use super::{
    DAY_MS, HOUR_MS, SLOW, SMALL, UNKNOWN_DERIVED, UNLIMITED, exists, key_of, plant, scan, stored, try_scan,
    unknown_key,
};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use tokio_util::sync::CancellationToken;
use wharfinger::core::VerbError;
use wharfinger::sweeps::orphan_blobs::run_with;
use wharfinger::sweeps::{LEASE_MS, ManualRun, Sweep, SweepLease, SweepRunError, run_now};
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{Fence, RunStart, SweepClaim, SweepClaimOutcome};

const ORPHANS: u64 = 5;

fn plant_orphans(env: &TestEnv) {
    for n in 0..ORPHANS {
        plant(env, &unknown_key(n), 2 * DAY_MS);
    }
}

fn orphans_left(env: &TestEnv) -> u64 {
    (0..ORPHANS).filter(|n| exists(env, &unknown_key(*n))).count() as u64
}

/// Waits longer than any retry delay.
async fn settle_later(env: &TestEnv, server: &TestApp) {
    for _ in 0..3 {
        env.advance(2 * HOUR_MS);
        server.settle().await;
    }
}

async fn upload_three(env: &TestEnv) -> Vec<String> {
    let server = env.start().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(server.me().upload("cargo", b"bytes").await);
    }
    server.crash().await;
    ids
}

/// Hits each call between transactions and each call to the store with every fault that has a different effect there.
async fn a_scan_that_crashes_at_any_call_is_resumed(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let ids = upload_three(&env).await;
    let mut n = 1;
    while let Some(call) = hit_call(&env, Fault::Fail, n).await {
        for fault in Fault::distinct_at(call).iter().filter(|fault| **fault != Fault::Fail) {
            hit_call(&env, *fault, n).await;
        }
        n += 1;
        assert!(n < 300, "the scan makes too many calls");
    }
    assert!(n > 10, "only {n} calls");
    assert!(ids.iter().all(|id| exists(&env, &key_of(id))));
}

/// Returns the name of the call that was hit, or None if the scan made fewer calls.
async fn hit_call(env: &TestEnv, fault: Fault, n: u64) -> Option<&'static str> {
    plant_orphans(env);
    let faults = Faults::at_ignoring_statements(n, fault);
    let server = env.start_with(faults.clone()).await;
    let _ = try_scan(&server).await;
    let call = faults.hit();
    server.crash().await;

    let server = env.start().await;
    oracle::catalog_is_sound(&server).await;
    let resumed = scan(&server).await;
    assert_eq!(resumed.errors, 0, "{fault:?} at {n}: {resumed:?}");
    settle_later(env, &server).await;
    assert_eq!(orphans_left(env), 0, "{fault:?} at {n}");
    let again = scan(&server).await;
    assert_eq!((again.total, again.missing, again.listed), (0, 0, 3), "{fault:?} at {n}");
    oracle::all_is_healed_at(env, &server, &format!("{fault:?} at {n}")).await;
    server.crash().await;
    call
}

async fn claim(server: &TestApp) -> Fence {
    let claim = SweepClaim {
        name: "orphan-cleanup",
        owner: "a process".into(),
        now: server.app.core.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: true,
        start: RunStart::default(),
    };
    match server.app.core.catalog.claim_sweep(claim).await.expect("an answer") {
        SweepClaimOutcome::Leased(fence) => fence,
        other => panic!("{other:?}"),
    }
}

async fn a_scan_that_lost_its_lease_deletes_nothing(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    upload_three(&env).await;
    plant_orphans(&env);
    let (old, new) = (env.start().await, env.start().await);
    let lost = SweepLease::with_fence(&old.app.core, claim(&old).await);
    env.advance(LEASE_MS);
    let lease = SweepLease::with_fence(&new.app.core, claim(&new).await);
    assert_eq!(run_with(&old.app.core, &lost, SMALL).await, Err(VerbError::TakenOver));
    let written = "SELECT (SELECT COUNT(*) FROM orphan_scans) + (SELECT COUNT(*) FROM orphan_blobs) \
        + (SELECT COUNT(*) FROM pending_cleanups)";
    assert_eq!((env.scalar(written).await, orphans_left(&env)), (0, ORPHANS));

    let swept = run_with(&new.app.core, &lease, SMALL).await.expect("the lease is valid");
    assert_eq!((swept.total, swept.deleted), (ORPHANS, ORPHANS));
    oracle::all_is_healed(&env, &new).await;
}

/// After a crash in the middle of a scan, the next process continues it and counts each object once.
async fn a_new_lease_owner_resumes_the_scan(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let ids = upload_three(&env).await;
    plant_orphans(&env);
    for n in 1.. {
        let server = env.start_with(Faults::at(n, Fault::CrashBefore)).await;
        let _ = try_scan(&server).await;
        server.crash().await;
        let (listed, open) = (
            env.scalar("SELECT CAST(COALESCE(SUM(listed), 0) AS BIGINT) FROM orphan_scan_ranges").await,
            env.scalar("SELECT COUNT(*) FROM orphan_scan_ranges WHERE done = 0").await,
        );
        if listed > 0 && open > 0 {
            break;
        }
        assert_eq!(
            env.scalar("SELECT COUNT(*) FROM pending_cleanups").await,
            0,
            "the scan has finished: there was no crash in the middle"
        );
    }
    let id = env.texts("SELECT id FROM orphan_scans").await;
    let server = env.start().await;
    let swept = scan(&server).await;
    assert_eq!(env.texts("SELECT id FROM orphan_scans").await, id, "the same scan");
    assert_eq!((swept.total, swept.deleted), (ORPHANS, ORPHANS));
    assert_eq!(swept.listed, ORPHANS + ids.len() as u64, "each object is counted once");

    // A scan that was interrupted for too long is not resumed.
    plant_orphans(&env);
    let stop = CancellationToken::new();
    stop.cancel();
    run_with(&server.app.core, &SweepLease::unleased(&server.app.core).with_stop(&stop), SMALL)
        .await
        .expect("it stops immediately");
    let interrupted = env.texts("SELECT id FROM orphan_scans WHERE ended_at IS NULL").await;
    assert_eq!(interrupted.len(), 1);
    env.advance(DAY_MS as i64);
    assert_eq!(scan(&server).await.deleted, ORPHANS);
    assert_ne!(env.texts("SELECT id FROM orphan_scans").await, interrupted);
}

async fn a_shutdown_stops_the_scan_after_a_page(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    upload_three(&env).await;
    plant_orphans(&env);
    let server = env.start().await;
    let stop = CancellationToken::new();
    let lease = SweepLease::unleased(&server.app.core).with_stop(&stop);
    let stop_in_the_middle = async {
        while env.scalar("SELECT COUNT(*) FROM orphan_scan_ranges WHERE listed > 0").await == 0 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let mut sweeping = std::pin::pin!(run_with(&server.app.core, &lease, SLOW));
    let swept = tokio::select! {
        swept = &mut sweeping => swept,
        () = stop_in_the_middle => sweeping.await,
    };
    swept.expect("the scan stops without an error");
    let rest = scan(&server).await;
    // The first scan may have stopped at any page.
    assert_eq!(rest.deleted + ORPHANS - rest.total, ORPHANS);
    assert_eq!(orphans_left(&env), 0);
    oracle::all_is_healed(&env, &server).await;
}

/// All deletes fail, so their cleanups stay and can be counted.
async fn two_sweepers_handle_each_orphan_once(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    upload_three(&env).await;
    plant_orphans(&env);
    let (one, other) = (
        env.start_with(Faults::every_nth("delete", 1)).await,
        env.start_with(Faults::every_nth("delete", 1)).await,
    );
    let manual = ManualRun::default();
    let run = async |server: &TestApp| run_now(&server.app.uploads, Sweep::OrphanCleanup, &manual).await;
    for _ in 0..3 {
        let (a, b) = tokio::join!(run(&one), run(&other));
        assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
        for outcome in [a, b] {
            assert!(
                matches!(outcome, Ok(_) | Err(SweepRunError::Busy { .. })),
                "the other process runs the sweep: {outcome:?}"
            );
        }
        assert_eq!(orphans_left(&env), ORPHANS, "no delete succeeded");
    }
    scan(&one).await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, ORPHANS as i64);
    assert_eq!(env.scalar("SELECT COUNT(DISTINCT file_path) FROM pending_cleanups").await, ORPHANS as i64);
    let shown = one.operator().get("/api/v2/uploads/orphans").await.expect(200);
    assert_eq!(shown["orphanBlobs"]["count"], ORPHANS, "they are listed until they are deleted");
    let server = env.start().await;
    settle_later(&env, &server).await;
    oracle::all_is_healed(&env, &server).await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_blobs").await, 0);
}

async fn all_orphans_are_deleted_if_every_third_delete_fails(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    upload_three(&env).await;
    for n in 0..20 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let server = env.start_with(Faults::every_nth("delete", 3)).await;
    let swept = scan(&server).await;
    assert_eq!((swept.total, swept.deleted, swept.errors), (20, 14, 6));
    for _ in 0..12 {
        env.advance(2 * HOUR_MS);
        server.settle().await;
    }
    assert_eq!(scan(&server).await.total, 0);
    oracle::all_is_healed(&env, &server).await;
}

/// I17: a prefix that can never be listed does not block the others.
async fn a_prefix_that_cannot_be_listed_does_not_block_the_others(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    upload_three(&env).await;
    plant(&env, UNKNOWN_DERIVED, 2 * DAY_MS);
    let server = env.start_with(Faults::every_nth("list derived", 1)).await;
    for _ in 0..2 {
        plant_orphans(&env);
        let swept = scan(&server).await;
        assert_eq!((swept.total, swept.deleted, swept.errors), (ORPHANS, ORPHANS, 1));
        assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_scans WHERE ended_at IS NULL").await, 0);
    }
    assert_eq!(stored(&env).len(), 4);
    server.crash().await;
    let server = env.start().await;
    assert_eq!(scan(&server).await.deleted, 1);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_scan_that_crashes_at_any_call_is_resumed,
    a_scan_that_lost_its_lease_deletes_nothing,
    a_new_lease_owner_resumes_the_scan,
    a_shutdown_stops_the_scan_after_a_page,
    two_sweepers_handle_each_orphan_once,
    all_orphans_are_deleted_if_every_third_delete_fails,
    a_prefix_that_cannot_be_listed_does_not_block_the_others,
);
