//! Outcomes of cleanups: a row is deleted only when the store has confirmed that its bytes are gone for good.

use wharfinger_catalog::{
    ClaimedCleanup, CleanupOutcome, CleanupTotals, EXHAUSTED_RETRY_MS, PendingCleanup, Scope,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::limits::ERROR_TEXT_BYTES_MAX;

use super::sample::{HOUR, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, deleted, tenant, user};
use super::test_db::{CLEANUP_ATTEMPTS_MAX, TestDb};

const ADA: (&str, &str) = ("harbour", "ada");
const LEASE: i64 = 60 * SECOND;
const DELETED: UnixMs = NOW + SECOND;
const NOTHING: CleanupTotals = CleanupTotals { done: 0, failed: 0, exhausted: 0, orphans: 0 };

async fn claimed_at(db: &TestDb, now: UnixMs) -> ClaimedCleanup {
    let mut claims = db.catalog.claim_cleanups(&Scope::All, now, 10, LEASE).await.expect("claimed");
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

async fn settled(db: &TestDb, claim: &ClaimedCleanup, outcome: CleanupOutcome, now: UnixMs) -> CleanupTotals {
    db.catalog.record_cleanup_outcomes(vec![(claim.clone(), outcome)], now).await.expect("settled")
}

async fn pending(db: &TestDb) -> Vec<PendingCleanup> {
    db.catalog.pending_cleanups(&Scope::All, None, 100).await.expect("read")
}

async fn next(db: &TestDb) -> Option<UnixMs> {
    db.catalog.next_cleanup_at().await.expect("read")
}

fn refused(retry_at: UnixMs) -> CleanupOutcome {
    CleanupOutcome::Refused { error: "access denied".into(), retry_at }
}

fn store_down(retry_at: UnixMs) -> CleanupOutcome {
    CleanupOutcome::StoreDown { error: "no answer".into(), retry_at }
}

pub(super) async fn a_cleanup_is_done_when_its_bytes_are_gone(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &REFUSING).await;
    let claim = claimed_at(db, DELETED).await;
    assert_eq!(
        settled(db, &claim, CleanupOutcome::Deleted, DELETED).await,
        CleanupTotals { done: 1, ..NOTHING }
    );
    assert_eq!(pending(db).await, []);
    assert_eq!(settled(db, &claim, CleanupOutcome::Deleted, DELETED).await, NOTHING, "it is done once");
    assert_eq!(db.catalog.record_cleanup_outcomes(Vec::new(), DELETED).await.expect("settled"), NOTHING);
}

/// A live URL can write the bytes again, so they are deleted again when it has expired.
pub(super) async fn bytes_are_deleted_again_after_the_url_expires(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &POLICY).await;
    let first = claimed_at(db, DELETED).await;
    assert_eq!(settled(db, &first, CleanupOutcome::Deleted, URL_DEAD_AT - 1).await, NOTHING);
    let row = pending(db).await.remove(0);
    assert_eq!((row.attempts, row.last_error, row.last_attempt_at), (0, None, Some(URL_DEAD_AT - 1)));
    assert_eq!(next(db).await, Some(URL_DEAD_AT));
    assert_eq!(
        db.catalog.claim_cleanups(&Scope::All, URL_DEAD_AT - 1, 10, LEASE).await.expect("claimed"),
        []
    );
    assert_eq!(db.catalog.retry_cleanups_now(&Scope::All, URL_DEAD_AT - 1).await.expect("done"), 0);

    let second = claimed_at(db, URL_DEAD_AT).await;
    assert_eq!((second.id, second.token), (first.id, 2));
    assert_eq!(
        settled(db, &second, CleanupOutcome::Deleted, URL_DEAD_AT).await,
        CleanupTotals { done: 1, ..NOTHING }
    );
    assert_eq!(pending(db).await, []);
}

