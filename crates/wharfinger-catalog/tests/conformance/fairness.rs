//! Files of many tenants in one stage: each tenant gets its share, whatever the others have waiting.

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

/// One file of a tenant that came last is among the next claims, not behind everything that was there before.
pub(super) async fn a_single_file_does_not_wait_behind_a_large_backlog(db: &TestDb) {
    queue(db, "crowd", 60).await;
    assert_eq!(claimed(&db.catalog, 5).await.len(), 5);
    queue(db, "single", 1).await;
    let next = claimed(&db.catalog, 2).await;
    assert_eq!(per_tenant(&next), BTreeMap::from([("crowd", 1), ("single", 1)]));
    assert_eq!(per_tenant(&claimed(&db.catalog, 100).await), BTreeMap::from([("crowd", 54)]));
}

/// I21: at least half of its fair share of any claims while it has something waiting.
pub(super) async fn every_tenant_gets_its_share(db: &TestDb) {
    queue(db, "crowd", 90).await;
    queue(db, "some", 40).await;
    queue(db, "few", 20).await;
    for _ in 0..6 {
        let ten = claimed(&db.catalog, 10).await;
        let counts = per_tenant(&ten);
        // Of one rank any may come first: 4, 4 and 2 are possible.
        assert!(counts.len() == 3 && counts.values().all(|count| *count >= 2), "{counts:?}");
    }
    // Who has nothing left does not hold up the others.
    assert_eq!(claimed(&db.catalog, 100).await.len(), 90);
}

/// A tenant that was away for long gets its share from now on, and not all that it could have had.
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

/// The place that is kept for others is for others, and a long backlog is not read for it.
pub(super) async fn a_claim_for_other_tenants_skips_the_crowd(db: &TestDb) {
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
    assert_eq!(files.len(), held.len(), "no file went to two");
    let counts = per_tenant(&held);
    assert!(counts.values().all(|count| *count >= held.len() / 4), "{counts:?}");
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
}

pub(super) async fn tenants_without_waiting_jobs_are_forgotten(db: &TestDb) {
    queue(db, "a", 2).await;
    queue(db, "b", 3).await;
    let held = claimed(&db.catalog, 10).await;
    let ends = held.iter().map(|held| end(held, AttemptOutcome::Done(StageOutput::default()))).collect();
    let by = StageEndContext { actor: "worker:a", plan: &plan(), now: LATER };
    db.catalog.end_stages(ends, by).await.expect("ended");
    // A tenant stays in the list until the virtual time has passed it.
    queue(db, "c", 1).await;
    queue(db, "c", 4).await;
    claimed(&db.catalog, 10).await;
    assert!(db.catalog.purge_queue_tenants(100).await.expect("answered") >= 2);
    assert_eq!(db.catalog.purge_queue_tenants(100).await.expect("answered"), 0);
}

/// One tenant deletes everything it has; another's single file does not wait behind that.
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
    // A tenant's own are found without the others.
    let own = db.catalog.claim_cleanups(&Scope::Tenant(tenant("crowd")), LATER, 100, 60 * SECOND).await;
    assert_eq!(own.expect("claimed").len(), 34);
    // What a process that died had claimed is claimed again when its lease is over.
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
