//! The same for uploads in parts. A large file makes more calls to the store, and on local disk each step of a part and of
//! its completion can fail.

use super::{Op, hit_every_call};
use crate::test_app::{Database, TestEnv};

/// Every file above one byte is uploaded in parts, and orphaned uploads have no grace period.
const IN_PARTS: [(&str, &str); 2] = [("MULTIPART_THRESHOLD_BYTES", "1"), ("ORPHAN_BLOB_GRACE_MS", "0")];

macro_rules! every_operation_in_parts {
    ($env:expr; $($name:ident: $operation:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            hit_every_call(Op::$operation, &$env(Database::Sqlite, &IN_PARTS)).await;
        })*
    };
}

mod disk {
    use super::*;

    every_operation_in_parts! {
        TestEnv::with;
        init_with_key: InitWithKey,
        put: Put,
        confirm: Confirm,
        reissue: Reissue,
        delete_registered: DeleteRegistered,
        reclaim: Reclaim,
        run_cleanups: RunCleanups,
    }
}

mod s3 {
    use super::*;

    every_operation_in_parts! {
        TestEnv::on_s3;
        init_with_key: InitWithKey,
        confirm: Confirm,
        reissue: Reissue,
        delete_registered: DeleteRegistered,
        reclaim: Reclaim,
        run_cleanups: RunCleanups,
    }
}
