//! The store is the one this catalog's objects lie in, or nothing is done in it.

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

/// An unmounted disk leaves an empty folder: in it every object would be absent and every delete done.
async fn an_empty_folder_is_not_taken_for_the_store(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let kept = server.me().upload("cargo", b"bytes").await;
    let doomed = server.me().upload("cargo", b"bytes").await;
    server.me().delete(&format!("/api/v2/files/{doomed}")).await.expect(204);
    server.crash().await;

    let disk = env.take_the_disk_away();
    let said = refusal(&env).await;
    assert!(said.contains("WHARFINGER_BLOB_URL") && said.contains("Is its disk mounted?"), "{said}");
    assert!(oracle::files_below(&env.blob_dir()).is_empty(), "nothing was made there");

    disk.come_back();
    let server = env.start().await;
    server.settle().await;
    assert_eq!(server.me().get(&format!("/api/v2/files/{kept}")).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

async fn the_store_of_another_catalog_is_refused(database: Database) {
    let (ours, theirs) = (TestEnv::new(database), TestEnv::new(Database::Sqlite));
    ours.start().await.crash().await;
    theirs.start().await.crash().await;
    std::fs::remove_dir_all(ours.blob_dir()).expect("ours");
    std::fs::rename(theirs.blob_dir(), ours.blob_dir()).expect("theirs in its place");
    let said = refusal(&ours).await;
    assert!(said.contains("the store of another catalog"), "{said}");
}

/// A catalog that has no store yet does not take another's.
async fn a_new_catalog_does_not_take_anothers_store(database: Database) {
    let (ours, theirs) = (TestEnv::new(database), TestEnv::new(Database::Sqlite));
    theirs.start().await.crash().await;
    std::fs::create_dir_all(ours.data_dir()).expect("our folder");
    std::fs::rename(theirs.blob_dir(), ours.blob_dir()).expect("theirs in its place");
    let mark = std::fs::read(ours.blob_dir().join(".wharfinger/store")).expect("their mark");
    let said = refusal(&ours).await;
    assert!(said.contains("the store of another catalog"), "{said}");
    assert_eq!(std::fs::read(ours.blob_dir().join(".wharfinger/store")).expect("their mark"), mark);
}

/// Puts a file into the folder before the program ever ran.
fn theirs(env: &TestEnv, key: &str) -> std::path::PathBuf {
    let path = env.blob_dir().join(key);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(&path, b"theirs").expect("written");
    path
}

/// An application keeps its own files where ours would be.
async fn a_folder_in_use_is_not_claimed(database: Database) {
    for key in ["uploads/2019/invoice.pdf", "derived/thumbnail.png"] {
        let env =
            TestEnv::with(database, &[("ORPHAN_BLOB_GRACE_MS", "0"), ("ORPHAN_DELETE_LIMIT_PERCENT", "0")]);
        let theirs = theirs(&env, key);
        for _ in 0..2 {
            let said = refusal(&env).await;
            assert!(said.contains("already in use") && said.contains(key), "{said}");
            assert!(said.contains("another prefix") && said.contains("--accept-store"), "{said}");
            assert!(!env.blob_dir().join(MARK).exists(), "it is not ours");
        }
        let app = env.open_catalog().await;
        store::accept(&app, &StoreRef::folder(&env.blob_dir()), env.clock.now()).await.expect("accepted");
        let server = env.start().await;
        server.me().upload("cargo", b"bytes").await;
        let scanned = server.scan_orphans().await;
        assert_eq!((scanned.total, scanned.deleted, scanned.foreign), (0, 0, 1), "{scanned:?}");
        assert_eq!(std::fs::read(&theirs).expect("theirs"), b"theirs");
    }
}

async fn events_and_neighbours_do_not_keep_a_folder_from_being_claimed(database: Database) {
    let env = TestEnv::new(database);
    for key in ["RAW/2026/x", "other/uploads/x", "uploads2/x", "uploads.txt"] {
        theirs(&env, key);
    }
    env.start().await.me().upload("cargo", b"bytes").await;
}

/// A disk that was full once left it empty, or a person cut it off: it is nobody else's for that.
async fn a_damaged_mark_is_repaired_on_a_persons_word(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let kept = server.me().upload("cargo", b"bytes").await;
    server.crash().await;
    let mark = env.blob_dir().join(MARK);
    let whole = std::fs::read(&mark).expect("a mark");
    for damaged in [&b""[..], b"\n", &whole[..20], &whole[..whole.len() - 3]] {
        std::fs::write(&mark, damaged).expect("damaged");
        let said = refusal(&env).await;
        assert!(said.contains("empty or damaged") && said.contains("--accept-store"), "{said}");
        let catalog = env.open_catalog().await;
        store::accept(&catalog, &StoreRef::folder(&env.blob_dir()), env.clock.now()).await.expect("repaired");
        let server = env.start().await;
        assert_eq!(server.me().file(&kept).await["status"], "ready");
        server.crash().await;
    }
}

/// Every start writes the mark: one that reads it meanwhile sees one or the other, never a part.
async fn many_start_together(database: Database) {
    let env = TestEnv::new(database);
    env.start().await.crash().await;
    let catalog = env.open_catalog().await;
    let folder = env.blob_dir();
    let starts = (0..8).map(|_| {
        let (catalog, folder, now) = (catalog.clone(), folder.clone(), env.clock.now());
        tokio::spawn(async move {
            for _ in 0..40 {
                store::claim(&catalog, &StoreRef::folder(&folder), now).await.expect("ours");
            }
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.expect("it ends");
    }
    let left = std::fs::read_dir(folder.join(".wharfinger")).expect("a folder").count();
    assert_eq!(left, 1, "nothing but the mark is left");
}

on_each_database!(
    a_folder_in_use_is_not_claimed,
    events_and_neighbours_do_not_keep_a_folder_from_being_claimed,
    a_damaged_mark_is_repaired_on_a_persons_word,
    many_start_together,
    an_empty_folder_is_not_taken_for_the_store,
    the_store_of_another_catalog_is_refused,
    a_new_catalog_does_not_take_anothers_store,
);

/// A crash between the mark and the catalog's knowledge of it, at the first start of all.
#[tokio::test]
async fn a_first_start_that_was_cut_off_is_made_up_for() {
    let env = TestEnv::new(Database::Sqlite);
    env.start().await.crash().await;
    env.execute("DELETE FROM catalog_facts WHERE name = 'store'").await;
    env.start().await.crash().await;
    env.start().await.crash().await;
}
