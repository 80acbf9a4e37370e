//! The scan deletes nothing if it would delete too much, if the store may belong to another catalog, or if the store is
//! newer than the catalog.

use super::{DAY_MS, SLOW, UNLIMITED, exists, key_of, plant, scan, stored, try_scan, unknown_key};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use wharfinger::core::VerbError;
use wharfinger::store;
use wharfinger::sweeps::SweepLease;
use wharfinger::sweeps::orphan_blobs::run_with;
use wharfinger_calls::faults::{Fault, Faults};

async fn uploads(server: &TestApp, count: usize) {
    for _ in 0..count {
        server.me().upload("cargo", b"bytes").await;
    }
}

const FOREIGN_MARKER: &str = "00000000-0000-7000-8000-000000000001 00000000-0000-7000-8000-000000000002 1\n";
const CLEANUPS: &str = "SELECT COUNT(*) FROM pending_cleanups";

async fn a_scan_that_would_delete_too_much_deletes_nothing(database: Database) {
    let slack = ("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/x");
    let env = TestEnv::with(database, &[slack]);
    let server = env.start().await;
    uploads(&server, 18).await;
    for n in 0..2 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let at_limit = scan(&server).await;
    assert_eq!(
        (at_limit.total, at_limit.deleted, at_limit.stopped),
        (2, 2, None),
        "10 % is within the limit"
    );

    for n in 0..3 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    for alerts in 1..=2 {
        let stopped = scan(&server).await;
        assert_eq!((stopped.total, stopped.deleted), (3, 0));
        assert!(stopped.stopped.expect("a reason").contains("3 of 21 objects"));
        assert_eq!(env.scalar(CLEANUPS).await, 0);
        let alert_count =
            "SELECT COUNT(*) FROM outbox WHERE destination = 'slack' AND message LIKE '%3 of 21%'";
        assert_eq!(env.scalar(alert_count).await, alerts);
        let shown = server.operator().get("/api/v2/uploads/orphans").await.expect(200);
        assert_eq!(
            (&shown["orphanBlobs"]["count"], &shown["orphanBlobs"]["totalSize"]),
            (&3.into(), &21.into())
        );
        assert!(shown["lastScanTime"].is_string());
    }
    server.crash().await;
    let server = env.start_but(UNLIMITED.0, UNLIMITED.1).await;
    assert_eq!(scan(&server).await.deleted, 3, "the operator has removed the limit");
    oracle::all_is_healed(&env, &server).await;
}

