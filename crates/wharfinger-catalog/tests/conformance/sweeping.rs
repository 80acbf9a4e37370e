//! Sweeps that run in one of many processes: claiming the lease, extending it, and writing under its fence.

use wharfinger_catalog::{CatalogError, Fence, RunStart, Scope, SweepClaim, SweepClaimOutcome, SweepRecord};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file;

use super::sample::{
    HOUR, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, committed, confirm, deleted, registered,
};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");
pub(super) const NAME: &str = "orphans";
pub(super) const LEASE_MS: i64 = 30 * SECOND;

pub(super) fn claim_at(now: UnixMs) -> SweepClaim {
    SweepClaim {
        name: NAME,
        owner: "a process".into(),
        now,
        lease_ms: LEASE_MS,
        only_if_due: true,
        start: RunStart { by: "schedule".into(), instance: "host-1".into(), is_dry_run: false },
    }
}

async fn claim(db: &TestDb, now: UnixMs) -> SweepClaimOutcome {
    db.catalog.claim_sweep(claim_at(now)).await.expect("asked")
}

#[track_caller]
pub(super) fn leased(answer: SweepClaimOutcome) -> Fence {
    match answer {
        SweepClaimOutcome::Leased(fence) => fence,
        other => panic!("{other:?}"),
    }
}

fn record() -> SweepRecord {
    let result = Some("{}".into());
    SweepRecord { name: NAME, started_at: NOW, ended_at: NOW, result, ..SweepRecord::default() }
}

pub(super) async fn a_due_sweep_is_leased_by_one_process(db: &TestDb) {
    for round in 0..5 {
        let now = NOW + round * HOUR;
        let claims = (0..8).map(|_| {
            let catalog = db.catalog.clone();
            async move { catalog.claim_sweep(claim_at(now)).await.expect("asked") }
        });
        let answers = all_at_once(claims).await;
        let taken = SweepClaimOutcome::Taken { owner: "a process".into(), lease_until: now + LEASE_MS };
        assert_eq!(answers.iter().filter(|answer| **answer == taken).count(), 7, "{answers:?}");
        let fence = answers
            .into_iter()
            .find(|answer| *answer != taken)
            .map(leased)
            .expect("one process has the lease");
        let catalog = db.catalog.fenced(fence);
        catalog.end_sweep(record(), Some(now + HOUR)).await.expect("released");
        let not_yet = SweepClaimOutcome::NotDue { next_run_at: now + HOUR };
        assert_eq!(claim(db, now + HOUR - 1).await, not_yet, "the next run is not due");
    }
}

pub(super) async fn a_sweep_lease_lasts_as_long_as_it_is_extended(db: &TestDb) {
    let catalog = db.catalog.fenced(leased(claim(db, NOW).await));
    catalog.extend_sweep(NOW + 2 * LEASE_MS).await.expect("extended");
    let taken = SweepClaimOutcome::Taken { owner: "a process".into(), lease_until: NOW + 2 * LEASE_MS };
    assert_eq!(claim(db, NOW + LEASE_MS).await, taken);
    // If the process dies, another one claims the run when the lease ends.
    leased(claim(db, NOW + 2 * LEASE_MS).await);
    assert!(matches!(catalog.extend_sweep(NOW + HOUR).await, Err(CatalogError::Fenced)));
}

pub(super) async fn a_released_sweep_is_due_at_once(db: &TestDb) {
    let catalog = db.catalog.fenced(leased(claim(db, NOW).await));
    catalog.end_sweep(record(), None).await.expect("released");
    leased(claim(db, NOW).await);
}

/// A run by hand does not wait for the schedule, but it waits while another process has the lease.
pub(super) async fn a_sweep_started_by_hand_need_not_be_due(db: &TestDb) {
    let now = |now| SweepClaim { only_if_due: false, ..claim_at(now) };
    let catalog = db.catalog.fenced(leased(db.catalog.claim_sweep(now(NOW)).await.expect("asked")));
    let taken = SweepClaimOutcome::Taken { owner: "a process".into(), lease_until: NOW + LEASE_MS };
    assert_eq!(db.catalog.claim_sweep(now(NOW)).await.expect("asked"), taken);
    catalog.end_sweep(record(), Some(NOW + HOUR)).await.expect("released");
    assert_eq!(claim(db, NOW).await, SweepClaimOutcome::NotDue { next_run_at: NOW + HOUR });
    leased(db.catalog.claim_sweep(now(NOW)).await.expect("asked"));
}

pub(super) async fn a_failed_run_keeps_the_time_of_the_last_success(db: &TestDb) {
    db.catalog.record_sweep(record()).await.expect("recorded");
    let failed = SweepRecord {
        started_at: NOW + HOUR,
        ended_at: NOW + 2 * HOUR,
        result: None,
        error: Some("no".into()),
        ..record()
    };
    db.catalog.record_sweep(failed).await.expect("recorded");
    let state = db.catalog.sweeps().await.expect("read").remove(0);
    assert_eq!((state.last_success_at, state.last_end_at), (Some(NOW), Some(NOW + 2 * HOUR)));
    assert_eq!((state.last_result, state.last_error.as_deref()), (None, Some("no")));
}

