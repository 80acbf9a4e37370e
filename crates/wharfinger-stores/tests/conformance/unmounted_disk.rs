//! An unmounted disk is an unavailable store. No object on it counts as absent.

use std::fs;

use futures::TryStreamExt as _;
use wharfinger_stores::disk::{IncomingError, PartPlace};
use wharfinger_stores::{BlobError, BlobStore as _, MultipartStore as _};

use super::fixture::{DiskFixture, key, pin, receive};

/// Empties the folder, so that it looks like a mount point without its disk.
fn unmount(disk: &DiskFixture) {
    for entry in disk.root().read_dir().expect("readable") {
        fs::remove_dir_all(entry.expect("an entry").path()).expect("removed");
    }
}

#[tokio::test]
async fn nothing_is_absent_from_an_unmounted_disk() {
    for gone in [false, true] {
        let disk = DiskFixture::new();
        let object = disk.put("uploads/t/u/f", b"x").await;
        let etag = disk.store.head(&object, None).await.expect("present").etag;
        let upload_id = disk.store.start(&object, None).await.expect("started");
        unmount(&disk);
        if gone {
            fs::remove_dir(disk.root()).expect("removed");
        }
        let is_down = |error: &BlobError| matches!(error, BlobError::Unavailable(_));
        let error = disk.store.head(&object, None).await.expect_err("the disk is not mounted");
        assert!(is_down(&error), "{error}");
        assert!(error.is_retryable());
        let error =
            disk.store.get(&object, &pin(&etag), 0, None).await.err().expect("the disk is not mounted");
        assert!(is_down(&error), "{error}");
        let outcomes = disk.store.delete_many(&[object.clone(), key("uploads/t/u/g")]).await;
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(is_down)), "{outcomes:?}");
        let listed: Result<Vec<_>, BlobError> = disk.store.list("", None).try_collect().await;
        assert!(listed.as_ref().is_err_and(is_down), "{listed:?}");
        let error = disk.store.check().await.expect_err("it cannot be written");
        assert!(is_down(&error), "{error}");
        assert!(receive(&disk.store, &object, b"x").await.is_err());

        let unfinished = disk.store.list_unfinished("").try_collect::<Vec<_>>().await;
        let errors = [
            disk.store.start(&object, None).await.err(),
            disk.store.list_parts(&object, &upload_id).await.err(),
            disk.store.complete(&object, &upload_id, None, &[]).await.err(),
            disk.store.abort(&object, &upload_id).await.err(),
            disk.store.abort_all(&object).await.err(),
            unfinished.err(),
        ];
        for (n, error) in errors.into_iter().enumerate() {
            assert!(error.as_ref().is_some_and(is_down), "{n}: {error:?}");
        }
        let place = PartPlace { upload_id, number: 1, offset: 0 };
        let error = disk.store.receive_part(&object, &place, 1).await.err();
        assert!(matches!(&error, Some(IncomingError::Store(error)) if is_down(error)), "{error:?}");
        let entries = disk.root().read_dir().map_or(0, |entries| entries.count());
        assert_eq!(entries, 0, "nothing is created at the mount point");
        if gone {
            fs::create_dir(disk.root()).expect("the temporary folder is removed by its owner");
        }
    }
}
