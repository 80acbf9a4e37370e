//! Scans beside all that goes on: what is uploaded, confirmed and deleted meanwhile is never taken for an orphan.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{UNLIMITED, is_there, key_of, try_scan};
use crate::oracle;
use crate::test_app::{Database, Ground, TestApp, on_each_database};
use wharfinger::uploads::VerbError;

const USERS: u32 = 4;
const ROUNDS: u32 = 25;

/// Uploads and confirms, deletes some; answers what it keeps.
async fn live(server: &TestApp, user: u32) -> Vec<String> {
    let me = server.me();
    let mut kept = Vec::new();
    for round in 0..ROUNDS {
        let grant = me.init("cargo", 5).await.expect(201);
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        server.put_bytes(&grant, b"bytes").await.expect(200);
        assert_eq!(me.confirm(&id).await.expect(200)["status"], "ready");
        if (round + user) % 3 == 0 {
            me.delete(&format!("/api/v2/files/{id}")).await.expect(204);
        } else {
            kept.push(id);
        }
    }
    kept
}

/// Without a grace nothing but the order of the reads keeps the living apart from orphans.
async fn nothing_alive_is_taken(database: Database) {
    let ground = Ground::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = ground.start().await;
    let over = AtomicBool::new(false);
    let scans = async {
        let mut scans = 0;
        while !over.load(Ordering::SeqCst) {
            match try_scan(&server).await {
                Ok(seen) => assert_eq!((seen.missing, seen.errors), (0, 0), "{seen:?}"),
                Err(error) => assert_eq!(error, VerbError::TakenOver),
            }
            server.settle().await;
            scans += 1;
        }
        scans
    };
    let lives = async {
        let kept = futures::future::join_all((0..USERS).map(|user| live(&server, user))).await;
        over.store(true, Ordering::SeqCst);
        kept.concat()
    };
    let (scans, kept) = tokio::join!(scans, lives);
    assert!(scans > 3, "only {scans} scans");
    for id in &kept {
        assert!(is_there(&ground, &key_of(id)), "{id} of {} files", kept.len());
        assert_eq!(server.me().file(id).await["status"], "ready");
    }
    try_scan(&server).await.expect("a last scan");
    oracle::store_and_catalog_agree(&ground, &server).await;
    server.settle().await;
    oracle::all_is_healed(&ground, &server).await;
}

on_each_database!(nothing_alive_is_taken);
