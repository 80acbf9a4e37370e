//! Objects: the id of the multipart upload of each, and cleanups of bytes that are written too late. Also facts.

use wharfinger_catalog::{CleanupOutcome, Scope};
use wharfinger_lifecycle::file::{Cleanup, EndReason, late_write_cleanup};

use super::sample::{HOUR, NOW, POLICY, REFUSING, SECOND, committed, confirm, deleted, registered};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const LEASE: i64 = 60 * SECOND;

pub(super) async fn an_object_has_one_upload_id(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 10).await;
    let known = async || db.catalog.upload_id(&file.key).await.expect("read");
    let set = async |before: Option<&str>, id: &str| {
        db.catalog.set_upload_id(&file.key, before.map(str::to_owned), id.to_owned()).await.expect("answered")
    };
    assert_eq!(known().await, None);
    assert!(set(None, "first").await);
    assert!(!set(None, "second").await, "another upload was set first");
    assert_eq!(known().await.as_deref(), Some("first"));
    assert!(set(Some("first"), "second").await, "the first upload no longer exists in the store");
    assert_eq!(known().await.as_deref(), Some("second"));

    let other = registered(&db.catalog, ADA, 10).await;
    assert_eq!(db.catalog.upload_id(&other.key).await.expect("read"), None, "each object has its own");
}

pub(super) async fn only_registered_files_get_an_upload_id(db: &TestDb) {
    let ended = deleted(&db.catalog, ADA, 10, &POLICY).await;
    assert!(!db.catalog.set_upload_id(&ended.key, None, "late".into()).await.expect("answered"));
    let waiting = registered(&db.catalog, ADA, 10).await;
    let ready = committed(&db.catalog, confirm(&waiting)).await;
    assert!(!db.catalog.set_upload_id(&ready.key, None, "late".into()).await.expect("answered"));
}

pub(super) async fn late_bytes_get_a_cleanup(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 10, &REFUSING).await;
    let cleanup = late_write_cleanup(&file, &POLICY, NOW).expect("it has ended");
    assert_eq!(cleanup.reason, EndReason::Deleted);
    let claim = async |now| db.catalog.claim_cleanups(&Scope::All, now, 10, LEASE).await.expect("claimed");
    // A cleanup that was claimed before the late bytes were written does not cover them.
    let before = claim(NOW + SECOND).await;
    assert_eq!(before.len(), 1);
    db.catalog.repeat_cleanup(file.clone(), cleanup.clone(), NOW + SECOND).await.expect("written");
    let gone = |claims: Vec<wharfinger_catalog::ClaimedCleanup>| {
        let outcome = wharfinger_catalog::CleanupOutcome::Deleted;
        claims.into_iter().map(|claim| (claim, outcome.clone())).collect::<Vec<_>>()
    };
    let settled = db.catalog.record_cleanup_outcomes(gone(before), NOW + SECOND).await.expect("settled");
    assert_eq!(settled.done, 0, "the claim is old");
    let again = claim(NOW + SECOND).await;
    assert_eq!(again.len(), 1);
    assert_eq!(db.catalog.record_cleanup_outcomes(gone(again), NOW + SECOND).await.expect("settled").done, 1);

    // If no cleanup is left, a new one is added.
    assert_eq!(claim(NOW + SECOND).await, []);
    let cleanup = Cleanup { finish_at: NOW, ..cleanup };
    db.catalog.repeat_cleanup(file.clone(), cleanup, NOW + SECOND).await.expect("written");
    let repeated = claim(NOW + SECOND).await;
    assert_eq!(repeated.iter().map(|claim| &claim.key).collect::<Vec<_>>(), [&file.key]);
}

pub(super) async fn facts_are_set_and_raised(db: &TestDb) {
    assert_eq!(db.catalog.fact("a").await.expect("read"), None);
    for expected in 1..=3 {
        assert_eq!(db.catalog.increment_fact("a").await.expect("raised"), expected);
    }
    db.catalog.set_fact("a", "41").await.expect("set");
    assert_eq!(db.catalog.increment_fact("a").await.expect("raised"), 42);
    assert_eq!(db.catalog.fact("a").await.expect("read").as_deref(), Some("42"));
}

/// Late bytes are reported while the cleanup of the earlier bytes ends: exactly one cleanup is left for them.
pub(super) async fn late_bytes_get_a_cleanup_while_another_one_ends(db: &TestDb) {
    let another = db.another_handle().await;
    for _ in 0..40 {
        let file = deleted(&db.catalog, ("harbour", "ada"), 10, &REFUSING).await;
        let cleanup = late_write_cleanup(&file, &POLICY, NOW).expect("it has ended");
        let claimed =
            db.catalog.claim_cleanups(&Scope::All, NOW + SECOND, 10, SECOND).await.expect("claimed");
        assert_eq!(claimed.len(), 1);
        let gone = claimed.into_iter().map(|claim| (claim, CleanupOutcome::Deleted)).collect();
        let settle = db.catalog.record_cleanup_outcomes(gone, NOW + HOUR);
        let (settled, again) = tokio::join!(settle, another.repeat_cleanup(file, cleanup, NOW + SECOND));
        settled.expect("settled");
        again.expect("answered");
        assert_eq!(db.catalog.due_cleanups(NOW + HOUR).await.expect("counted"), 1);
        let left = db.catalog.claim_cleanups(&Scope::All, NOW + HOUR, 10, SECOND).await.expect("claimed");
        let gone = left.into_iter().map(|claim| (claim, CleanupOutcome::Deleted)).collect();
        db.catalog.record_cleanup_outcomes(gone, NOW + 2 * HOUR).await.expect("settled");
        assert_eq!(db.sql("DELETE FROM pending_cleanups").await, 0);
    }
}
