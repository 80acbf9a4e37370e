//! The same on S3 and Azure: their listings, their clocks, and other catalogs in the same bucket.

use super::{HOUR_MS, UNLIMITED, key_of, scan, unknown_key};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv};
use bytes::Bytes;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::WriteMode;

const NO_GRACE: (&str, &str) = ("ORPHAN_BLOB_GRACE_MS", "0");

async fn put(server: &TestApp, key: &str) {
    let key = ObjectKey::from_listing(key).expect("a key");
    server.app.core.blobs.put(&key, Bytes::from_static(b"unknown"), WriteMode::Overwrite).await.expect("put");
}

/// Uploads and confirms a file. Each store has its own success status for the upload.
async fn uploaded(server: &TestApp) -> String {
    let grant = server.me().init("cargo", 5).await.expect(201);
    let answer = server.put_bytes(&grant, b"bytes").await;
    assert!(answer.status.is_success(), "{}", answer.status);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    server.me().confirm(&id).await.expect(200);
    id
}

async fn only_orphans_are_deleted_after_the_grace_period(env: TestEnv) {
    let server = env.start().await;
    for _ in 0..5 {
        uploaded(&server).await;
    }
    let foreign = ["uploads/other.bin", "uploads/a b/it's ü %41+x.txt", "derived/x/y", "uploads/t/u2/x"];
    for key in foreign {
        put(&server, key).await;
    }
    put(&server, &unknown_key(1)).await;
    let early = scan(&server).await;
    assert_eq!((early.total, early.missing, early.foreign, early.listed), (0, 0, 4, 10));
    server.crash().await;

    let server = env.start_but(NO_GRACE.0, NO_GRACE.1).await;
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.errors, found.foreign), (1, 1, 0, 4));
    for key in foreign {
        let key = ObjectKey::from_listing(key).expect("a key");
        assert!(server.app.core.blobs.head(&key, None).await.is_ok(), "{key}");
        assert!(server.app.core.blobs.delete_many(&[key]).await[0].is_ok());
    }
    oracle::all_is_healed(&env, &server).await;
    assert_eq!((scan(&server).await.total, scan(&server).await.listed), (0, 5));
}

/// The store accepts the URL although the file was reclaimed long ago.
async fn a_late_put_has_no_grace_period(env: TestEnv) {
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

async fn a_missing_object_is_reported(env: TestEnv) {
    let server = env.start().await;
    let file = uploaded(&server).await;
    uploaded(&server).await;
    let key = ObjectKey::parse(&key_of(&file)).expect("a key");
    assert!(server.app.core.blobs.delete_many(&[key]).await.iter().all(Result::is_ok));
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.missing), (0, 1));
    let shown = server.me().get("/api/v2/uploads/orphans").await.expect(200);
    assert_eq!(shown["missingBlobs"]["details"][0]["fileId"], file.as_str());
}

/// The prefix of the other catalog starts with our prefix.
#[tokio::test(flavor = "multi_thread")]
async fn another_catalog_in_the_same_bucket_is_not_touched() {
    let gateway = harness::radosgw::shared();
    let bucket = gateway.create_bucket();
    let other_url = format!("s3://{bucket}/wharf2");
    let ours = TestEnv::in_bucket(Database::Sqlite, &bucket, &gateway.endpoint(), &[UNLIMITED, NO_GRACE]);
    let other = TestEnv::in_bucket(Database::Sqlite, &bucket, &gateway.endpoint(), &[])
        .also(&[("WHARFINGER_BLOB_URL", other_url.as_str())]);
    let (server, other) = (ours.start().await, other.start().await);
    let file = other.me().upload("file of the other catalog", b"bytes").await;
    put(&other, &unknown_key(1)).await;
    uploaded(&server).await;
    put(&server, &unknown_key(1)).await;
    let swept = scan(&server).await;
    assert_eq!((swept.total, swept.deleted, swept.listed), (1, 1, 2));
    let key = ObjectKey::parse(&key_of(&file)).expect("a key");
    assert!(other.app.core.blobs.head(&key, None).await.is_ok());
    let orphan = ObjectKey::from_listing(&unknown_key(1)).expect("a key");
    assert!(other.app.core.blobs.head(&orphan, None).await.is_ok());
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
    only_orphans_are_deleted_after_the_grace_period,
    a_late_put_has_no_grace_period,
    a_missing_object_is_reported,
);
