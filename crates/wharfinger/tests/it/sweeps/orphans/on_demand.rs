//! Scans on demand: they show what would be deleted, and delete nothing. A real scan never relies on what they found.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharfinger::core::{Role, VerbError};
use wharfinger::sweeps::orphan_blobs::{Outcome, run_with};
use wharfinger::sweeps::{LEASE_MS, SweepLease};
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{RunStart, SweepClaim};

use super::{DAY_MS, HOUR_MS, SMALL, UNLIMITED, exists, key_of, plant, scan, stored, unknown_key};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv, on_each_database};

const SCAN: &str = "/api/v2/uploads/orphans/scan";
const ORPHANS: &str = "/api/v2/uploads/orphans";

async fn scan_now(server: &TestApp) -> Answer {
    server.operator().post(SCAN, json!({})).await
}

async fn shown(server: &TestApp) -> Value {
    server.operator().get(ORPHANS).await.expect(200)
}

async fn dry_scan(server: &TestApp) -> Result<Outcome, VerbError> {
    run_with(&server.app.core, &SweepLease::dry_run(&server.app.core), SMALL).await
}

async fn a_scan_shows_what_would_be_deleted(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    let me = server.me();
    let before = shown(&server).await;
    assert_eq!(before["lastScanTime"], Value::Null);
    let empty = json!({ "count": 0, "totalSize": 0, "samples": [], "details": [] });
    assert_eq!(before["orphanBlobs"], empty);
    let kept = me.upload("kept", b"bytes").await;
    let late = me.upload("late.pdf", b"bytes").await;
    me.delete(&format!("/api/v2/files/{late}")).await.expect(204);
    server.settle().await;
    // Bytes that came back after the delete.
    plant(&env, &key_of(&late), 0);
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    let objects = stored(&env);
    env.advance(HOUR_MS);

    let scanned = scan_now(&server).await.expect(200);
    assert_eq!((&scanned["name"], &scanned["dryRun"]), (&json!("orphan-cleanup"), &json!(true)));
    assert_eq!((&scanned["error"], &scanned["result"]["orphanBlobs"]["total"]), (&Value::Null, &json!(2)));
    let after = shown(&server).await;
    assert_eq!(after["lastScanTime"], "2025-06-15T16:06:40.000Z");
    assert_eq!(after["orphanBlobs"]["count"], 2);
    assert_eq!(after["orphanBlobs"]["samples"], json!([unknown_key(1), key_of(&late)]));
    let details = &after["orphanBlobs"]["details"];
    assert_eq!((&details[0]["fileName"], &details[1]["fileName"]), (&Value::Null, &json!("late.pdf")));
    assert_eq!((&details[1]["fileId"], &details[1]["size"]), (&json!(late), &json!(7)));
    assert_eq!(stored(&env), objects, "nothing is deleted");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 0);
    server.settle().await;
    assert_eq!(stored(&env), objects, "nor later");

    // An object that is gone is not shown after the next scan, and a real run deletes the other one.
    std::fs::remove_file(env.blob_dir().join(unknown_key(1))).expect("the object is removed");
    scan_now(&server).await.expect(200);
    assert_eq!(shown(&server).await["orphanBlobs"]["samples"], json!([key_of(&late)]));
    assert_eq!(scan(&server).await.deleted, 1);
    assert_eq!(shown(&server).await["orphanBlobs"], empty);
    assert!(exists(&env, &key_of(&kept)) && !exists(&env, &key_of(&late)));
    oracle::all_is_healed(&env, &server).await;

    for role in [Role::User, Role::Admin] {
        server.as_user("t", "u", role).post(SCAN, json!({})).await.expect_problem(403, "forbidden");
    }
}

/// Between the scan and the real run, the world has changed.
async fn a_real_scan_decides_again(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let file = server.me().upload("a", b"bytes").await;
    // For a moment the catalog does not know the file, as after an error of a person.
    env.execute("CREATE TABLE put_aside AS SELECT * FROM objects").await;
    env.execute("DELETE FROM objects").await;
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    scan_now(&server).await.expect(200);
    assert_eq!(shown(&server).await["orphanBlobs"]["count"], 2);
    env.execute("INSERT INTO objects SELECT * FROM put_aside").await;
    env.execute("DROP TABLE put_aside").await;
    assert_eq!(shown(&server).await["orphanBlobs"]["samples"], json!([unknown_key(1)]), "what is still so");
    let swept = scan(&server).await;
    assert_eq!((swept.total, swept.deleted, swept.skipped), (1, 1, 0));
    assert!(exists(&env, &key_of(&file)));
    oracle::all_is_healed(&env, &server).await;
}

