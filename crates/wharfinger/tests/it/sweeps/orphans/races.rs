//! Scans beside all that goes on: what is uploaded, confirmed and deleted meanwhile is never taken for an orphan.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{UNLIMITED, is_there, key_of, try_scan};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use wharfinger::core::VerbError;
use wharfinger_calls::faults::Faults;

const USERS: u32 = 4;
const SCANS: u32 = 30;

/// Uploads and confirms, deletes most, until enough scans have looked on; answers what it keeps.
async fn live(server: &TestApp, scans: &AtomicU32) -> Vec<String> {
    let me = server.me();
    let mut kept = Vec::new();
    let mut round = 0;
    while scans.load(Ordering::SeqCst) < SCANS {
        round += 1;
        let grant = me.init("cargo", 5).await.expect(201);
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        server.put_bytes(&grant, b"bytes").await.expect(200);
        assert_eq!(me.confirm(&id).await.expect(200)["status"], "ready");
        if round % 4 == 0 {
            kept.push(id);
        } else {
            me.delete(&format!("/api/v2/files/{id}")).await.expect(204);
        }
    }
    kept
}

/// Without a grace nothing but the order of the reads and the second look keep the living apart from orphans.
async fn nothing_alive_is_taken(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let done = AtomicU32::new(0);
    let scans = async {
        while done.load(Ordering::SeqCst) < SCANS {
            match try_scan(&server).await {
                Ok(seen) => assert_eq!((seen.missing, seen.errors, seen.skipped), (0, 0, 0), "{seen:?}"),
                Err(error) => assert_eq!(error, VerbError::TakenOver),
            }
            server.settle().await;
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let lives = futures::future::join_all((0..USERS).map(|_| live(&server, &done)));
    let (kept, ()) = tokio::join!(lives, scans);
    for id in kept.concat() {
        assert!(is_there(&env, &key_of(&id)), "{id} is gone");
        assert_eq!(server.me().file(&id).await["status"], "ready");
    }
    try_scan(&server).await.expect("a last scan");
    oracle::store_and_catalog_agree(&env, &server).await;
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// What comes while the store is being listed has its row by the time the rows are read: it is not even suspected.
async fn rows_are_read_after_the_objects(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let faults = Faults::block_at("list");
    let server = env.start_with(faults.clone()).await;
    let comes = async {
        faults.reached().await;
        let file = server.me().upload("cargo", b"bytes").await;
        faults.release();
        file
    };
    let (seen, file) = tokio::join!(try_scan(&server), comes);
    let seen = seen.expect("a scan");
    assert_eq!(
        (seen.listed, seen.total, seen.skipped, seen.missing),
        (1, 0, 0, 0),
        "it was listed, and known"
    );
    assert!(is_there(&env, &key_of(&file)));
}

on_each_database!(nothing_alive_is_taken, rows_are_read_after_the_objects);
