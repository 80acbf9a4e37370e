//! Claiming cleanups, each by one reaper at a time; listing and counting pending ones.

use std::collections::BTreeSet;

use wharfinger_catalog::{ClaimedCleanup, CleanupCounts, CleanupOutcome, PendingCleanup, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::CleanupId;

use super::sample::{
    HOUR, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, committed, deleted, registered, tenant, user,
};
use super::test_db::{CLEANUP_ATTEMPTS_MAX, TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");
const EVE: (&str, &str) = ("elsewhere", "eve");
const LEASE: i64 = 60 * SECOND;
/// When `sample::deleted` deletes a file.
const DELETED: UnixMs = NOW + SECOND;

async fn claimed(db: &TestDb, now: UnixMs, limit: usize) -> Vec<ClaimedCleanup> {
    db.catalog.claim_cleanups(&Scope::All, now, limit, LEASE).await.expect("claimed")
}

async fn pending(db: &TestDb, scope: Scope) -> Vec<PendingCleanup> {
    db.catalog.pending_cleanups(&scope, None, 100).await.expect("read")
}

pub(super) async fn a_claimed_cleanup_has_all_its_fields(db: &TestDb) {
    let file = deleted(&db.catalog, ADA, 10, &POLICY).await;
    assert_eq!(claimed(db, DELETED - 1, 10).await, []);
    let id = pending(db, Scope::All).await[0].id;
    let expected = ClaimedCleanup {
        id,
        token: 1,
        key: file.key,
        tenant: Some(tenant("harbour")),
        reason: "deleted".into(),
        attempts: 0,
        max_attempts: CLEANUP_ATTEMPTS_MAX,
        finish_at: URL_DEAD_AT,
        in_parts: false,
    };
    assert_eq!(claimed(db, DELETED, 10).await, [expected]);
}

/// The cleanups of a reaper that dies are claimed again when its lease ends.
pub(super) async fn a_claimed_cleanup_is_leased(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &REFUSING).await;
    let next = async || db.catalog.next_cleanup_at().await.expect("read");
    assert_eq!(next().await, Some(DELETED));
    let first = claimed(db, DELETED, 10).await;
    assert_eq!(first.len(), 1);
    assert_eq!(next().await, Some(DELETED + LEASE), "a claimed cleanup is due when its lease ends");
    assert_eq!(claimed(db, DELETED, 10).await, []);
    assert_eq!(claimed(db, DELETED + LEASE - 1, 10).await, []);
    let second = claimed(db, DELETED + LEASE, 10).await;
    assert_eq!(second, [ClaimedCleanup { token: 2, ..first[0].clone() }]);
}

pub(super) async fn the_longest_overdue_cleanups_are_claimed_first(db: &TestDb) {
    let mut keys = Vec::new();
    for n in 0..5 {
        let file = registered(&db.catalog, ADA, 10).await;
        let change = file::delete(&file, &REFUSING, DELETED + 5 - n).expect("deletable");
        keys.insert(0, committed(&db.catalog, change).await.key);
    }
    for pair in keys.chunks(2) {
        let batch: BTreeSet<_> =
            claimed(db, NOW + HOUR, 2).await.into_iter().map(|claim| claim.key).collect();
        assert_eq!(batch, pair.iter().cloned().collect());
    }
    assert_eq!(claimed(db, NOW + HOUR, 2).await, []);
}

pub(super) async fn eight_reapers_never_get_the_same_cleanup(db: &TestDb) {
    for _ in 0..60 {
        deleted(&db.catalog, ADA, 1, &REFUSING).await;
    }
    let another = db.another_handle().await;
    let claims = all_at_once((0..8).map(|n| {
        let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
        async move {
            let mut got = Vec::new();
            loop {
                let batch = catalog.claim_cleanups(&Scope::All, NOW + HOUR, 4, LEASE).await.expect("claimed");
                assert!(batch.len() <= 4);
                if batch.is_empty() {
                    return got;
                }
                got.extend(batch);
            }
        }
    }))
    .await
    .concat();
    assert_eq!(claims.len(), 60);
    assert_eq!(claims.iter().map(|claim| claim.id).collect::<BTreeSet<_>>().len(), 60);
    assert!(claims.iter().all(|claim| claim.token == 1));
}

pub(super) async fn pending_cleanups_are_listed_by_scope(db: &TestDb) {
    assert_eq!(pending(db, Scope::All).await, []);
    let mut files = Vec::new();
    for (n, owner) in [ADA, EVE, ADA, ADA, EVE].into_iter().enumerate() {
        let file = registered(&db.catalog, owner, 10).await;
        let change = file::delete(&file, &REFUSING, DELETED + n as i64).expect("deletable");
        files.push(committed(&db.catalog, change).await.id.to_string());
    }
    let of = |n: &[usize]| n.iter().map(|n| files[*n].clone()).collect::<Vec<_>>();
    let listed = async |scope: Scope| {
        pending(db, scope).await.into_iter().map(|row| row.document_id).collect::<Vec<_>>()
    };
    assert_eq!(listed(Scope::All).await, of(&[0, 1, 2, 3, 4]), "oldest first");
    assert_eq!(listed(Scope::Tenant(tenant("harbour"))).await, of(&[0, 2, 3]));
    assert_eq!(listed(Scope::Tenant(tenant("elsewhere"))).await, of(&[1, 4]));
    assert_eq!(listed(Scope::User(tenant("elsewhere"), user("eve"))).await, of(&[1, 4]));
    assert_eq!(listed(Scope::Tenant(tenant("unknown"))).await, of(&[]));

    for scope in [Scope::All, Scope::Tenant(tenant("harbour"))] {
        let whole = pending(db, scope.clone()).await;
        let mut pages = Vec::new();
        let mut after: Option<CleanupId> = None;
        loop {
            let page = db.catalog.pending_cleanups(&scope, after, 2).await.expect("read");
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            pages.extend(page);
        }
        assert_eq!(pages, whole);
    }
}

pub(super) async fn pending_cleanups_are_counted_by_scope(db: &TestDb) {
    let counts = async |scope: Scope| db.catalog.cleanup_counts(&scope).await.expect("read");
    assert_eq!(counts(Scope::All).await, CleanupCounts::default());
    for (n, owner) in [EVE, ADA, ADA].into_iter().enumerate() {
        let file = registered(&db.catalog, owner, 10).await;
        let change = file::delete(&file, &REFUSING, DELETED + n as i64).expect("deletable");
        committed(&db.catalog, change).await;
    }
    // One cleanup of tenant harbour is refused until it is exhausted.
    for _ in 0..CLEANUP_ATTEMPTS_MAX {
        let claims = claimed(db, NOW + HOUR, 3).await;
        let outcomes = claims
            .into_iter()
            .map(|claim| {
                let outcome = if claim.key.as_str().contains("harbour") && claim.finish_at == DELETED + 1 {
                    CleanupOutcome::Refused { error: "no".into(), retry_at: NOW + HOUR }
                } else {
                    CleanupOutcome::StoreDown { error: "away".into(), retry_at: NOW + HOUR }
                };
                (claim, outcome)
            })
            .collect();
        db.catalog.record_cleanup_outcomes(outcomes, NOW + HOUR).await.expect("settled");
    }
    let is =
        |pending, exhausted, oldest| CleanupCounts { pending, exhausted, oldest_created_at: Some(oldest) };
    assert_eq!(counts(Scope::All).await, is(2, 1, DELETED));
    assert_eq!(counts(Scope::Tenant(tenant("harbour"))).await, is(1, 1, DELETED + 1));
    assert_eq!(counts(Scope::User(tenant("elsewhere"), user("eve"))).await, is(1, 0, DELETED));
    assert_eq!(counts(Scope::Tenant(tenant("unknown"))).await, CleanupCounts::default());
}