/// For an empty catalog every object looks like an orphan.
async fn an_empty_catalog_does_not_wipe_the_store(database: Database) {
    let env = TestEnv::with(database, &[("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    uploads(&server, 12).await;
    for table in ["DELETE FROM files", "DELETE FROM objects", "DELETE FROM jobs"] {
        env.execute(table).await;
    }
    let stopped = scan(&server).await;
    assert_eq!((stopped.total, stopped.deleted), (12, 0));
    assert!(stopped.stopped.is_some());
    assert_eq!((stored(&env).len(), env.scalar(CLEANUPS).await), (12, 0));
}

#[track_caller]
fn in_doubt<T: std::fmt::Debug>(outcome: Result<T, VerbError>) -> String {
    match outcome {
        Err(VerbError::StoreInDoubt(why)) => why,
        other => panic!("{other:?}"),
    }
}

async fn the_store_of_another_catalog_is_not_touched(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 2).await;
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    let marker = env.blob_dir().join(".wharfinger/store");
    let ours = std::fs::read(&marker).expect("a marker");
    std::fs::write(&marker, FOREIGN_MARKER).expect("a foreign marker");
    assert!(in_doubt(try_scan(&server).await).contains("the store of another catalog"));
    std::fs::remove_file(&marker).expect("no marker");
    assert!(in_doubt(try_scan(&server).await).contains("Is its disk mounted?"));
    assert!(exists(&env, &unknown_key(1)));
    assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_scans").await, 0, "the scan did not start");
    std::fs::write(&marker, ours).expect("our marker");
    assert_eq!(scan(&server).await.deleted, 1);
}

async fn a_catalog_from_a_backup_deletes_nothing(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    env.start().await.crash().await;
    let server = env.start().await;
    let newer = server.me().upload("newer than the backup", b"bytes").await;
    plant(&env, &key_of(&newer), 2 * DAY_MS);
    env.execute("DELETE FROM files").await;
    env.execute("DELETE FROM objects").await;
    env.execute("UPDATE catalog_facts SET value = '1' WHERE name = 'store_counter'").await;
    assert!(in_doubt(try_scan(&server).await).contains("--accept-store"));
    assert!(exists(&env, &key_of(&newer)));
    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("accepted");
    assert_eq!(scan(&server).await.deleted, 1);
}

/// Crashes a scan at each call in turn, until the orphan is recorded and its cleanup is not. Uses one range at a time,
/// because of two concurrent ranges one may finish while the other crashes.
async fn crash_after_the_orphan_is_recorded(env: &TestEnv) {
    for n in 1..200 {
        let server = env.start_with(Faults::at(n, Fault::CrashBefore)).await;
        let _ = run_with(&server.app.core, &SweepLease::unleased(&server.app.core), SLOW).await;
        server.crash().await;
        assert_eq!(
            env.scalar(CLEANUPS).await,
            0,
            "the cleanup exists already: there was no crash between the two"
        );
        let open = "SELECT COUNT(*) FROM orphan_scan_ranges WHERE done = 0";
        if env.scalar("SELECT COUNT(*) FROM orphan_blobs").await == 1 && env.scalar(open).await == 0 {
            return;
        }
    }
    panic!("the orphan was not found");
}

async fn nothing_is_deleted_if_the_store_is_in_doubt_after_the_scan(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    env.start().await.crash().await;
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    crash_after_the_orphan_is_recorded(&env).await;
    let server = env.start().await;
    env.execute("UPDATE catalog_facts SET value = '0' WHERE name = 'store_counter'").await;
    in_doubt(try_scan(&server).await);
    assert_eq!(env.scalar(CLEANUPS).await, 0);
    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("accepted");
    assert_eq!(scan(&server).await.deleted, 1, "the same scan continues");
}

/// The scan checks the marker again before it deletes.
async fn nothing_is_deleted_if_the_store_is_replaced_during_the_scan(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let faults = Faults::block_at("list");
    let server = env.start_with(faults.clone()).await;
    for n in 0..100 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let replace = async {
        faults.reached().await;
        std::fs::write(env.blob_dir().join(".wharfinger/store"), FOREIGN_MARKER).expect("a foreign marker");
        faults.release();
    };
    let both = async { tokio::join!(try_scan(&server), replace) };
    let (swept, ()) = tokio::time::timeout(std::time::Duration::from_secs(60), both).await.expect("it ends");
    assert!(in_doubt(swept).contains("the store of another catalog"));
    assert_eq!((stored(&env).len(), env.scalar(CLEANUPS).await), (100, 0));
}

/// The row of a live file is hidden during the scan and visible again before the cleanup is written.
async fn an_object_whose_row_appears_after_the_scan_is_kept(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let file = server.me().upload("cargo", b"bytes").await;
    server.crash().await;
    env.execute("UPDATE objects SET key = 'hidden/' || key").await;
    crash_after_the_orphan_is_recorded(&env).await;
    env.execute("UPDATE objects SET key = REPLACE(key, 'hidden/', '')").await;
    let server = env.start().await;
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.deleted, seen.errors), (0, 0, 0));
    assert!(exists(&env, &key_of(&file)));
    assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_blobs").await, 0);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    nothing_is_deleted_if_the_store_is_replaced_during_the_scan,
    a_scan_that_would_delete_too_much_deletes_nothing,
    an_empty_catalog_does_not_wipe_the_store,
    the_store_of_another_catalog_is_not_touched,
    a_catalog_from_a_backup_deletes_nothing,
    nothing_is_deleted_if_the_store_is_in_doubt_after_the_scan,
    an_object_whose_row_appears_after_the_scan_is_kept,
);
