//! Empty folders are removed, also while uploads run in them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wharfinger_stores::{BlobError, BlobStore as _};

use super::fixture::{DiskFixture, key, receive};

#[tokio::test]
async fn empty_folders_are_removed_with_their_last_object() {
    let disk = DiskFixture::new();
    let one = disk.put("uploads/t/u/one", b"1").await;
    let two = disk.put("uploads/t/v/two", b"2").await;
    assert!(matches!(disk.store.delete_many(&[one]).await[..], [Ok(())]));
    assert_eq!(disk.tree(), ["uploads", "uploads/t", "uploads/t/v", "uploads/t/v/two"]);
    assert!(matches!(disk.store.delete_many(&[two]).await[..], [Ok(())]));
    assert_eq!(disk.tree(), Vec::<String>::new());
    assert_eq!(
        disk.incoming_names(),
        Vec::<String>::new(),
        "the folder of incoming uploads is empty and stays"
    );
    disk.put("uploads/t/u/one", b"1").await;
}

/// A withdrawn upload leaves empty folders. The cleanup removes them, although it finds no object.
#[tokio::test]
async fn empty_folders_are_removed_when_there_is_nothing_to_delete() {
    let disk = DiskFixture::new();
    let late = key("uploads/t/u/late");
    receive(&disk.store, &late, b"x").await.expect("stored").withdraw().await.expect("withdrawn");
    assert!(matches!(disk.store.delete_many(&[late]).await[..], [Ok(())]));
    assert_eq!(disk.tree(), Vec::<String>::new());
}

#[tokio::test]
async fn a_failed_delete_does_not_stop_the_others() {
    let disk = DiskFixture::new();
    let stuck = key("uploads/t/u/stuck");
    fs::create_dir_all(disk.path(&stuck).join("something")).expect("made");
    let before = disk.put("uploads/t/u/a", b"1").await;
    let after = disk.put("uploads/t/u/z", b"2").await;
    let outcomes = disk.store.delete_many(&[before.clone(), stuck.clone(), after.clone()]).await;
    // Refused and not unavailable: it uses up its attempts, and then an operator is notified.
    assert!(matches!(outcomes[..], [Ok(()), Err(BlobError::Refused(_)), Ok(())]), "{outcomes:?}");
    assert!(matches!(disk.store.head(&before, None).await, Err(BlobError::NotFound)));
    assert!(matches!(disk.store.head(&after, None).await, Err(BlobError::NotFound)));
    assert!(disk.path(&stuck).join("something").is_dir());
}

/// One task uploads into a folder while another task empties the folder repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_races_with_pruning_succeeds() {
    let disk = DiskFixture::in_memory();
    let uploads_done = Arc::new(AtomicBool::new(false));
    let emptying = tokio::spawn({
        let (store, root, uploads_done) = (disk.store.clone(), disk.root().to_owned(), uploads_done.clone());
        async move {
            let decoy = key("uploads/t/u/decoy");
            let mut emptied = 0u64;
            while !uploads_done.load(Ordering::Relaxed) {
                // Written directly and not through the store, which would wait for the disk.
                let _ = fs::create_dir_all(root.join("uploads/t/u"));
                let _ = fs::write(root.join(decoy.as_str()), b"");
                assert!(matches!(store.delete_many(std::slice::from_ref(&decoy)).await[..], [Ok(())]));
                emptied += 1;
                tokio::task::yield_now().await;
            }
            emptied
        }
    });
    for n in 0..1_000 {
        let key = key(&format!("uploads/t/u/{n}"));
        let received =
            receive(&disk.store, &key, b"x").await.unwrap_or_else(|error| panic!("upload {n}: {error}"));
        received.keep();
        assert!(matches!(disk.store.delete_many(std::slice::from_ref(&key)).await[..], [Ok(())]));
    }
    uploads_done.store(true, Ordering::Relaxed);
    assert!(emptying.await.expect("ended") > 0);
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
}
