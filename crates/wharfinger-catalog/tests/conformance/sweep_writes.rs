//! The writes of sweeps and scans for `every_write`, which fails each of them at every statement.

use wharfinger_catalog::{
    Catalog, OrphanBlob, RunEffect, ScanProgress, ScanRange, SweepClaim, SweepClaimOutcome, SweepRecord,
};
use wharfinger_lifecycle::key::end_of_folder;

use super::failing_catalog::FailingCatalog;
use super::sample::{HOUR, NOW, SECOND, confirmed};
use super::sweeping;
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const DAY: i64 = 24 * HOUR;
const LEASE: i64 = 60 * SECOND;

pub(super) async fn sweeps(failing: &mut FailingCatalog<'_>) {
    const NAME: &str = sweeping::NAME;
    let asked = SweepClaim { only_if_due: false, lease_ms: LEASE, ..sweeping::claim_at(NOW) };
    // A run whose process was lost, and more runs than are kept.
    db_with_runs(failing.db).await;
    let answer = failing.fail_each_call(async |catalog| catalog.claim_sweep(asked.clone()).await).await;
    let SweepClaimOutcome::Leased(fence) = answer else { panic!("{answer:?}") };
    let extend = async |catalog: &Catalog| catalog.fenced(fence.clone()).extend_sweep(NOW + 2 * LEASE).await;
    failing.fail_each_call(extend).await;
    let record = SweepRecord {
        name: NAME,
        effect: RunEffect::StillIdle,
        started_at: NOW,
        ended_at: NOW,
        result: Some("{}".into()),
        ..SweepRecord::default()
    };
    failing.fail_each_call(async |catalog| catalog.record_sweep(record.clone()).await).await;
    let end = async |catalog: &Catalog| {
        catalog.fenced(fence.clone()).end_sweep(record.clone(), Some(NOW + DAY)).await
    };
    failing.fail_each_call(end).await;
    failing.fail_each_call(async |catalog| catalog.advance_sweep(NAME, NOW + DAY, NOW + HOUR).await).await;
}

async fn db_with_runs(db: &TestDb) {
    let runs: Vec<String> = (0..105)
        .map(|n| format!("('{n:03}', '{}', 0, {}, 0, '', 'host-1', 1)", sweeping::NAME, ended_at(n)))
        .collect();
    db.sql(&format!(
        "INSERT INTO sweep_runs (id, sweep, started_at, ended_at, dry_run, started_by, instance, idle) VALUES {}",
        runs.join(", ")
    ))
    .await;
}

fn ended_at(n: usize) -> &'static str {
    if n == 104 { "NULL" } else { "1" }
}

pub(super) async fn orphan_scans(failing: &mut FailingCatalog<'_>) {
    let kept = confirmed(&failing.db.catalog, ADA, 1).await;
    let range = ScanRange::new(0, "uploads/", "uploads/".into(), end_of_folder("uploads/"));
    let begin =
        async |catalog: &Catalog| catalog.begin_scan("premise", false, vec![range.clone()], NOW).await;
    let scan = failing.fail_each_call(begin).await;
    let progress = ScanProgress {
        scan: scan.id.clone(),
        ordinal: 0,
        from: "uploads/".into(),
        to: end_of_folder("uploads/"),
        listed: 10,
        foreign: 1,
        found: vec![OrphanBlob { key: "uploads/stray".into(), size: 7, modified_at: NOW }],
        missing: vec![kept.key.to_string()],
        now: NOW,
    };
    failing.fail_each_call(async |catalog| catalog.advance_scan(progress.clone()).await).await;
    assert!(failing.fail_each_call(async |catalog| catalog.finish_range(&scan.id, 0, 100).await).await);
    let queue = async |catalog: &Catalog| catalog.queue_orphans(&scan.id, "", 100, "a sweep", NOW).await;
    assert_eq!(failing.fail_each_call(queue).await.queued, 1);
    let end = async |catalog: &Catalog| catalog.end_scan(&scan.id, Some("many".into()), NOW).await;
    failing.fail_each_call(end).await;
}
