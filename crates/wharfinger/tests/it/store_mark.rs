//! The store is the one this catalog's objects lie in, or nothing is done in it.

use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger_backends::faults::Faults;

use crate::oracle;
use crate::test_app::{Database, Ground, on_each_database};

async fn refusal(ground: &Ground) -> String {
    let overrides = ground.environment().map(|(name, value)| (name, value.to_owned())).collect();
    let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
    let settings = Settings::from_values(&values).expect("possible settings");
    let secrets = prepare_secrets(&settings).expect("secrets");
    let opened = wharfinger::app::App::open(
        settings,
        &secrets,
        ground.clock.clone(),
        Faults::none(),
        "http://x".into(),
    );
    opened.await.err().expect("the start is refused").to_string()
}

/// An unmounted disk leaves an empty folder: in it every object would be absent and every delete done.
async fn an_empty_folder_is_not_taken_for_the_store(database: Database) {
    let ground = Ground::new(database);
    let server = ground.start().await;
    let kept = server.me().upload("cargo", b"bytes").await;
    let doomed = server.me().upload("cargo", b"bytes").await;
    server.me().delete(&format!("/api/v2/files/{doomed}")).await.expect(204);
    server.crash().await;

    let disk = ground.take_the_disk_away();
    let said = refusal(&ground).await;
    assert!(said.contains("WHARFINGER_BLOB_URL") && said.contains("is its disk mounted?"), "{said}");
    assert!(oracle::files_below(&ground.blob_dir()).is_empty(), "nothing was made there");

    disk.come_back();
    let server = ground.start().await;
    server.settle().await;
    assert_eq!(server.me().get(&format!("/api/v2/files/{kept}")).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&ground, &server).await;
}

async fn the_store_of_another_catalog_is_refused(database: Database) {
    let (ours, theirs) = (Ground::new(database), Ground::new(Database::Sqlite));
    ours.start().await.crash().await;
    theirs.start().await.crash().await;
    std::fs::remove_dir_all(ours.blob_dir()).expect("ours");
    std::fs::rename(theirs.blob_dir(), ours.blob_dir()).expect("theirs in its place");
    let said = refusal(&ours).await;
    assert!(said.contains("the store of another catalog"), "{said}");
}

/// A catalog that has no store yet does not take another's.
async fn a_new_catalog_does_not_take_anothers_store(database: Database) {
    let (ours, theirs) = (Ground::new(database), Ground::new(Database::Sqlite));
    theirs.start().await.crash().await;
    std::fs::create_dir_all(ours.data_dir()).expect("our folder");
    std::fs::rename(theirs.blob_dir(), ours.blob_dir()).expect("theirs in its place");
    let mark = std::fs::read(ours.blob_dir().join(".wharfinger/store")).expect("their mark");
    let said = refusal(&ours).await;
    assert!(said.contains("the store of another catalog"), "{said}");
    assert_eq!(std::fs::read(ours.blob_dir().join(".wharfinger/store")).expect("their mark"), mark);
}

on_each_database!(
    an_empty_folder_is_not_taken_for_the_store,
    the_store_of_another_catalog_is_refused,
    a_new_catalog_does_not_take_anothers_store,
);

/// A crash between the mark and the catalog's knowledge of it, at the first start of all.
#[tokio::test]
async fn a_first_start_that_was_cut_off_is_made_up_for() {
    let ground = Ground::new(Database::Sqlite);
    ground.start().await.crash().await;
    ground.execute("DELETE FROM catalog_facts WHERE name = 'store'").await;
    ground.start().await.crash().await;
    ground.start().await.crash().await;
}
