//! Injected faults at each call of an upload to disk, and at calls of the store.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_stores::disk::IncomingError;
use wharfinger_stores::{BlobError, BlobStore, FaultyBlobs};

use super::fixture::{DiskFixture, key, pin, receive};

/// After any fault, an object in place still has its temporary name, so that recovery finds it.
#[tokio::test]
async fn a_fault_never_hides_an_object() {
    let counting = Faults::counting();
    let disk = DiskFixture::new();
    receive(&disk.faulty(counting.clone()), &key("uploads/t/u/f"), b"four").await.expect("stored").keep();
    assert_eq!(counting.calls(), 3, "create, sync, link");

    for n in 1..=counting.calls() {
        for fault in Fault::ALL {
            let place = format!("{fault:?} at call {n}");
            let disk = DiskFixture::new();
            let key = key("uploads/t/u/f");
            let error = receive(&disk.faulty(Faults::at(n, fault)), &key, b"four").await.err();
            assert!(
                matches!(error, Some(IncomingError::Store(BlobError::Unavailable(_)))),
                "{place}: {error:?}"
            );

            let took_effect = matches!(fault, Fault::LoseAnswer | Fault::CrashAfter);
            let placed = disk.store.head(&key, None).await.is_ok();
            assert_eq!(placed, n == 3 && took_effect, "{place}");
            let found = disk.store.leftover_uploads(Duration::from_secs(3_600)).await.expect("listed");
            assert_eq!(found.len(), usize::from(placed), "{place}");
            // An upload that is not in place is found after the minimum age. Its cleanup leaves nothing.
            for left in disk.store.leftover_uploads(Duration::ZERO).await.expect("listed") {
                disk.store.clean_up(left, Some(&key), false).await.expect("cleaned up");
            }
            assert_eq!(disk.incoming_names(), Vec::<String>::new(), "{place}");
            assert!(matches!(disk.store.head(&key, None).await, Err(BlobError::NotFound)), "{place}");
        }
    }
}

#[tokio::test]
async fn a_fault_plan_fails_one_key_of_a_delete() {
    for fault in Fault::ALL {
        let disk = DiskFixture::new();
        let mut keys = Vec::new();
        for name in ["a", "b", "c"] {
            keys.push(disk.put(&format!("uploads/t/u/{name}"), b"x").await);
        }
        let faulty = FaultyBlobs::new(disk.store.clone(), Faults::at(2, fault));
        let outcomes = faulty.delete_many(&keys).await;
        let crashed = matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
        let succeeded: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        assert_eq!(succeeded, [true, false, !crashed], "{fault:?}");
        assert!(matches!(outcomes[1], Err(BlobError::Unavailable(_))), "a lost answer is not a refusal");

        let took_effect = matches!(fault, Fault::LoseAnswer | Fault::CrashAfter);
        let mut present = Vec::new();
        for key in &keys {
            present.push(disk.store.head(key, None).await.is_ok());
        }
        assert_eq!(present, [false, !took_effect, crashed], "{fault:?}");
    }
}

#[tokio::test]
async fn a_fault_plan_without_faults_changes_nothing() {
    let disk = DiskFixture::new();
    let key = disk.put("uploads/t/u/f", b"four").await;
    let faulty: Arc<dyn BlobStore> = Arc::new(FaultyBlobs::new(disk.store.clone(), Faults::none()));
    assert_eq!(faulty.kind(), disk.store.kind());
    assert_eq!(faulty.capabilities(), disk.store.capabilities());
    faulty.check().await.expect("it works");
    let meta = faulty.head(&key, None).await.expect("present");
    assert_eq!(meta, disk.store.head(&key, None).await.expect("present"));
    let chunks: Vec<_> = faulty
        .get(&key, &pin(&meta.etag), 1, Some(2))
        .await
        .expect("read")
        .try_collect()
        .await
        .expect("read");
    assert_eq!(chunks.concat(), b"ou");
    let listed: Vec<_> = faulty.list("uploads/", None).try_collect().await.expect("listed");
    assert_eq!(listed.iter().map(|listed| listed.key.as_str()).collect::<Vec<_>>(), [key.as_str()]);
}