pub(super) async fn a_read_only_catalog_refuses_writes(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let before = db.dump().await;
    let read_only = db.catalog.read_only();
    let reclaim = file::reclaim(&file, "not confirmed", &POLICY, URL_DEAD_AT).expect("reclaimable");
    assert!(matches!(read_only.commit(reclaim, NAME).await, Err(CatalogError::Corrupt(_))));
    assert!(matches!(read_only.record_sweep(record()).await, Err(CatalogError::Corrupt(_))));
    assert_eq!(read_only.file(file.id).await.expect("read"), Some(file));
    assert_eq!(db.dump().await, before);
}

pub(super) async fn a_more_frequent_schedule_brings_the_next_run_forward(db: &TestDb) {
    db.catalog.advance_sweep(NAME, NOW + HOUR, NOW).await.expect("no row yet, so nothing to bring forward");
    let catalog = db.catalog.fenced(leased(claim(db, NOW).await));
    catalog.end_sweep(record(), Some(NOW + 24 * HOUR)).await.expect("released");
    db.catalog.advance_sweep(NAME, NOW + 24 * HOUR, NOW + HOUR).await.expect("brought forward");
    db.catalog
        .advance_sweep(NAME, NOW + 24 * HOUR, NOW)
        .await
        .expect("the next run has changed since, so it stays");
    assert_eq!(claim(db, NOW).await, SweepClaimOutcome::NotDue { next_run_at: NOW + HOUR });
}

/// I13: after another process has claimed the sweep, all writes under the old fence are refused.
pub(super) async fn a_lost_sweep_lease_writes_nothing(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 100).await;
    let tombstone = deleted(&db.catalog, ADA, 50, &REFUSING).await;
    let old_owner = db.catalog.fenced(leased(claim(db, NOW).await));
    let reclaim = file::reclaim(&file, "not confirmed", &POLICY, URL_DEAD_AT).expect("reclaimable");
    let successor = db.catalog.fenced(leased(claim(db, NOW + LEASE_MS).await));

    let before = db.dump().await;
    let refused = [
        old_owner.commit(reclaim.clone(), NAME).await,
        old_owner.purge_tombstones(vec![tombstone]).await.map(|_| ()),
        old_owner.purge_expired_keys(i64::MAX, 10).await.map(|_| ()),
        old_owner.claim_cleanups(&Scope::All, URL_DEAD_AT, 10, LEASE_MS).await.map(|_| ()),
        old_owner.record_sweep(record()).await,
        old_owner.extend_sweep(NOW + HOUR).await,
        old_owner.end_sweep(record(), Some(NOW)).await,
    ];
    for answer in refused {
        assert!(matches!(answer, Err(CatalogError::Fenced)), "{answer:?}");
    }
    assert_eq!(db.dump().await, before, "nothing has changed");

    successor.commit(reclaim, NAME).await.expect("it has the lease");
    successor.record_sweep(record()).await.expect("it has the lease");
    // Calls outside of a sweep are not fenced.
    let other = registered(&db.catalog, ADA, 10).await;
    committed(&db.catalog, confirm(&other)).await;
}

/// A claim during a commit waits for the commit or makes it fail. A commit never succeeds after the claim.
pub(super) async fn a_sweep_commits_nothing_after_a_newer_claim(db: &TestDb) {
    for round in 0..20 {
        let now = NOW + round * HOUR;
        let file = registered(&db.catalog, ADA, 10).await;
        let sweep = db.catalog.fenced(leased(claim(db, now).await));
        let (change, successor) = (confirm(&file), db.catalog.clone());
        let claimed = tokio::spawn(async move {
            let answer = successor.claim_sweep(claim_at(now + LEASE_MS)).await.expect("asked");
            // The new owner sees all writes under the old fence.
            let seen = successor.file(file.id).await.expect("read").expect("there").version;
            (leased(answer), seen)
        });
        let outcome = sweep.commit(change, NAME).await;
        let (fence, seen) = claimed.await.expect("no panic");
        let version = db.catalog.file(file.id).await.expect("read").expect("there").version;
        assert!(matches!(outcome, Ok(()) | Err(CatalogError::Fenced)), "{outcome:?}");
        assert_eq!(version, seen, "nothing was written after the claim");
        assert_eq!(outcome.is_ok(), version > file.version);
        db.catalog.fenced(fence).end_sweep(record(), Some(now + HOUR)).await.expect("released");
    }
}

pub(super) async fn the_last_run_of_a_sweep_is_recorded(db: &TestDb) {
    let ended = async |name| db.catalog.sweep_ended_at(name).await.expect("read");
    assert_eq!(ended("orphans").await, None);
    let first = SweepRecord {
        name: "orphans",
        started_at: NOW,
        ended_at: NOW + 5,
        result: Some(r#"{"removed":1}"#.into()),
        ..SweepRecord::default()
    };
    db.catalog.record_sweep(first).await.expect("recorded");
    assert_eq!(ended("orphans").await, Some(NOW + 5));
    assert_eq!(ended("Orphans").await, None);
    let second = SweepRecord {
        name: "orphans",
        started_at: NOW + 10,
        ended_at: NOW + 12,
        error: Some("the store is away".into()),
        ..SweepRecord::default()
    };
    db.catalog.record_sweep(second).await.expect("recorded");
    assert_eq!(ended("orphans").await, Some(NOW + 12));
    assert_eq!(
        db.texts("SELECT COALESCE(last_result, '-') || ' ' || last_error FROM sweeps").await,
        ["- the store is away"],
        "the result of an earlier run is removed"
    );
}
