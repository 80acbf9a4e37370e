//! Purging tombstones: only when no charge and no cleanup is left, and with all their rows.

use wharfinger_catalog::{CleanupOutcome, CleanupTotals, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{self, CheckAction, File};

use super::sample::{
    HOUR, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, committed, confirmed, deleted, new_job, registered,
};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

async fn assert_not_purged(db: &TestDb, file: &File) {
    let before = db.dump().await;
    assert!(db.catalog.purge_tombstones(vec![file.clone()]).await.expect("answered").is_empty());
    assert_eq!(db.dump().await, before);
}

/// Finishes the cleanup of the file.
async fn clean_up(db: &TestDb, now: UnixMs) {
    let claimed = db.catalog.claim_cleanups(&Scope::All, now, 10, HOUR).await.expect("claimed");
    let outcomes = claimed.into_iter().map(|claim| (claim, CleanupOutcome::Deleted)).collect();
    let settled = db.catalog.record_cleanup_outcomes(outcomes, now).await.expect("settled");
    assert_eq!(settled, CleanupTotals { done: 1, ..CleanupTotals::default() });
}

pub(super) async fn live_files_are_not_purged(db: &TestDb) {
    assert_not_purged(db, &registered(&db.catalog, ADA, 10).await).await;
    assert_not_purged(db, &confirmed(&db.catalog, ADA, 10).await).await;
}

pub(super) async fn a_pending_cleanup_keeps_its_tombstone(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 10, &REFUSING).await;
    assert_eq!(file.charged_bytes, 0);
    assert_not_purged(db, &file).await;
    clean_up(db, NOW + SECOND).await;
    assert!(!db.catalog.purge_tombstones(vec![file]).await.expect("answered").is_empty());
}

pub(super) async fn a_charge_keeps_its_tombstone(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 10, &POLICY).await;
    clean_up(db, URL_DEAD_AT).await;
    assert_not_purged(db, &file).await;
    let CheckAction::Refund(refund) = file::check(&file, &POLICY, URL_DEAD_AT) else {
        panic!("a refund is due")
    };
    let refunded = committed(&db.catalog, *refund).await;
    assert_not_purged(db, &file).await;
    assert!(!db.catalog.purge_tombstones(vec![refunded]).await.expect("answered").is_empty());
}

pub(super) async fn purging_a_file_deletes_everything_but_its_deletion_log(db: &TestDb) {
    let kept = confirmed(&db.catalog, ADA, 5).await;
    db.sql("DELETE FROM file_counts WHERE files = 0").await;
    let before = db.dump().await;
    let file = deleted(&db.catalog, ADA, 10, &REFUSING).await;
    clean_up(db, NOW + SECOND).await;
    // A job of the tombstone, and a derived object of the file.
    let mut job = new_job("harbour", NOW);
    job.file = Some(file.id);
    db.catalog.enqueue(vec![job], NOW).await.expect("enqueued");
    db.sql(&format!(
        "INSERT INTO objects (key, file_id, kind, created_at) VALUES ('derived/x', '{}', 'derived', 0)",
        file.id
    ))
    .await;

    assert!(!db.catalog.purge_tombstones(vec![file.clone()]).await.expect("answered").is_empty());
    assert_eq!(db.catalog.file(file.id).await.expect("read"), None);
    assert!(db.catalog.purge_tombstones(vec![file]).await.expect("answered").is_empty(), "it is purged once");
    assert_eq!(
        db.sql("DELETE FROM file_counts WHERE files = 0").await,
        2,
        "the counters of registered and of deleted files"
    );
    assert_eq!(db.sql("DELETE FROM deletion_log").await, 1, "the deletion log keeps its line");
    db.sql("DELETE FROM queue_tenants").await;
    assert_eq!(db.dump().await, before);
    assert_eq!(db.catalog.file(kept.id).await.expect("read"), Some(kept));
}
