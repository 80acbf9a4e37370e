//! When nothing may be deleted: too much would go, or the store may be another catalog's, or newer than this one.

use super::{DAY_MS, SLOW, UNLIMITED, is_there, key_of, plant, scan, stored, try_scan, unknown_key};
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

const ANOTHERS_MARK: &str = "00000000-0000-7000-8000-000000000001 00000000-0000-7000-8000-000000000002 1\n";
const ORDERS: &str = "SELECT COUNT(*) FROM pending_cleanups";

async fn a_scan_that_would_delete_too_much_deletes_nothing(database: Database) {
    let slack = ("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/x");
    let env = TestEnv::with(database, &[slack]);
    let server = env.start().await;
    uploads(&server, 18).await;
    for n in 0..2 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let most = scan(&server).await;
    assert_eq!(
        (most.total, most.deleted, most.stopped),
        (2, 2, None),
        "ten of a hundred are not more than that"
    );

    for n in 0..3 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    for alerts in 1..=2 {
        let stopped = scan(&server).await;
        assert_eq!((stopped.total, stopped.deleted), (3, 0));
        assert!(stopped.stopped.expect("a reason").contains("3 of 21 objects"));
        assert_eq!(env.scalar(ORDERS).await, 0);
        let told = "SELECT COUNT(*) FROM outbox WHERE destination = 'slack' AND message LIKE '%3 of 21%'";
        assert_eq!(env.scalar(told).await, alerts);
        let shown = server.operator().get("/api/v2/uploads/orphans").await.expect(200);
        assert_eq!(
            (&shown["orphanBlobs"]["count"], &shown["orphanBlobs"]["totalSize"]),
            (&3.into(), &21.into())
        );
        assert!(shown["lastScanTime"].is_string());
    }
    server.crash().await;
    let server = env.start_but(UNLIMITED.0, UNLIMITED.1).await;
    assert_eq!(scan(&server).await.deleted, 3, "a person has looked, and lifted the limit");
    oracle::all_is_healed(&env, &server).await;
}

/// An empty catalog knows nothing, and would take all for orphans.
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
    assert_eq!((stored(&env).len(), env.scalar(ORDERS).await), (12, 0));
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
    let mark = env.blob_dir().join(".wharfinger/store");
    let ours = std::fs::read(&mark).expect("a mark");
    std::fs::write(&mark, ANOTHERS_MARK).expect("another's");
    assert!(in_doubt(try_scan(&server).await).contains("the store of another catalog"));
    std::fs::remove_file(&mark).expect("no mark at all");
    assert!(in_doubt(try_scan(&server).await).contains("Is its disk mounted?"));
    assert!(is_there(&env, &unknown_key(1)));
    assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_scans").await, 0, "not even looked at");
    std::fs::write(&mark, ours).expect("ours");
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
    assert!(is_there(&env, &key_of(&newer)));
    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("a person's word");
    assert_eq!(scan(&server).await.deleted, 1);
}

/// Crashes at one call after the other until the orphan is written down and not ordered to be deleted yet. One range
/// after the other: of two, the one may come as far as the end while the other dies.
async fn found_and_no_more(env: &TestEnv) {
    for n in 1..200 {
        let server = env.start_with(Faults::at(n, Fault::CrashBefore)).await;
        let _ = run_with(&server.app.core, &SweepLease::unleased(&server.app.core), SLOW).await;
        server.crash().await;
        assert_eq!(env.scalar(ORDERS).await, 0, "the moment in between was missed");
        let open = "SELECT COUNT(*) FROM orphan_scan_ranges WHERE done = 0";
        if env.scalar("SELECT COUNT(*) FROM orphan_blobs").await == 1 && env.scalar(open).await == 0 {
            return;
        }
    }
    panic!("it was never found");
}

async fn a_store_that_is_in_doubt_after_the_scan_keeps_everything(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    env.start().await.crash().await;
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    found_and_no_more(&env).await;
    let server = env.start().await;
    env.execute("UPDATE catalog_facts SET value = '0' WHERE name = 'store_counter'").await;
    in_doubt(try_scan(&server).await);
    assert_eq!(env.scalar(ORDERS).await, 0);
    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("a person's word");
    assert_eq!(scan(&server).await.deleted, 1, "the same scan goes on");
}

/// Whose the store is, is asked again when the scan is over.
async fn a_store_that_is_swapped_under_a_scan_keeps_everything(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let faults = Faults::block_at("list");
    let server = env.start_with(faults.clone()).await;
    for n in 0..100 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let swap = async {
        faults.reached().await;
        std::fs::write(env.blob_dir().join(".wharfinger/store"), ANOTHERS_MARK).expect("swapped");
        faults.release();
    };
    let both = async { tokio::join!(try_scan(&server), swap) };
    let (swept, ()) = tokio::time::timeout(std::time::Duration::from_secs(60), both).await.expect("it ends");
    assert!(in_doubt(swept).contains("the store of another catalog"));
    assert_eq!((stored(&env).len(), env.scalar(ORDERS).await), (100, 0));
}

/// The row of a living file is hidden while the scan looks, and there again when it would be queued.
async fn a_row_that_came_in_between_keeps_its_object(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let file = server.me().upload("cargo", b"bytes").await;
    server.crash().await;
    env.execute("UPDATE objects SET key = 'hidden/' || key").await;
    found_and_no_more(&env).await;
    env.execute("UPDATE objects SET key = REPLACE(key, 'hidden/', '')").await;
    let server = env.start().await;
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.deleted, seen.errors), (0, 0, 0));
    assert!(is_there(&env, &key_of(&file)));
    assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_blobs").await, 0);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_store_that_is_swapped_under_a_scan_keeps_everything,
    a_scan_that_would_delete_too_much_deletes_nothing,
    an_empty_catalog_does_not_wipe_the_store,
    the_store_of_another_catalog_is_not_touched,
    a_catalog_from_a_backup_deletes_nothing,
    a_store_that_is_in_doubt_after_the_scan_keeps_everything,
    a_row_that_came_in_between_keeps_its_object,
);
