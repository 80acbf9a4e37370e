//! The marker in the store: the bucket belongs to this catalog, and neither was restored from a backup.

use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger::core::VerbError;
use wharfinger::store::{self, StoreState};
use wharfinger::sweeps::{SweepLease, orphan_blobs};
use wharfinger_calls::faults::Faults;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::WriteMode;

use crate::test_app::{Database, TestEnv, on_each_database};

async fn start_error(env: &TestEnv) -> String {
    let overrides = env.environment().map(|(name, value)| (name, value.to_owned())).collect();
    let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
    let settings = Settings::from_values(&values).expect("possible settings");
    let secrets = prepare_secrets(&settings).expect("secrets");
    let clock = env.clock.clone();
    let opened =
        wharfinger::app::App::open(settings, &secrets, clock, Faults::none(), "http://x".into()).await;
    opened.err().expect("the start is refused").to_string()
}

async fn a_bucket_that_lost_its_marker_is_refused(database: Database) {
    let env = TestEnv::on_s3(database, &[]);
    let server = env.start().await;
    server.me().upload("cargo", b"bytes").await;
    let deleted = server.app.core.blobs.delete_many(&[ObjectKey::marker()]).await;
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    let error = start_error(&env).await;
    assert!(error.contains("Is it the right bucket?") && error.contains("--accept-store"), "{error}");

    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("accepted");
    server.crash().await;
    env.start().await.me().upload("cargo", b"bytes").await;
}

/// Another application has finished or unfinished uploads in the bucket.
async fn a_bucket_in_use_is_not_claimed(database: Database) {
    let gateway = harness::radosgw::shared();
    let settings = [("ORPHAN_BLOB_GRACE_MS", "0")];
    for unfinished in [false, true] {
        let bucket = gateway.create_bucket();
        let env = TestEnv::in_bucket(database, &bucket, &gateway.endpoint(), &settings);
        let blobs = env.blobs().await;
        let foreign = ObjectKey::from_foreign_bucket("uploads/2019/invoice.pdf").expect("a key");
        let parts = blobs.multipart().expect("S3 supports parts");
        let upload = match unfinished {
            true => Some(parts.start(&foreign, None).await.expect("started")),
            false => {
                blobs.put(&foreign, "foreign".into(), WriteMode::CreateOnly).await.expect("put");
                None
            }
        };
        let error = start_error(&env).await;
        assert!(error.contains("already in use") && error.contains("uploads/2019/invoice.pdf"), "{error}");
        assert!(error.contains("--accept-store"), "{error}");
        assert!(blobs.head(&ObjectKey::marker(), None).await.is_err(), "no marker was written");

        let catalog = env.open_catalog().await;
        let url = env.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a bucket").1;
        let store_ref = store::StoreRef::named(url, &*blobs);
        store::accept(&catalog, &store_ref, env.clock.now()).await.expect("accepted");
        let server = env.start().await;
        let scanned = server.scan_orphans().await;
        assert_eq!((scanned.total, scanned.deleted, scanned.foreign), (0, 0, 1), "{scanned:?}");
        match &upload {
            Some(upload) => drop(parts.list_parts(&foreign, upload).await.expect("still open")),
            None => drop(blobs.head(&foreign, None).await.expect("still there")),
        }
    }
}

/// The older unfinished upload has a key like env. It may belong to another program, because the store was claimed
/// later.
async fn unfinished_uploads_from_before_the_claim_are_kept(database: Database) {
    let env = TestEnv::on_s3(database, &[("ORPHAN_BLOB_GRACE_MS", "0")]);
    let key =
        |n: u32| ObjectKey::parse(&format!("uploads/t/u/00000000-0000-7000-8000-{n:012}")).expect("a key");
    let blobs = env.blobs().await;
    let parts = blobs.multipart().expect("S3 supports parts");
    let earlier = parts.start(&key(1), None).await.expect("started");
    // The store reports times in whole seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let catalog = env.open_catalog().await;
    let url = env.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a bucket").1;
    store::accept(&catalog, &store::StoreRef::named(url, &*blobs), env.clock.now()).await.expect("accepted");
    let server = env.start().await;
    let newer = parts.start(&key(2), None).await.expect("started");
    let orphan = key(3);
    blobs.put(&orphan, "orphan".into(), WriteMode::CreateOnly).await.expect("put");

    let stopped = server.scan_orphans().await;
    assert!(stopped.stopped.is_some(), "one of one is more than 10 %: {stopped:?}");
    parts.list_parts(&key(2), &newer).await.expect("a stopped scan aborts no upload");
    assert!(blobs.delete_many(&[orphan]).await[0].is_ok());

    let scanned = server.scan_orphans().await;
    assert_eq!((scanned.total, scanned.deleted, scanned.foreign), (1, 1, 1), "{scanned:?}");
    parts.list_parts(&key(1), &earlier).await.expect("the older upload is kept");
    assert!(parts.list_parts(&key(2), &newer).await.is_err(), "the newer upload is aborted");
    let logged = "SELECT COUNT(*) FROM deletion_log WHERE reason = 'unfinished_upload'";
    assert_eq!(env.scalar(logged).await, 1);
}

