//! The bucket is the one this catalog's objects lie in, and as old as the catalog is.

use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger::core::VerbError;
use wharfinger::store::{self, StoreState};
use wharfinger::sweeps::{SweepLease, orphan_blobs};
use wharfinger_calls::faults::Faults;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::WriteMode;

use crate::test_app::{Database, TestEnv, on_each_database};

async fn refusal(env: &TestEnv) -> String {
    let overrides = env.environment().map(|(name, value)| (name, value.to_owned())).collect();
    let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
    let settings = Settings::from_values(&values).expect("possible settings");
    let secrets = prepare_secrets(&settings).expect("secrets");
    let clock = env.clock.clone();
    let opened =
        wharfinger::app::App::open(settings, &secrets, clock, Faults::none(), "http://x".into()).await;
    opened.err().expect("the start is refused").to_string()
}

async fn a_bucket_that_lost_its_mark_is_refused(database: Database) {
    let env = TestEnv::on_s3(database, &[]);
    let server = env.start().await;
    server.me().upload("cargo", b"bytes").await;
    let deleted = server.app.core.blobs.delete_many(&[ObjectKey::marker()]).await;
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    let said = refusal(&env).await;
    assert!(said.contains("Is it the right bucket?") && said.contains("--accept-store"), "{said}");

    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("a person's word");
    server.crash().await;
    env.start().await.me().upload("cargo", b"bytes").await;
}

/// A bucket in which an application keeps its own uploads, finished and unfinished ones.
async fn a_bucket_in_use_is_not_claimed(database: Database) {
    let gateway = harness::radosgw::shared();
    let settings = [("ORPHAN_BLOB_GRACE_MS", "0")];
    for unfinished in [false, true] {
        let bucket = gateway.create_bucket();
        let env = TestEnv::in_bucket(database, &bucket, &gateway.endpoint(), &settings);
        let blobs = env.blobs().await;
        let theirs = ObjectKey::from_foreign_bucket("uploads/2019/invoice.pdf").expect("a key");
        let parts = blobs.multipart().expect("S3 takes parts");
        let upload = match unfinished {
            true => Some(parts.start(&theirs, None).await.expect("begun")),
            false => {
                blobs.put(&theirs, "theirs".into(), WriteMode::CreateOnly).await.expect("put");
                None
            }
        };
        let said = refusal(&env).await;
        assert!(said.contains("already in use") && said.contains("uploads/2019/invoice.pdf"), "{said}");
        assert!(said.contains("--accept-store"), "{said}");
        assert!(blobs.head(&ObjectKey::marker(), None).await.is_err(), "it is not ours");

        let catalog = env.open_catalog().await;
        let url = env.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a bucket").1;
        let place = store::StoreRef::named(url, &*blobs);
        store::accept(&catalog, &place, env.clock.now()).await.expect("accepted");
        let server = env.start().await;
        let scanned = server.scan_orphans().await;
        assert_eq!((scanned.total, scanned.deleted, scanned.foreign), (0, 0, 1), "{scanned:?}");
        match &upload {
            Some(upload) => drop(parts.list_parts(&theirs, upload).await.expect("still open")),
            None => drop(blobs.head(&theirs, None).await.expect("still there")),
        }
    }
}