pub(super) async fn refusals_spend_attempts_until_the_cleanup_is_exhausted(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &REFUSING).await;
    let mut now = DELETED;
    for attempt in 1..=CLEANUP_ATTEMPTS_MAX {
        let claim = claimed_at(db, now).await;
        assert_eq!(claim.attempts, attempt - 1);
        let last = attempt == CLEANUP_ATTEMPTS_MAX;
        let expected = CleanupTotals { failed: 1, exhausted: u64::from(last), ..NOTHING };
        assert_eq!(settled(db, &claim, refused(now + 5 * SECOND), now).await, expected);
        let row = pending(db).await.remove(0);
        assert_eq!(row.attempts, i64::from(attempt));
        assert_eq!(row.last_error.as_deref(), Some("access denied"));
        assert_eq!(row.last_attempt_at, Some(now));
        let wait = if last { EXHAUSTED_RETRY_MS } else { 5 * SECOND };
        assert_eq!(next(db).await, Some(now + wait));
        now += wait;
    }
    assert_eq!(db.catalog.cleanup_counts(&Scope::All).await.expect("read").exhausted, 1);

    // An exhausted cleanup is retried once a day, without end.
    let claim = claimed_at(db, now).await;
    let again = CleanupTotals { failed: 1, exhausted: 1, ..NOTHING };
    assert_eq!(settled(db, &claim, refused(now + SECOND), now).await, again);
    assert_eq!(next(db).await, Some(now + EXHAUSTED_RETRY_MS));
    let claim = claimed_at(db, now + EXHAUSTED_RETRY_MS).await;
    let done = settled(db, &claim, CleanupOutcome::Deleted, now + EXHAUSTED_RETRY_MS).await;
    assert_eq!(done, CleanupTotals { done: 1, ..NOTHING });
}

pub(super) async fn an_exhausted_cleanup_that_succeeds_is_no_longer_exhausted(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &POLICY).await;
    for n in 0..i64::from(CLEANUP_ATTEMPTS_MAX) {
        let claim = claimed_at(db, DELETED + n).await;
        settled(db, &claim, refused(DELETED + n + 1), DELETED + n).await;
    }
    assert_eq!(db.catalog.retry_cleanups_now(&Scope::All, DELETED + 9).await.expect("done"), 1);
    let claim = claimed_at(db, DELETED + 9).await;
    assert_eq!(settled(db, &claim, CleanupOutcome::Deleted, DELETED + 9).await, NOTHING);
    let counts = db.catalog.cleanup_counts(&Scope::All).await.expect("read");
    assert_eq!((counts.pending, counts.exhausted), (1, 0));
    assert_eq!(next(db).await, Some(URL_DEAD_AT));
}

pub(super) async fn an_outage_of_the_store_spends_no_attempts(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &REFUSING).await;
    for n in 0..10 {
        let now = DELETED + n * 5 * SECOND;
        let claim = claimed_at(db, now).await;
        let outcome = store_down(now + 5 * SECOND);
        assert_eq!(settled(db, &claim, outcome, now).await, CleanupTotals { failed: 1, ..NOTHING });
        assert_eq!(next(db).await, Some(now + 5 * SECOND));
    }
    let row = pending(db).await.remove(0);
    assert_eq!((row.attempts, row.last_error.as_deref()), (0, Some("no answer")));
    assert_eq!(db.catalog.cleanup_counts(&Scope::All).await.expect("read").exhausted, 0);
}

/// I13: a reaper that has lost its lease changes nothing, with any outcome.
pub(super) async fn an_old_claim_changes_no_cleanup(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &POLICY).await;
    let old = claimed_at(db, DELETED).await;
    let new = claimed_at(db, DELETED + LEASE).await;
    let before = db.dump().await;
    for now in [DELETED + LEASE, URL_DEAD_AT] {
        for outcome in [CleanupOutcome::Deleted, refused(now), store_down(now)] {
            assert_eq!(settled(db, &old, outcome.clone(), now).await, NOTHING, "{outcome:?}");
            assert_eq!(db.dump().await, before, "{outcome:?}");
        }
    }
    assert_eq!(
        settled(db, &new, CleanupOutcome::Deleted, URL_DEAD_AT).await,
        CleanupTotals { done: 1, ..NOTHING }
    );
}