async fn a_scan_is_refused_while_another_one_runs(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let faults = Faults::block_at("list");
    let server = env.start_with(faults.clone()).await;
    let refusals = async {
        faults.reached().await;
        let refused = scan_now(&server).await.expect_problem(409, "sweep_running");
        let real = server.operator().post("/api/v2/maintenance/sweeps/orphan-cleanup/run", json!({})).await;
        real.expect_problem(409, "sweep_running");
        faults.release();
        refused
    };
    let (scanned, refused) = tokio::join!(scan_now(&server), refusals);
    scanned.expect(200);
    assert!(refused["detail"].is_string());
    // A scan of a process that has died is over when its lease is.
    let claim = SweepClaim {
        name: "orphan-cleanup",
        owner: "another 17".into(),
        now: env.clock.now(),
        lease_ms: LEASE_MS,
        only_if_due: false,
        start: RunStart::default(),
    };
    server.app.core.catalog.claim_sweep(claim).await.expect("an answer");
    scan_now(&server).await.expect_problem(409, "sweep_running");
    env.advance(LEASE_MS);
    scan_now(&server).await.expect(200);
}

/// A scheduled run that is due stays due: a scan on demand is no replacement for it.
async fn a_scan_does_not_delay_the_next_run(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    let next = async || {
        let list = server.operator().get("/api/v2/maintenance/sweeps").await.expect(200);
        let sweep =
            list["sweeps"].as_array().expect("a list").iter().find(|one| one["name"] == "orphan-cleanup");
        sweep.map(|sweep| (sweep["nextRun"].clone(), sweep["lastRun"].clone()))
    };
    super::super::sweep(&server, "orphan-cleanup").await;
    let before = next().await;
    env.advance(HOUR_MS);
    scan_now(&server).await.expect(200);
    assert_eq!(next().await, before);
}

/// A stopped scan on demand is not continued by a real one, which would delete what the first has found.
async fn scans_of_different_kinds_do_not_continue_each_other(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    let stop = CancellationToken::new();
    stop.cancel();
    let stopped = async |lease: SweepLease| {
        run_with(&server.app.core, &lease.with_stop(&stop), SMALL).await.expect("it stops at once");
        env.texts("SELECT id FROM orphan_scans WHERE ended_at IS NULL").await.remove(0)
    };
    let ended = async || env.texts("SELECT id FROM orphan_scans").await.remove(0);
    let dry = stopped(SweepLease::dry_run(&server.app.core)).await;
    assert_eq!(scan(&server).await.deleted, 1);
    assert_ne!(ended().await, dry);
    let real = stopped(SweepLease::unleased(&server.app.core)).await;
    dry_scan(&server).await.expect("a scan");
    assert_ne!(ended().await, real);
    let dry = stopped(SweepLease::dry_run(&server.app.core)).await;
    dry_scan(&server).await.expect("a scan");
    assert_ne!(ended().await, dry, "it starts from the beginning");
}

async fn a_scan_that_crashes_at_any_call_deletes_nothing(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    env.start().await.crash().await;
    for n in 0..3 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let objects = stored(&env);
    for n in 1.. {
        let faults = Faults::at_ignoring_statements(n, Fault::CrashBefore);
        let server = env.start_with(faults.clone()).await;
        let _ = dry_scan(&server).await;
        let hit = faults.hit();
        server.crash().await;
        let server = env.start().await;
        server.settle().await;
        assert_eq!(stored(&env), objects, "crashed at call {n}, {hit:?}");
        assert_eq!(dry_scan(&server).await.expect("the next scan").total, 3);
        oracle::catalog_is_sound(&server).await;
        server.crash().await;
        if hit.is_none() {
            assert!(n > 5, "only {n} calls");
            break;
        }
    }
    let server = env.start().await;
    assert_eq!(scan(&server).await.deleted, 3);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_scan_shows_what_would_be_deleted,
    a_real_scan_decides_again,
    a_scan_is_refused_while_another_one_runs,
    a_scan_does_not_delay_the_next_run,
    scans_of_different_kinds_do_not_continue_each_other,
    a_scan_that_crashes_at_any_call_deletes_nothing,
);
