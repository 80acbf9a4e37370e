//! Scans during other traffic: a file that is uploaded, confirmed or deleted during a scan is never treated as an
//! orphan.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{UNLIMITED, exists, key_of, try_scan};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use wharfinger::core::VerbError;
use wharfinger_calls::faults::Faults;

const USERS: u32 = 4;
const SCANS: u32 = 30;

/// Uploads and confirms files and deletes most of them, until enough scans have run. Returns the ids of the kept files.
async fn upload_and_delete(server: &TestApp, scans: &AtomicU32) -> Vec<String> {
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

/// Without a grace period, only the order of the reads and the second check protect live objects.
async fn objects_of_live_files_are_never_deleted(database: Database) {
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
    let traffic = futures::future::join_all((0..USERS).map(|_| upload_and_delete(&server, &done)));
    let (kept, ()) = tokio::join!(traffic, scans);
    for id in kept.concat() {
        assert!(exists(&env, &key_of(&id)), "the object of {id} is missing");
        assert_eq!(server.me().file(&id).await["status"], "ready");
    }
    try_scan(&server).await.expect("the last scan");
    oracle::store_matches_catalog(&env, &server).await;
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// A file that is uploaded while the store is listed has its row when the rows are read, so it is never a candidate.
async fn rows_are_read_after_the_objects(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let faults = Faults::block_at("list");
    let server = env.start_with(faults.clone()).await;
    let upload = async {
        faults.reached().await;
        let file = server.me().upload("cargo", b"bytes").await;
        faults.release();
        file
    };
    let (seen, file) = tokio::join!(try_scan(&server), upload);
    let seen = seen.expect("a scan");
    assert_eq!(
        (seen.listed, seen.total, seen.skipped, seen.missing),
        (1, 0, 0, 0),
        "the object was listed and its row was found"
    );
    assert!(exists(&env, &key_of(&file)));
}

on_each_database!(objects_of_live_files_are_never_deleted, rows_are_read_after_the_objects);
