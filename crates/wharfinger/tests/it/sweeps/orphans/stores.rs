//! The same on stores that others serve: their listing, their clock, their neighbours.

use super::{HOUR_MS, UNLIMITED, key_of, scan, unknown_key};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv};
use bytes::Bytes;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::WriteMode;

const AT_ONCE: (&str, &str) = ("ORPHAN_BLOB_GRACE_MS", "0");

async fn put(server: &TestApp, key: &str) {
    let key = ObjectKey::from_listing(key).expect("a key");
    server.app.core.blobs.put(&key, Bytes::from_static(b"flotsam"), WriteMode::Overwrite).await.expect("put");
}

/// A file that is confirmed; stores have words of their own for having taken its bytes.
async fn uploaded(server: &TestApp) -> String {
    let grant = server.me().init("cargo", 5).await.expect(201);
    let answer = server.put_bytes(&grant, b"bytes").await;
    assert!(answer.status.is_success(), "{}", answer.status);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    server.me().confirm(&id).await.expect(200);
    id
}

async fn orphans_go_after_the_grace_and_the_living_stay(env: TestEnv) {
    let server = env.start().await;
    for _ in 0..5 {
        uploaded(&server).await;
    }
    let strays = ["uploads/stray.bin", "uploads/a b/it's ü %41+x.txt", "derived/x/y", "uploads/t/u2/x"];
    for key in strays {
        put(&server, key).await;
    }
    put(&server, &unknown_key(1)).await;
    let young = scan(&server).await;
    assert_eq!((young.total, young.missing, young.foreign, young.listed), (0, 0, 4, 10));
    server.crash().await;

    let server = env.start_but(AT_ONCE.0, AT_ONCE.1).await;
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.errors, found.foreign), (1, 1, 0, 4));
    for key in strays {
        let key = ObjectKey::from_listing(key).expect("a key");
        assert!(server.app.core.blobs.head(&key, None).await.is_ok(), "{key}");
        assert!(server.app.core.blobs.delete_many(&[key]).await[0].is_ok());
    }
    oracle::all_is_healed(&env, &server).await;
    assert_eq!((scan(&server).await.total, scan(&server).await.listed), (0, 5));
}

/// A URL that the store honours although everything about its file is over.
async fn a_late_put_is_swept_without_a_grace(env: TestEnv) {
    let server = env.start().await;
    uploaded(&server).await;
    let grant = server.me().init("late", 5).await.expect(201);
    env.advance(2 * HOUR_MS);
    server.settle().await;
    env.advance(2 * HOUR_MS);
    server.settle().await;
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 0);
    let answer = server.put_bytes(&grant, b"bytes").await;
    assert!(answer.status.is_success(), "{}", answer.status);
    let swept = scan(&server).await;
    assert_eq!((swept.total, swept.deleted), (1, 1));
    oracle::all_is_healed(&env, &server).await;
}

async fn what_is_missing_is_reported(env: TestEnv) {
    let server = env.start().await;
    let file = uploaded(&server).await;
    uploaded(&server).await;
    let key = ObjectKey::parse(&key_of(&file)).expect("a key");
    assert!(server.app.core.blobs.delete_many(&[key]).await.iter().all(Result::is_ok));
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.missing), (0, 1));
    let shown = server.me().get("/api/v2/uploads/orphans").await.expect(200);
    assert_eq!(shown["missingBlobs"]["samples"][0]["fileId"], file.as_str());
}

/// Another catalog's objects in the same bucket, under a prefix that begins with ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_in_the_bucket_is_not_touched() {
    let gateway = harness::radosgw::shared();
    let bucket = gateway.create_bucket();
    let theirs = format!("s3://{bucket}/wharf2");
    let ours = TestEnv::in_bucket(Database::Sqlite, &bucket, &gateway.endpoint(), &[UNLIMITED, AT_ONCE]);
    let neighbour = TestEnv::in_bucket(Database::Sqlite, &bucket, &gateway.endpoint(), &[])
        .also(&[("WHARFINGER_BLOB_URL", theirs.as_str())]);
    let (server, other) = (ours.start().await, neighbour.start().await);
    let file = other.me().upload("theirs", b"bytes").await;
    put(&other, &unknown_key(1)).await;
    uploaded(&server).await;
    put(&server, &unknown_key(1)).await;
    let swept = scan(&server).await;
    assert_eq!((swept.total, swept.deleted, swept.listed), (1, 1, 2));
    let key = ObjectKey::parse(&key_of(&file)).expect("a key");
    assert!(other.app.core.blobs.head(&key, None).await.is_ok());
    let stray = ObjectKey::from_listing(&unknown_key(1)).expect("a key");
    assert!(other.app.core.blobs.head(&stray, None).await.is_ok());
    oracle::all_is_healed(&ours, &server).await;
}

macro_rules! on_stores {
    ($($name:ident),* $(,)?) => {
        mod s3_sqlite {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(TestEnv::on_s3(Database::Sqlite, &[UNLIMITED])).await;
            })*
        }
        mod s3_postgres {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(TestEnv::on_s3(Database::Postgres, &[UNLIMITED])).await;
            })*
        }
        mod azure {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(TestEnv::on_azure(Database::Sqlite, &[UNLIMITED])).await;
            })*
        }
    };
}

on_stores!(
    orphans_go_after_the_grace_and_the_living_stay,
    a_late_put_is_swept_without_a_grace,
    what_is_missing_is_reported,
);