pub(super) async fn each_cleanup_of_a_batch_has_its_own_outcome(db: &TestDb) {
    for _ in 0..4 {
        deleted(&db.catalog, ADA, 10, &REFUSING).await;
    }
    deleted(&db.catalog, ADA, 10, &POLICY).await;
    let mut claims = db.catalog.claim_cleanups(&Scope::All, DELETED, 10, LEASE).await.expect("claimed");
    claims.sort_by_key(|claim| claim.finish_at);
    let stale = ClaimedCleanup { token: 9, ..claims[3].clone() };
    let outcomes = vec![
        (claims[0].clone(), CleanupOutcome::Deleted),
        (claims[1].clone(), refused(DELETED + 7)),
        (claims[2].clone(), store_down(DELETED + 8)),
        (stale, CleanupOutcome::Deleted),
        (claims[4].clone(), CleanupOutcome::Deleted),
    ];
    let outcome = db.catalog.record_cleanup_outcomes(outcomes, DELETED).await.expect("settled");
    assert_eq!(outcome, CleanupTotals { done: 1, failed: 2, ..NOTHING });
    let mut due = db
        .texts("SELECT CAST(next_attempt_at AS TEXT) || ' ' || CAST(attempts AS TEXT) FROM pending_cleanups")
        .await;
    due.sort();
    let mut expected = [
        format!("{} 1", DELETED + 7),
        format!("{} 0", DELETED + 8),
        format!("{} 0", DELETED + LEASE),
        format!("{URL_DEAD_AT} 0"),
    ];
    expected.sort();
    assert_eq!(due, expected);
}

pub(super) async fn a_long_error_of_a_cleanup_is_cut_at_a_character(db: &TestDb) {
    deleted(&db.catalog, ADA, 10, &REFUSING).await;
    let long = format!("x{}", "ü".repeat(ERROR_TEXT_BYTES_MAX));
    for n in 0..2 {
        let claim = claimed_at(db, DELETED + n).await;
        let (error, retry_at) = (long.clone(), DELETED + n + 1);
        let outcome = if n == 0 {
            CleanupOutcome::Refused { error, retry_at }
        } else {
            CleanupOutcome::StoreDown { error, retry_at }
        };
        settled(db, &claim, outcome, DELETED + n).await;
        let kept = pending(db).await.remove(0).last_error.expect("an error");
        assert_eq!(kept.len(), ERROR_TEXT_BYTES_MAX - 1);
    }
}

pub(super) async fn failed_cleanups_are_retried_now_by_scope(db: &TestDb) {
    for owner in [ADA, ("elsewhere", "eve"), ("elsewhere", "eve")] {
        deleted(&db.catalog, owner, 10, &REFUSING).await;
    }
    let claims = db.catalog.claim_cleanups(&Scope::All, DELETED, 10, LEASE).await.expect("claimed");
    let outcomes = claims.into_iter().map(|claim| (claim, refused(NOW + HOUR))).collect();
    db.catalog.record_cleanup_outcomes(outcomes, DELETED).await.expect("settled");
    let at = DELETED + SECOND;
    let retried = async |scope: Scope| db.catalog.retry_cleanups_now(&scope, at).await.expect("done");
    let due = async || db.catalog.claim_cleanups(&Scope::All, at, 10, LEASE).await.expect("claimed");

    assert_eq!(due().await, []);
    assert_eq!(retried(Scope::Tenant(tenant("unknown"))).await, 0);
    assert_eq!(retried(Scope::User(tenant("harbour"), user("ada"))).await, 1);
    assert_eq!(retried(Scope::Tenant(tenant("harbour"))).await, 0, "its cleanup is due already");
    let first = due().await;
    assert_eq!(
        first.iter().flat_map(|claim| &claim.tenant).map(|tenant| tenant.as_str()).collect::<Vec<_>>(),
        ["harbour"]
    );
    assert_eq!(retried(Scope::All).await, 2, "a leased cleanup is not changed");
    assert_eq!(due().await.len(), 2);
    assert_eq!(
        settled(db, &first[0], CleanupOutcome::Deleted, at).await,
        CleanupTotals { done: 1, ..NOTHING }
    );
}
