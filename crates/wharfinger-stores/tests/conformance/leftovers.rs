//! Crashed uploads are found and cleaned up. Other objects stay.

use std::time::Duration;

use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::LeftoverUpload;
use wharfinger_stores::{BlobError, BlobStore as _};

use super::fixture::{DiskFixture, file_id, key, receive};

const HOUR: Duration = Duration::from_secs(3_600);

async fn left(disk: &DiskFixture, quiet: Duration) -> Vec<LeftoverUpload> {
    disk.store.leftover_uploads(quiet).await.expect("listed")
}

/// Places an object and crashes before the row is read again.
async fn crash_after_placing(disk: &DiskFixture, file: FileId, key: &ObjectKey) {
    let mut incoming = disk.store.receive(file, key, 4, None).await.expect("started");
    incoming.write(b"left").await.expect("written");
    std::mem::forget(disk.store.place(incoming).await.expect("placed"));
}

/// Crashes during the upload.
async fn crash_half_way(disk: &DiskFixture, file: FileId, key: &ObjectKey) {
    let mut incoming = disk.store.receive(file, key, 4, None).await.expect("started");
    incoming.write(b"le").await.expect("written");
    std::mem::forget(incoming);
}

#[tokio::test]
async fn a_placed_object_is_found_immediately() {
    let disk = DiskFixture::new();
    let (file, key) = (file_id(), key("uploads/t/u/f"));
    crash_after_placing(&disk, file, &key).await;
    disk.put("uploads/t/u/kept", b"x").await;
    let found = left(&disk, HOUR).await;
    assert_eq!(found.iter().map(|left| left.file).collect::<Vec<_>>(), [file]);
}

#[tokio::test]
async fn a_running_upload_is_left_alone() {
    let disk = DiskFixture::new();
    let (file, key) = (file_id(), key("uploads/t/u/f"));
    crash_half_way(&disk, file, &key).await;
    assert_eq!(left(&disk, HOUR).await, [], "the upload may still be running");
    let found = left(&disk, Duration::ZERO).await;
    assert_eq!(found.iter().map(|left| left.file).collect::<Vec<_>>(), [file]);
    disk.store.clean_up(found[0].clone(), Some(&key), false).await.expect("cleaned up");
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
    assert_eq!(disk.tree(), Vec::<String>::new());
}

#[tokio::test]
async fn bytes_of_an_ended_file_are_removed() {
    let disk = DiskFixture::new();
    let (file, key) = (file_id(), key("uploads/t/u/f"));
    crash_after_placing(&disk, file, &key).await;
    let found = left(&disk, HOUR).await.remove(0);
    disk.store.clean_up(found.clone(), Some(&key), false).await.expect("cleaned up");
    assert!(matches!(disk.store.head(&key, None).await, Err(BlobError::NotFound)));
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
    assert_eq!(left(&disk, Duration::ZERO).await, []);
    disk.store.clean_up(found, Some(&key), false).await.expect("a second cleanup changes nothing");
}

#[tokio::test]
async fn bytes_of_a_waiting_file_are_kept() {
    let disk = DiskFixture::new();
    let (file, key) = (file_id(), key("uploads/t/u/f"));
    crash_after_placing(&disk, file, &key).await;
    let before = disk.store.head(&key, None).await.expect("in place");
    let found = left(&disk, HOUR).await.remove(0);
    disk.store.clean_up(found, Some(&key), true).await.expect("cleaned up");
    assert_eq!(disk.store.head(&key, None).await.expect("in place"), before);
    assert_eq!(std::fs::read(disk.path(&key)).expect("read"), b"left");
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
}

/// Without a row, the key is unknown. The temporary name is removed, and the orphan scan finds the object.
#[tokio::test]
async fn the_temporary_name_of_a_forgotten_file_is_removed() {
    let disk = DiskFixture::new();
    let key = key("uploads/t/u/f");
    crash_after_placing(&disk, file_id(), &key).await;
    let found = left(&disk, HOUR).await.remove(0);
    disk.store.clean_up(found, None, false).await.expect("cleaned up");
    assert_eq!(disk.store.head(&key, None).await.expect("in place").size, 4);
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
}

#[tokio::test]
async fn a_cleanup_never_removes_another_object() {
    let disk = DiskFixture::new();
    let key = key("uploads/t/u/f");
    for placed in [true, false] {
        let file = file_id();
        if placed {
            crash_after_placing(&disk, file, &key).await;
            assert!(matches!(disk.store.delete_many(std::slice::from_ref(&key)).await[..], [Ok(())]));
        } else {
            crash_half_way(&disk, file, &key).await;
        }
        receive(&disk.store, &key, b"another's").await.expect("stored").keep();
        for found in left(&disk, Duration::ZERO).await {
            assert_eq!(found.file, file);
            disk.store.clean_up(found, Some(&key), false).await.expect("cleaned up");
        }
        assert_eq!(std::fs::read(disk.path(&key)).expect("read"), b"another's");
        assert_eq!(disk.incoming_names(), Vec::<String>::new());
        assert!(matches!(disk.store.delete_many(std::slice::from_ref(&key)).await[..], [Ok(())]));
    }
}

/// A kill between creating a file and renaming it.
#[tokio::test]
async fn interrupted_small_writes_are_removed() {
    let disk = DiskFixture::new();
    let id = "018f4e6e-7f3a-4000-8000-000000000001";
    let ours =
        [format!(".incoming/put.{id}"), format!(".incoming/check.{id}"), format!(".wharfinger/store.{id}")];
    let others = [".incoming/put.txt", ".incoming/README", ".wharfinger/store", ".wharfinger/store.bak"];
    std::fs::create_dir_all(disk.root().join(".wharfinger")).expect("a folder");
    for name in ours.iter().map(String::as_str).chain(others) {
        std::fs::write(disk.root().join(name), b"x").expect("written");
    }
    let quiet = Duration::from_secs(1_800);
    assert_eq!(
        disk.store.remove_temporary_files(quiet).await.expect("listed"),
        0,
        "the writes may still be running"
    );
    for name in &ours {
        let file = std::fs::File::options().write(true).open(disk.root().join(name)).expect("there");
        file.set_modified(std::time::SystemTime::now() - quiet).expect("older");
    }
    assert_eq!(disk.store.remove_temporary_files(quiet).await.expect("listed"), 3);
    assert!(ours.iter().all(|name| !disk.root().join(name).exists()));
    assert!(others.iter().all(|name| disk.root().join(name).exists()));
    disk.store.check().await.expect("usable");
    assert_eq!(
        disk.store.remove_temporary_files(Duration::ZERO).await.expect("listed"),
        0,
        "a check leaves nothing"
    );
}

#[tokio::test]
async fn other_files_are_ignored() {
    let disk = DiskFixture::new();
    for name in ["check.1", "README", "018f.x", "x.018f4e6e-7f3a-7000-8000-000000000001"] {
        std::fs::write(disk.root().join(".incoming").join(name), b"x").expect("written");
    }
    assert_eq!(left(&disk, Duration::ZERO).await, []);
}
