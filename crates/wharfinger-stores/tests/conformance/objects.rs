//! Single objects: metadata, reads, deletes.

use futures::TryStreamExt as _;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::{BlobError, BlobStore, ListedObject};

use super::fixture::{StoreFixture, key, pin};

async fn read(
    store: &dyn BlobStore,
    key: &ObjectKey,
    etag: &str,
    start: u64,
    length: Option<u64>,
) -> Result<Vec<u8>, BlobError> {
    let chunks: Vec<_> = store.get(key, &pin(etag), start, length).await?.try_collect().await?;
    Ok(chunks.concat())
}

pub(super) async fn an_absent_object_is_not_found(fixture: &StoreFixture) {
    let present = fixture.put("uploads/t/u/present", b"x").await;
    let etag = fixture.store.head(&present, None).await.expect("present").etag;
    for absent in ["uploads/t/u/absent", "uploads/t/u", "uploads/t/u/present/below", "uploads/t/u/presen"] {
        let error = fixture.store.head(&key(absent), None).await.expect_err("absent");
        assert!(matches!(error, BlobError::NotFound), "{absent}: {error}");
        assert!(!error.is_retryable());
        let error = read(&*fixture.store, &key(absent), &etag, 0, None).await.expect_err("absent");
        assert!(matches!(error, BlobError::NotFound), "{absent}: {error}");
    }
}

pub(super) async fn head_returns_size_etag_and_time(fixture: &StoreFixture) {
    let full = fixture.put("uploads/t/u/full", b"twelve bytes").await;
    let empty = fixture.put("uploads/t/u/empty", b"").await;
    let meta = fixture.store.head(&full, None).await.expect("present");
    assert_eq!(meta.size, 12);
    assert!(!meta.etag.is_empty());
    assert_eq!(fixture.store.head(&full, None).await.expect("present"), meta, "the metadata is stable");
    let listed: Vec<ListedObject> = fixture.store.list("uploads/", None).try_collect().await.expect("listed");
    let listed = listed.iter().find(|one| one.key == full.as_str()).expect("listed").modified_at;
    assert_eq!(meta.modified_at.map(|at| at / 1_000), Some(listed / 1_000), "the same time, in seconds");
    assert_eq!(fixture.store.head(&empty, None).await.expect("present").size, 0);
}

pub(super) async fn different_content_has_a_different_etag(fixture: &StoreFixture) {
    let key = fixture.put("uploads/t/u/f", b"before").await;
    let before = fixture.store.head(&key, None).await.expect("present");
    assert!(matches!(fixture.store.delete_many(std::slice::from_ref(&key)).await[..], [Ok(())]));
    fixture.put("uploads/t/u/f", b"afterwards").await;
    let after = fixture.store.head(&key, None).await.expect("present");
    assert_ne!(after.etag, before.etag);
    assert_eq!(after.size, 10);
}