async fn the_bucket_of_another_catalog_is_refused(database: Database) {
    let other_env = TestEnv::on_s3(Database::Sqlite, &[]);
    let server = other_env.start().await;
    let url = other_env.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a bucket").1;
    let bucket = url.trim_start_matches("s3://").trim_end_matches("/wharf");
    let gateway = harness::radosgw::shared();
    let env = TestEnv::in_bucket(database, bucket, &gateway.endpoint(), &[]);
    let error = start_error(&env).await;
    assert!(error.contains("the store of another catalog"), "{error}");
    server.me().upload("cargo", b"bytes").await;
    let state = store::check(&server.app.core.catalog, &server.app.core.store_ref()).await;
    assert_eq!(state.expect("checked"), StoreState::Ours, "the marker is unchanged");
}

/// A restored catalog does not know newer uploads, so the sweep must not abort them.
async fn a_catalog_from_a_backup_is_detected(database: Database) {
    let settings = [("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = TestEnv::on_s3(database, &settings);
    env.start().await.crash().await;
    env.start().await.crash().await;
    env.execute("UPDATE catalog_facts SET value = '1' WHERE name = 'store_counter'").await;
    let server = env.start().await;
    let state = store::check(&server.app.core.catalog, &server.app.core.store_ref()).await.expect("checked");
    assert_eq!(state, StoreState::Restored { catalog: 1, store: 2 });

    let parts = server.app.core.blobs.multipart().expect("S3 supports parts");
    let key = ObjectKey::parse("uploads/t/u/00000000-0000-7000-8000-000000000000").expect("a key");
    let upload = parts.start(&key, None).await.expect("started");
    let result = orphan_blobs::run(&server.app.core, &SweepLease::unleased(&server.app.core)).await;
    assert!(matches!(result, Err(VerbError::StoreInDoubt(_))), "{result:?}");
    assert_eq!(parts.list_parts(&key, &upload).await.expect("kept"), []);

    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("accepted");
    let state = store::check(&server.app.core.catalog, &server.app.core.store_ref()).await.expect("checked");
    assert_eq!(state, StoreState::Ours);
    server.scan_orphans().await;
    assert!(parts.list_parts(&key, &upload).await.is_err(), "aborted after the accept");
}

/// A restored catalog may contain a file as unconfirmed that was confirmed after the backup.
async fn a_catalog_from_a_backup_reclaims_nothing(database: Database) {
    let env = TestEnv::on_s3(database, &[]);
    env.start().await.crash().await;
    let server = env.start().await;
    let grant = server.me().init("cargo", 5).await.expect(201);
    server.put_bytes(&grant, b"bytes").await.expect(200);
    server.crash().await;
    env.execute("UPDATE catalog_facts SET value = '1' WHERE name = 'store_counter'").await;

    let server = env.start().await;
    let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
    env.advance(2 * 3_600_000);
    server.settle().await;
    assert_eq!(server.me().get(&path).await.expect(200)["status"], "registered");
    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("accepted");
    server.crash().await;

    let server = env.start().await;
    env.advance(3_600_000);
    server.settle().await;
    server.me().get(&path).await.expect_problem(410, "gone");
    crate::oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_catalog_from_a_backup_reclaims_nothing,
    a_bucket_that_lost_its_marker_is_refused,
    a_bucket_in_use_is_not_claimed,
    unfinished_uploads_from_before_the_claim_are_kept,
    the_bucket_of_another_catalog_is_refused,
    a_catalog_from_a_backup_is_detected,
);