/// An unfinished upload under a key of our form, from before the store was ours; and one of ours in a scan that stops.
async fn unfinished_uploads_of_others_are_left_alone(database: Database) {
    let env = TestEnv::on_s3(database, &[("ORPHAN_BLOB_GRACE_MS", "0")]);
    let key =
        |n: u32| ObjectKey::parse(&format!("uploads/t/u/00000000-0000-7000-8000-{n:012}")).expect("a key");
    let blobs = env.blobs().await;
    let parts = blobs.multipart().expect("S3 takes parts");
    let earlier = parts.start(&key(1), None).await.expect("begun");
    // The store tells whole seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let catalog = env.open_catalog().await;
    let url = env.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a bucket").1;
    store::accept(&catalog, &store::StoreRef::named(url, &*blobs), env.clock.now()).await.expect("accepted");
    let server = env.start().await;
    let ours = parts.start(&key(2), None).await.expect("begun");
    let orphan = key(3);
    blobs.put(&orphan, "flotsam".into(), WriteMode::CreateOnly).await.expect("put");

    let stopped = server.scan_orphans().await;
    assert!(stopped.stopped.is_some(), "one of one is more than 10 %: {stopped:?}");
    parts.list_parts(&key(2), &ours).await.expect("where nothing is deleted, nothing is ended");
    assert!(blobs.delete_many(&[orphan]).await[0].is_ok());

    let scanned = server.scan_orphans().await;
    assert_eq!((scanned.total, scanned.deleted, scanned.foreign), (1, 1, 1), "{scanned:?}");
    parts.list_parts(&key(1), &earlier).await.expect("of others");
    assert!(parts.list_parts(&key(2), &ours).await.is_err(), "ended");
    let logged = "SELECT COUNT(*) FROM deletion_log WHERE reason = 'unfinished_upload'";
    assert_eq!(env.scalar(logged).await, 1);
}

async fn the_bucket_of_another_catalog_is_refused(database: Database) {
    let theirs = TestEnv::on_s3(Database::Sqlite, &[]);
    let server = theirs.start().await;
    let url = theirs.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a bucket").1;
    let bucket = url.trim_start_matches("s3://").trim_end_matches("/wharf");
    let gateway = harness::radosgw::shared();
    let ours = TestEnv::in_bucket(database, bucket, &gateway.endpoint(), &[]);
    let said = refusal(&ours).await;
    assert!(said.contains("the store of another catalog"), "{said}");
    server.me().upload("cargo", b"bytes").await;
    let state = store::check(&server.app.core.catalog, &server.app.core.store_ref()).await;
    assert_eq!(state.expect("looked"), StoreState::Ours, "their mark was not touched");
}

/// A catalog from a backup does not know what came after it: nothing is ended for being unknown to it.
async fn a_catalog_from_a_backup_is_known_for_one(database: Database) {
    let settings = [("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = TestEnv::on_s3(database, &settings);
    env.start().await.crash().await;
    env.start().await.crash().await;
    env.execute("UPDATE catalog_facts SET value = '1' WHERE name = 'store_counter'").await;
    let server = env.start().await;
    let state = store::check(&server.app.core.catalog, &server.app.core.store_ref()).await.expect("looked");
    assert_eq!(state, StoreState::Restored { catalog: 1, store: 2 });

    let parts = server.app.core.blobs.multipart().expect("S3 takes parts");
    let key = ObjectKey::parse("uploads/t/u/00000000-0000-7000-8000-000000000000").expect("a key");
    let upload = parts.start(&key, None).await.expect("begun");
    let doubt = orphan_blobs::run(&server.app.core, &SweepLease::unleased(&server.app.core)).await;
    assert!(matches!(doubt, Err(VerbError::StoreInDoubt(_))), "{doubt:?}");
    assert_eq!(parts.list_parts(&key, &upload).await.expect("kept"), []);

    store::accept(&server.app.core.catalog, &server.app.core.store_ref(), server.app.core.clock.now())
        .await
        .expect("a person's word");
    let state = store::check(&server.app.core.catalog, &server.app.core.store_ref()).await.expect("looked");
    assert_eq!(state, StoreState::Ours);
    server.scan_orphans().await;
    assert!(parts.list_parts(&key, &upload).await.is_err(), "ended now");
}

/// It may also take for unconfirmed what was confirmed since the backup.
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
        .expect("a person's word");
    server.crash().await;

    let server = env.start().await;
    env.advance(3_600_000);
    server.settle().await;
    server.me().get(&path).await.expect_problem(410, "gone");
    crate::oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_catalog_from_a_backup_reclaims_nothing,
    a_bucket_that_lost_its_mark_is_refused,
    a_bucket_in_use_is_not_claimed,
    unfinished_uploads_of_others_are_left_alone,
    the_bucket_of_another_catalog_is_refused,
    a_catalog_from_a_backup_is_known_for_one,
);
