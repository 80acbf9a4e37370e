//! Buckets with versioning: the pinned version is served, and a delete removes all versions.

use std::sync::Arc;

use bytes::Bytes;
use harness::radosgw;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::s3::{S3Options, S3Store};
use wharfinger_stores::{BlobError, BlobStore as _, Disposition, GetGrant, WriteMode};

use super::fixture::{LIFETIME, ceph_options, keep_versions, key};
use super::sending::Client;

async fn versioned() -> (S3Options, Arc<S3Store>) {
    let options = ceph_options();
    keep_versions(&options.bucket);
    let store = S3Store::connect(&options).await.expect("connected");
    store.probe().await.expect("a usable store");
    assert!(store.capabilities().versioned);
    (options, Arc::new(store))
}

async fn put(store: &S3Store, key: &ObjectKey, bytes: &str) {
    store.put(key, Bytes::from(bytes.to_owned()), WriteMode::Overwrite).await.expect("put");
}

fn raw(method: &str, options: &S3Options, path: &str) -> String {
    let path = format!("/{}{path}", options.bucket);
    let answer = radosgw::shared().request(method, &path, b"").expect("answered");
    assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.status);
    String::from_utf8(answer.body).expect("text")
}

/// The number of versions and delete markers of a key.
fn kept(options: &S3Options, key: &str) -> usize {
    raw("GET", options, "?versions").matches(&format!("<Key>{key}</Key>")).count()
}

#[tokio::test]
async fn an_ordinary_delete_only_hides_the_object() {
    let (options, store) = versioned().await;
    let this = key("uploads/t/u/f");
    put(&store, &this, "one").await;
    put(&store, &this, "two").await;
    let seen = store.head(&this, None).await.expect("present");
    let outcomes = store.delete_if_unchanged(&[(this.clone(), seen)], false).await;
    assert!(matches!(outcomes[..], [Ok(())]), "{outcomes:?}");
    assert!(matches!(store.head(&this, None).await, Err(BlobError::NotFound)));
    assert_eq!(kept(&options, "uploads/t/u/f"), 3, "two versions and a marker");
}

/// The object was written again after it was seen, so no version is deleted.
#[tokio::test]
async fn an_object_written_again_keeps_its_versions() {
    let (options, store) = versioned().await;
    let (this, other) = (key("uploads/t/u/f"), key("uploads/t/u/g"));
    put(&store, &this, "one").await;
    put(&store, &other, "one").await;
    put(&store, &other, "two").await;
    let seen = store.head(&this, None).await.expect("present");
    let seen_other = store.head(&other, None).await.expect("present");
    put(&store, &this, "two").await;
    let outcomes = store.delete_if_unchanged(&[(this.clone(), seen), (other, seen_other)], true).await;
    assert!(matches!(outcomes[..], [Err(BlobError::Changed), Ok(())]), "{outcomes:?}");
    assert!(store.head(&this, None).await.is_ok());
    assert_eq!((kept(&options, "uploads/t/u/f"), kept(&options, "uploads/t/u/g")), (2, 0));
}

#[tokio::test]
async fn a_delete_removes_every_version() {
    let (options, store) = versioned().await;
    let (this, longer) = (key("uploads/t/u/f"), key("uploads/t/u/f2"));
    for round in 0..3 {
        put(&store, &this, &format!("{round}")).await;
        put(&store, &this, &format!("{round} again")).await;
        // A delete without a version hides the object and keeps its bytes.
        raw("DELETE", &options, "/uploads/t/u/f");
    }
    put(&store, &longer, "kept").await;
    put(&store, &longer, "kept too").await;
    assert_eq!(kept(&options, "uploads/t/u/f"), 9);
    assert!(
        matches!(store.head(&this, None).await, Err(BlobError::NotFound)),
        "a hidden object counts as absent"
    );

    let outcomes = store.delete_many(&[this.clone(), key("uploads/t/u/absent")]).await;
    assert!(matches!(outcomes[..], [Ok(()), Ok(())]), "{outcomes:?}");
    assert_eq!(kept(&options, "uploads/t/u/f"), 0, "no version and no delete marker remains");
    assert_eq!(kept(&options, "uploads/t/u/f2"), 2, "the versions of a longer key stay");
    assert!(matches!(store.delete_many(&[this, longer]).await[..], [Ok(()), Ok(())]));
    let all = raw("GET", &options, "?versions");
    assert!(!all.contains("<Key>"), "{all}");
}

#[tokio::test]
async fn a_probe_leaves_no_version() {
    let (options, store) = versioned().await;
    store.probe().await.expect("usable");
    let all = raw("GET", &options, "?versions");
    assert!(!all.contains("<Key>"), "{all}");
}

#[tokio::test]
async fn the_pinned_version_is_served() {
    let (_, store) = versioned().await;
    let key = key("uploads/t/u/f");
    put(&store, &key, "confirmed").await;
    let meta = store.head(&key, None).await.expect("present");
    let pin = Pin { etag: meta.etag.clone(), version_id: meta.version_id.clone() };
    assert!(pin.version_id.is_some());
    put(&store, &key, "overwritten").await;

    let file_name = "f.txt".to_owned();
    let grant = GetGrant {
        key: key.clone(),
        pin: pin.clone(),
        content_type: None,
        file_name,
        disposition: Disposition::Attachment,
        lifetime: LIFETIME,
    };
    let signed = store.sign_get(&grant).await.expect("signed");
    let client = Client::new();
    assert_eq!(client.send(&signed, b"").await.text(), "confirmed");
    assert_eq!(store.head(&key, pin.version_id.as_deref()).await.expect("present"), meta);
    assert_ne!(store.head(&key, None).await.expect("present"), meta);

    assert!(matches!(store.delete_many(std::slice::from_ref(&key)).await[..], [Ok(())]));
    let error = store.head(&key, pin.version_id.as_deref()).await.expect_err("gone");
    assert!(matches!(error, BlobError::NotFound), "{error}");
    assert!(client.send(&signed, b"").await.refused());
}

/// Versioning was enabled after the probe.
#[tokio::test]
async fn versioning_enabled_after_the_probe_is_detected() {
    let options = ceph_options();
    let store = S3Store::connect(&options).await.expect("connected");
    store.probe().await.expect("a usable store");
    assert!(!store.capabilities().versioned);
    keep_versions(&options.bucket);
    let this = key("uploads/t/u/f");
    put(&store, &this, "first").await;
    put(&store, &this, "second").await;
    assert!(matches!(store.delete_many(std::slice::from_ref(&this)).await[..], [Ok(())]));
    assert_eq!(kept(&options, "uploads/t/u/f"), 0, "no version and no delete marker remains");
    assert!(store.capabilities().versioned);
}
