//! Fairness between tenants: each gets its share of the claims, however much the others have waiting.

use std::collections::BTreeMap;

use wharfinger_catalog::{
    Catalog, Claimable, Destination, LeasedStageJob, Scope, StageClaim, StageEndContext,
};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, StageOutput};

use super::sample::{HOUR, NOW, REFUSING, SECOND, confirmed, deleted, tenant};
use super::stages::{claim, end, plan, queued_of};
use super::test_db::{TestDb, all_at_once};

const LATER: i64 = NOW + 10 * SECOND;

async fn queue(db: &TestDb, tenant: &str, files: usize) {
    for _ in 0..files {
        queued_of(db, (tenant, "u"), &[Stage::Scan]).await;
    }
}

async fn claimed(catalog: &Catalog, limit: usize) -> Vec<LeasedStageJob> {
    catalog.claim_stage(claim(Stage::Scan, limit, LATER)).await.expect("claimed")
}

fn per_tenant(held: &[LeasedStageJob]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    held.iter().for_each(|held| *counts.entry(held.file.tenant.as_str()).or_default() += 1);
    counts
}

/// The only file of a new tenant is among the next claims, not behind the whole backlog.
pub(super) async fn a_single_file_does_not_wait_behind_a_large_backlog(db: &TestDb) {
    queue(db, "crowd", 60).await;
    assert_eq!(claimed(&db.catalog, 5).await.len(), 5);
    queue(db, "single", 1).await;
    let next = claimed(&db.catalog, 2).await;
    assert_eq!(per_tenant(&next), BTreeMap::from([("crowd", 1), ("single", 1)]));
    assert_eq!(per_tenant(&claimed(&db.catalog, 100).await), BTreeMap::from([("crowd", 54)]));
}

/// I21: each tenant gets at least half of its fair share of the claims while it has files waiting.
pub(super) async fn every_tenant_gets_its_share(db: &TestDb) {
    queue(db, "crowd", 90).await;
    queue(db, "some", 40).await;
    queue(db, "few", 20).await;
    for _ in 0..6 {
        let ten = claimed(&db.catalog, 10).await;
        let counts = per_tenant(&ten);
        // Files of the same rank come in any order: 4, 4 and 2 are possible.
        assert!(counts.len() == 3 && counts.values().all(|count| *count >= 2), "{counts:?}");
    }
    // Tenants without waiting files do not delay the others.
    assert_eq!(claimed(&db.catalog, 100).await.len(), 90);
}

/// A tenant that was idle gets its fair share from now on, and nothing for the time before.
pub(super) async fn an_idle_tenant_gets_no_credit_for_its_idle_time(db: &TestDb) {
    queue(db, "away", 1).await;
    assert_eq!(claimed(&db.catalog, 1).await.len(), 1);
    queue(db, "busy", 60).await;
    assert_eq!(claimed(&db.catalog, 40).await.len(), 40);
    queue(db, "away", 40).await;
    let counts = claimed(&db.catalog, 20).await;
    let counts = per_tenant(&counts);
    assert!(counts.values().all(|count| (9..=11).contains(count)), "{counts:?}");
}

/// A claim for other tenants than the crowd finds their files behind the backlog of the crowd.
pub(super) async fn a_claim_for_other_tenants_skips_a_large_backlog(db: &TestDb) {
    queue(db, "crowd", 80).await;
    assert_eq!(claimed(&db.catalog, 4).await.len(), 4);
    let of_others =
        || StageClaim { of: Claimable::UntriedExcept(vec![tenant("crowd")]), ..claim(Stage::Scan, 1, LATER) };
    assert_eq!(db.catalog.claim_stage(of_others()).await.expect("answered"), []);
    queue(db, "single", 2).await;
    let found = db.catalog.claim_stage(of_others()).await.expect("answered");
    assert_eq!(per_tenant(&found), BTreeMap::from([("single", 1)]));
}

pub(super) async fn concurrent_claims_stay_fair(db: &TestDb) {
    queue(db, "crowd", 60).await;
    queue(db, "quiet", 15).await;
    let another = db.another_handle().await;
    let held = all_at_once((0..6).map(|n| {
        let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
        async move { claimed(&catalog, 5).await }
    }))
    .await
    .concat();
    let files: std::collections::BTreeSet<_> = held.iter().map(|held| held.file.id).collect();
    assert_eq!(files.len(), held.len(), "no file was claimed twice");
    let counts = per_tenant(&held);
    assert!(counts.values().all(|count| *count >= held.len() / 4), "{counts:?}");
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
}

pub(super) async fn tenants_without_waiting_jobs_are_purged(db: &TestDb) {
    queue(db, "a", 2).await;
    queue(db, "b", 3).await;
    let held = claimed(&db.catalog, 10).await;
    let ends = held.iter().map(|held| end(held, AttemptOutcome::Done(StageOutput::default()))).collect();
    let by = StageEndContext { actor: "worker:a", plan: &plan(), now: LATER };
    db.catalog.end_stages(ends, by).await.expect("ended");
    // A tenant's row stays until the virtual time has passed its last rank.
    queue(db, "c", 1).await;
    queue(db, "c", 4).await;
    claimed(&db.catalog, 10).await;
    assert!(db.catalog.purge_queue_tenants(100).await.expect("answered") >= 2);
    assert_eq!(db.catalog.purge_queue_tenants(100).await.expect("answered"), 0);
}

/// One tenant deletes all its files. The only cleanup of another tenant does not wait behind them.
pub(super) async fn cleanups_are_claimed_fairly(db: &TestDb) {
    for _ in 0..40 {
        deleted(&db.catalog, ("crowd", "u"), 1, &REFUSING).await;
    }
    let claim = async |limit| {
        db.catalog.claim_cleanups(&Scope::All, LATER, limit, 60 * SECOND).await.expect("claimed")
    };
    assert_eq!(claim(5).await.len(), 5);
    deleted(&db.catalog, ("single", "u"), 1, &REFUSING).await;
    let next = claim(2).await;
    assert!(next.iter().any(|cleanup| cleanup.tenant == Some(tenant("single"))), "{next:?}");
    // A claim for one tenant returns only its cleanups.
    let own = db.catalog.claim_cleanups(&Scope::Tenant(tenant("crowd")), LATER, 100, 60 * SECOND).await;
    assert_eq!(own.expect("claimed").len(), 34);
    // Cleanups are claimed again when their leases have ended.
    assert_eq!(
        db.catalog.claim_cleanups(&Scope::All, LATER + 120 * SECOND, 100, 1).await.expect("claimed").len(),
        41
    );
}

pub(super) async fn notifications_are_claimed_fairly(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    for _ in 0..30 {
        confirmed(&catalog, ("crowd", "u"), 1).await;
    }
    let claim = async |limit| {
        let lines = catalog.claim_outbox(Destination::Webhook, limit, LATER, LATER + HOUR).await;
        lines.expect("claimed").into_iter().map(|line| line.tenant).collect::<Vec<_>>()
    };
    assert_eq!(claim(5).await.len(), 5);
    confirmed(&catalog, ("single", "u"), 1).await;
    assert!(claim(2).await.contains(&tenant("single")));
    assert_eq!(claim(100).await.len(), 24);
}
