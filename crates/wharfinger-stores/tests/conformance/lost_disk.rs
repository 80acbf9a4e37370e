//! A disk that is gone, or was never mounted, is a store that is down: nothing on it is known to be absent.

use std::fs;

use futures::TryStreamExt as _;
use wharfinger_stores::{BlobError, BlobStore as _};

use super::shelf::{Dock, key, pin, receive};

/// What a mount point looks like without its disk: there, and empty.
fn unmount(dock: &Dock) {
    for entry in dock.root().read_dir().expect("readable") {
        fs::remove_dir_all(entry.expect("an entry").path()).expect("removed");
    }
}

#[tokio::test]
async fn nothing_is_absent_from_a_disk_that_is_gone() {
    for gone in [false, true] {
        let dock = Dock::new();
        let object = dock.put("uploads/t/u/f", b"x").await;
        let etag = dock.store.head(&object, None).await.expect("present").etag;
        unmount(&dock);
        if gone {
            fs::remove_dir(dock.root()).expect("removed");
        }
        let is_down = |error: &BlobError| matches!(error, BlobError::Unavailable(_));
        let error = dock.store.head(&object, None).await.expect_err("nobody knows");
        assert!(is_down(&error), "{error}");
        assert!(error.is_retryable());
        let error = dock.store.get(&object, &pin(&etag), 0, None).await.err().expect("nobody knows");
        assert!(is_down(&error), "{error}");
        let outcomes = dock.store.delete_many(&[object.clone(), key("uploads/t/u/g")]).await;
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(is_down)), "{outcomes:?}");
        let listed: Result<Vec<_>, BlobError> = dock.store.list("", None).try_collect().await;
        assert!(listed.as_ref().is_err_and(is_down), "{listed:?}");
        let error = dock.store.check().await.expect_err("it cannot be written");
        assert!(is_down(&error), "{error}");
        assert!(receive(&dock.store, &object, b"x").await.is_err());
        if gone {
            fs::create_dir(dock.root()).expect("the temporary folder is removed by its owner");
        }
    }
}
