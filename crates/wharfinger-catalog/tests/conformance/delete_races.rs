//! A worker writes outputs while its file is deleted.

use wharfinger_calls::faults::Faults;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::stage::Stage;

use super::sample::{NOW, REFUSING, SECOND};
use super::stages::{claimed, queued};
use super::test_db::TestDb;

const LATER: UnixMs = NOW + 10 * SECOND;

/// A worker that writes outputs locks its job and not the file. The delete waits for that lock and deletes the outputs
/// too.
pub(super) async fn outputs_written_during_a_delete_are_deleted_with_the_file(db: &TestDb) {
    queued(db, &[Stage::Extract]).await;
    let held = claimed(db, Stage::Extract, NOW + SECOND).await;
    let file = held.file.clone();
    let (job, token) = (held.job.id, held.job.token);
    let key = ObjectKey::text_part(&file.key, job, token, 0);
    let delete = file::delete(&file, &REFUSING, LATER).expect("deletable");
    let faults = Faults::block_at("commit");
    let worker = db.with_faults(faults.clone()).await;
    let write = worker.add_derived_objects((job, token), file.id, vec![key.clone()], LATER);
    let end = async {
        faults.reached().await;
        let deleting = db.catalog.commit(delete, "ada");
        let release = async {
            // SQLite has one writer: the delete waits in its queue, without a lock.
            while db.is_postgres() && db.lock_waits().await == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            faults.release();
        };
        tokio::join!(deleting, release).0
    };
    let (written, deleted) = tokio::join!(write, end);
    assert!(written.expect("written"), "the worker holds the lease");
    deleted.expect("deleted");
    let left = db.texts("SELECT key FROM objects WHERE kind = 'derived'").await;
    assert_eq!(left, Vec::<String>::new(), "an object without a cleanup");
    let paths = db.texts("SELECT file_path FROM pending_cleanups ORDER BY file_path").await;
    assert!(paths.contains(&key.as_str().to_owned()), "{paths:?}");
    worker.close().await;
}