pub(super) async fn ranges_of_bytes_are_read(fixture: &StoreFixture) {
    // More bytes than one chunk of any store, and without repetitions.
    let bytes: Vec<u8> = (0..700_001u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let key = fixture.put("uploads/t/u/f", &bytes).await;
    let etag = fixture.store.head(&key, None).await.expect("present").etag;
    let size = bytes.len();
    for (start, length) in [
        (0, None),
        (0, Some(size)),
        (0, Some(size + 1)),
        (0, Some(1)),
        (0, Some(0)),
        (1, None),
        (262_143, Some(2)),
        (262_144, Some(262_144)),
        (size - 1, None),
        (size - 1, Some(9)),
        (size, None),
        (size + 1, Some(1)),
    ] {
        let end = length.map_or(size, |length| (start + length).min(size)).max(start.min(size));
        let got = read(&*fixture.store, &key, &etag, start as u64, length.map(|length| length as u64)).await;
        assert!(got.expect("read") == bytes[start.min(size)..end], "{start} {length:?}");
    }
}

pub(super) async fn a_changed_object_is_not_read(fixture: &StoreFixture) {
    let key = fixture.put("uploads/t/u/f", b"before").await;
    let before = fixture.store.head(&key, None).await.expect("present").etag;
    assert_eq!(read(&*fixture.store, &key, &before, 0, None).await.expect("read"), b"before");
    assert!(matches!(fixture.store.delete_many(std::slice::from_ref(&key)).await[..], [Ok(())]));
    fixture.put("uploads/t/u/f", b"afterwards").await;
    for etag in [before.as_str(), "", "another"] {
        let error = read(&*fixture.store, &key, etag, 0, None).await.expect_err("not the confirmed object");
        assert!(matches!(error, BlobError::Changed), "{error}");
    }
    let after = fixture.store.head(&key, None).await.expect("present").etag;
    assert_eq!(read(&*fixture.store, &key, &after, 5, None).await.expect("read"), b"wards");
}

pub(super) async fn a_delete_returns_one_outcome_per_key(fixture: &StoreFixture) {
    let one = fixture.put("uploads/t/u/one", b"1").await;
    let two = fixture.put("uploads/t/v/two", b"2").await;
    let kept = fixture.put("uploads/t/u/one-more", b"3").await;
    let absent = key("uploads/unknown/at/all");
    let keys = [one.clone(), absent.clone(), two.clone(), one.clone()];
    let outcomes = fixture.store.delete_many(&keys).await;
    assert!(
        matches!(outcomes[..], [Ok(()), Ok(()), Ok(()), Ok(())]),
        "an absent key counts as deleted: {outcomes:?}"
    );
    for gone in [&one, &two] {
        assert!(matches!(fixture.store.head(gone, None).await, Err(BlobError::NotFound)));
    }
    assert_eq!(fixture.store.head(&kept, None).await.expect("kept").size, 1);
    assert!(matches!(fixture.store.delete_many(&[one, two]).await[..], [Ok(()), Ok(())]));
    assert!(fixture.store.delete_many(&[]).await.is_empty());
}

/// If the store supports conditional deletes, a replaced object stays.
pub(super) async fn an_unchanged_object_is_deleted(fixture: &StoreFixture) {
    let one = fixture.put("uploads/t/u/one", b"1").await;
    let two = fixture.put("uploads/t/u/two", b"2").await;
    let kept = fixture.put("uploads/t/u/one-more", b"3").await;
    let mut seen = Vec::new();
    for key in [&one, &two] {
        seen.push((key.clone(), fixture.store.head(key, None).await.expect("present")));
    }
    assert!(matches!(fixture.store.delete_many(std::slice::from_ref(&two)).await[..], [Ok(())]));
    fixture.put("uploads/t/u/two", b"another").await;
    let outcomes = fixture.store.delete_if_unchanged(&seen, false).await;
    match (fixture.store.kind(), &outcomes[..]) {
        ("azure", [Ok(()), Err(BlobError::Changed)]) => {
            assert_eq!(fixture.store.head(&two, None).await.expect("another").size, 7);
        }
        ("s3" | "disk", [Ok(()), Ok(())]) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(fixture.store.head(&one, None).await, Err(BlobError::NotFound)));
    assert_eq!(fixture.store.head(&kept, None).await.expect("kept").size, 1);
    let again = fixture.store.delete_if_unchanged(&seen[..1], true).await;
    assert!(matches!(again[..], [Ok(())]), "an absent key counts as deleted: {again:?}");
}

pub(super) async fn a_full_batch_is_deleted(fixture: &StoreFixture) {
    let present = fixture.put("uploads/t/u/f7", b"x").await;
    let keys: Vec<ObjectKey> = (0..fixture.store.capabilities().delete_batch_max)
        .map(|n| key(&format!("uploads/t/u/f{n}")))
        .collect();
    let outcomes = fixture.store.delete_many(&keys).await;
    assert_eq!(outcomes.len(), keys.len());
    assert!(outcomes.iter().all(Result::is_ok));
    assert!(matches!(fixture.store.head(&present, None).await, Err(BlobError::NotFound)));
}

pub(super) async fn the_check_of_a_working_store_succeeds(fixture: &StoreFixture) {
    fixture.store.check().await.expect("usable");
    assert!(!fixture.store.kind().is_empty());
    fixture.put("uploads/t/u/f", b"x").await;
    fixture.store.check().await.expect("still usable");
}

/// Every text that parses as a key is stored under exactly this key.
pub(super) async fn every_valid_key_is_stored_unchanged(fixture: &StoreFixture) {
    let longest = "x".repeat(255);
    let odd = [
        "%", "%%", "%2E%2E", "%2e%2e", "%25", "%252F", "%2F", "%00", "%0A", "%20", "%C3%BC", "%FF", "%zz",
        "~", "~-_", "-", "_", "0", "A", "a", &longest,
    ];
    for name in odd {
        let text = format!("uploads/{name}/u/{name}");
        let key = fixture.put(&text, name.as_bytes()).await;
        let etag = fixture.store.head(&key, None).await.expect("present").etag;
        assert_eq!(
            read(&*fixture.store, &key, &etag, 0, None).await.expect("read"),
            name.as_bytes(),
            "{text}"
        );
    }
    let mut all = odd.map(|name| format!("uploads/{name}/u/{name}"));
    all.sort();
    let listed: Vec<_> = fixture.store.list("uploads/", None).try_collect().await.expect("listed");
    assert_eq!(listed.into_iter().map(|listed| listed.key).collect::<Vec<_>>(), all);
    let keys = all.map(|text| key(&text));
    assert!(fixture.store.delete_many(&keys).await.iter().all(Result::is_ok));
    let left: Vec<_> = fixture.store.list("", None).try_collect().await.expect("listed");
    assert_eq!(left, []);
}
