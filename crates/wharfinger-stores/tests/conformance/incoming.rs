//! Uploads to disk: a complete and correct object is placed, or nothing remains.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use wharfinger_stores::disk::IncomingError;
use wharfinger_stores::{BlobError, BlobStore as _};

use super::fixture::{DiskFixture, file_id, key, receive};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn assert_nothing_is_left(disk: &DiskFixture) {
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
    assert_eq!(disk.tree(), Vec::<String>::new());
}

#[tokio::test]
async fn an_upload_is_put_in_place() {
    let disk = DiskFixture::new();
    let key = key("uploads/t/u/f");
    let mut incoming =
        disk.store.receive(file_id(), &key, 11, Some(sha256(b"hello world"))).await.expect("started");
    for chunk in [&b"hello"[..], b"", b" ", b"world"] {
        incoming.write(chunk).await.expect("written");
        assert!(
            matches!(disk.store.head(&key, None).await, Err(BlobError::NotFound)),
            "the object is not visible before it is complete"
        );
    }
    let received = disk.store.place(incoming).await.expect("placed");
    assert_eq!(received.meta, disk.store.head(&key, None).await.expect("in place"));
    assert_eq!(received.meta.size, 11);
    assert_eq!(
        disk.incoming_names().len(),
        1,
        "the temporary name stays until the caller has read the row again"
    );
    received.keep();
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
    assert_eq!(std::fs::read(disk.path(&key)).expect("read"), b"hello world");
}

#[tokio::test]
async fn only_the_announced_length_is_stored() {
    let disk = DiskFixture::new();
    let key = key("uploads/t/u/f");
    let mut incoming = disk.store.receive(file_id(), &key, 5, None).await.expect("started");
    incoming.write(b"12345").await.expect("written");
    let error = incoming.write(b"6").await.expect_err("too long");
    assert!(matches!(error, IncomingError::TooLong), "{error}");
    assert!(disk.store.place(incoming).await.is_err(), "the upload stays refused");
    assert_nothing_is_left(&disk);

    let mut incoming = disk.store.receive(file_id(), &key, 5, None).await.expect("started");
    incoming.write(b"1234").await.expect("written");
    let error = disk.store.place(incoming).await.err().expect("too short");
    assert!(matches!(error, IncomingError::TooShort(4)), "{error}");
    assert_nothing_is_left(&disk);

    receive(&disk.store, &key, b"").await.expect("an empty upload").keep();
    assert_eq!(disk.store.head(&key, None).await.expect("in place").size, 0);
}

#[tokio::test]
async fn a_wrong_checksum_is_refused() {
    let disk = DiskFixture::new();
    let key = key("uploads/t/u/f");
    let mut incoming = disk.store.receive(file_id(), &key, 5, Some(sha256(b"12345"))).await.expect("started");
    incoming.write(b"12346").await.expect("written");
    let error = disk.store.place(incoming).await.err().expect("other bytes");
    assert!(matches!(error, IncomingError::Checksum), "{error}");
    assert_nothing_is_left(&disk);
}

#[tokio::test]
async fn an_interrupted_upload_leaves_nothing() {
    let disk = DiskFixture::new();
    let mut incoming = disk.store.receive(file_id(), &key("uploads/t/u/f"), 5, None).await.expect("started");
    incoming.write(b"123").await.expect("written");
    assert_eq!(disk.incoming_names().len(), 1);
    drop(incoming);
    assert_nothing_is_left(&disk);
}

#[tokio::test]
async fn an_existing_object_is_never_replaced() {
    let disk = DiskFixture::new();
    let key = disk.put("uploads/t/u/f", b"first").await;
    let before = disk.store.head(&key, None).await.expect("in place");
    let error = receive(&disk.store, &key, b"second").await.err().expect("the key exists");
    assert!(matches!(error, IncomingError::Exists), "{error}");
    assert_eq!(disk.store.head(&key, None).await.expect("in place"), before);
    assert_eq!(std::fs::read(disk.path(&key)).expect("read"), b"first");
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_many_uploads_of_a_key_is_stored() {
    let disk = DiskFixture::new();
    let key = key("uploads/t/u/f");
    let uploads = (0..16u8).map(|n| {
        let (store, key) = (Arc::clone(&disk.store), key.clone());
        tokio::spawn(async move {
            match receive(&store, &key, &[n]).await {
                Ok(received) => {
                    received.keep();
                    Some(n)
                }
                Err(IncomingError::Exists) => None,
                Err(other) => panic!("{other}"),
            }
        })
    });
    let received = futures::future::join_all(uploads).await;
    let winners: Vec<u8> = received.into_iter().filter_map(|upload| upload.expect("ended")).collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(std::fs::read(disk.path(&key)).expect("read"), winners);
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
}

/// The file ended during the upload.
#[tokio::test]
async fn a_late_upload_is_withdrawn() {
    let disk = DiskFixture::new();
    let late = key("uploads/t/u/late");
    let received = receive(&disk.store, &late, b"x").await.expect("stored");
    received.withdraw().await.expect("withdrawn");
    assert!(matches!(disk.store.head(&late, None).await, Err(BlobError::NotFound)));
    assert_eq!(disk.incoming_names(), Vec::<String>::new());

    // The object was deleted and replaced by another one in the meantime. The other object must stay.
    let received = receive(&disk.store, &late, b"x").await.expect("stored");
    assert!(matches!(disk.store.delete_many(std::slice::from_ref(&late)).await[..], [Ok(())]));
    disk.put("uploads/t/u/late", b"the other").await;
    received.withdraw().await.expect("nothing to withdraw");
    assert_eq!(disk.store.head(&late, None).await.expect("in place").size, 9);
    assert_eq!(disk.incoming_names(), Vec::<String>::new());
}
