//! The server starts only on the store that belongs to its catalog.

use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger::store::{self, StoreRef};
use wharfinger_calls::faults::Faults;
use wharfinger_stores::disk::MARK;

use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

async fn refusal(env: &TestEnv) -> String {
    let overrides = env.environment().map(|(name, value)| (name, value.to_owned())).collect();
    let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
    let settings = Settings::from_values(&values).expect("possible settings");
    let secrets = prepare_secrets(&settings).expect("secrets");
    let opened =
        wharfinger::app::App::open(settings, &secrets, env.clock.clone(), Faults::none(), "http://x".into());
    opened.await.err().expect("the start is refused").to_string()
}

/// An unmounted disk leaves an empty folder. In it, each object would count as missing and each delete as done.
async fn an_empty_folder_is_refused_as_the_store(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let kept = server.me().upload("cargo", b"bytes").await;
    let doomed = server.me().upload("cargo", b"bytes").await;
    server.me().delete(&format!("/api/v2/files/{doomed}")).await.expect(204);
    server.crash().await;

    let disk = env.unmount_disk();
    let error = refusal(&env).await;
    assert!(error.contains("WHARFINGER_BLOB_URL") && error.contains("Is its disk mounted?"), "{error}");
    assert!(oracle::files_below(&env.blob_dir()).is_empty(), "nothing is created in the empty folder");

    disk.remount();
    let server = env.start().await;
    server.settle().await;
    assert_eq!(server.me().get(&format!("/api/v2/files/{kept}")).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

/// The folder holds an upload in parts that another catalog has started.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_an_unfinished_upload_is_not_claimed() {
    let env = TestEnv::with(Database::Sqlite, &[("MULTIPART_THRESHOLD_BYTES", "1")]);
    let server = env.start().await;
    server.me().init("large", 5).await.expect(201);
    server.crash().await;
    let other = TestEnv::new(Database::Sqlite);
    std::fs::create_dir_all(other.data_dir()).expect("a folder");
    std::fs::rename(env.blob_dir(), other.blob_dir()).expect("moved");
    std::fs::remove_file(other.blob_dir().join(MARK)).expect("its marker");
    let error = refusal(&other).await;
    assert!(
        error.contains("already in use") && error.contains("unfinished uploads under uploads/"),
        "{error}"
    );
    assert!(!other.blob_dir().join(MARK).exists(), "no marker was written");
}

async fn the_store_of_another_catalog_is_refused(database: Database) {
    let (ours, theirs) = (TestEnv::new(database), TestEnv::new(Database::Sqlite));
    ours.start().await.crash().await;
    theirs.start().await.crash().await;
    std::fs::remove_dir_all(ours.blob_dir()).expect("our store");
    std::fs::rename(theirs.blob_dir(), ours.blob_dir()).expect("moved");
    let error = refusal(&ours).await;
    assert!(error.contains("the store of another catalog"), "{error}");
}

async fn a_new_catalog_does_not_claim_the_store_of_another(database: Database) {
    let (ours, theirs) = (TestEnv::new(database), TestEnv::new(Database::Sqlite));
    theirs.start().await.crash().await;
    std::fs::create_dir_all(ours.data_dir()).expect("a folder");
    std::fs::rename(theirs.blob_dir(), ours.blob_dir()).expect("moved");
    let marker = std::fs::read(ours.blob_dir().join(".wharfinger/store")).expect("their marker");
    let error = refusal(&ours).await;
    assert!(error.contains("the store of another catalog"), "{error}");
    assert_eq!(std::fs::read(ours.blob_dir().join(".wharfinger/store")).expect("their marker"), marker);
}

/// Writes a foreign file into the folder before the first start.
fn write_foreign(env: &TestEnv, key: &str) -> std::path::PathBuf {
    let path = env.blob_dir().join(key);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
    std::fs::write(&path, b"foreign").expect("written");
    path
}

/// Another application has files under our prefixes.
async fn a_folder_in_use_is_not_claimed(database: Database) {
    for key in ["uploads/2019/invoice.pdf", "derived/thumbnail.png"] {
        let env =
            TestEnv::with(database, &[("ORPHAN_BLOB_GRACE_MS", "0"), ("ORPHAN_DELETE_LIMIT_PERCENT", "0")]);
        let foreign = write_foreign(&env, key);
        for _ in 0..2 {
            let error = refusal(&env).await;
            assert!(error.contains("already in use") && error.contains(key), "{error}");
            assert!(error.contains("another prefix") && error.contains("--accept-store"), "{error}");
            assert!(!env.blob_dir().join(MARK).exists(), "the folder is not claimed");
        }
        let app = env.open_catalog().await;
        store::accept(&app, &StoreRef::folder(&env.blob_dir()), env.clock.now()).await.expect("accepted");
        let server = env.start().await;
        server.me().upload("cargo", b"bytes").await;
        let scanned = server.scan_orphans().await;
        assert_eq!((scanned.total, scanned.deleted, scanned.foreign), (0, 0, 1), "{scanned:?}");
        assert_eq!(std::fs::read(&foreign).expect("the foreign file"), b"foreign");
    }
}

async fn unrelated_files_do_not_prevent_a_claim(database: Database) {
    let env = TestEnv::new(database);
    for key in ["RAW/2026/x", "other/uploads/x", "uploads2/x", "uploads.txt"] {
        write_foreign(&env, key);
    }
    env.start().await.me().upload("cargo", b"bytes").await;
}

/// A full disk may leave the marker empty or cut off. That does not mean that the store belongs to another catalog.
async fn accept_store_repairs_a_damaged_marker(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let kept = server.me().upload("cargo", b"bytes").await;
    server.crash().await;
    let marker = env.blob_dir().join(MARK);
    let whole = std::fs::read(&marker).expect("a marker");
    for damaged in [&b""[..], b"\n", &whole[..20], &whole[..whole.len() - 3]] {
        std::fs::write(&marker, damaged).expect("damaged");
        let error = refusal(&env).await;
        assert!(error.contains("empty or damaged") && error.contains("--accept-store"), "{error}");
        let catalog = env.open_catalog().await;
        store::accept(&catalog, &StoreRef::folder(&env.blob_dir()), env.clock.now()).await.expect("repaired");
        let server = env.start().await;
        assert_eq!(server.me().file(&kept).await["status"], "ready");
        server.crash().await;
    }
}

/// Each start writes the marker. A concurrent reader sees the old or the new one, never a part.
async fn concurrent_starts_never_damage_the_marker(database: Database) {
    let env = TestEnv::new(database);
    env.start().await.crash().await;
    let catalog = env.open_catalog().await;
    let folder = env.blob_dir();
    let starts = (0..8).map(|_| {
        let (catalog, folder, now) = (catalog.clone(), folder.clone(), env.clock.now());
        tokio::spawn(async move {
            for _ in 0..40 {
                store::claim(&catalog, &StoreRef::folder(&folder), now).await.expect("our store");
            }
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.expect("the task ends");
    }
    let left = std::fs::read_dir(folder.join(".wharfinger")).expect("a folder").count();
    assert_eq!(left, 1, "only the marker is left");
}

on_each_database!(
    a_folder_in_use_is_not_claimed,
    unrelated_files_do_not_prevent_a_claim,
    accept_store_repairs_a_damaged_marker,
    concurrent_starts_never_damage_the_marker,
    an_empty_folder_is_refused_as_the_store,
    the_store_of_another_catalog_is_refused,
    a_new_catalog_does_not_claim_the_store_of_another,
);

/// The first start crashed after it wrote the marker and before it wrote to the catalog.
#[tokio::test]
async fn a_crashed_first_start_is_repaired() {
    let env = TestEnv::new(Database::Sqlite);
    env.start().await.crash().await;
    env.execute("DELETE FROM catalog_facts WHERE name = 'store'").await;
    env.start().await.crash().await;
    env.start().await.crash().await;
}
