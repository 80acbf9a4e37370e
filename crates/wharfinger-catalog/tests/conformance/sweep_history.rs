//! The history of sweeps: which runs are in it, and which are removed from it.

use wharfinger_catalog::{
    Catalog, Fence, RUN_LOST, RecordedRun, RunEffect, RunStart, SWEEP_RUNS_KEPT, SweepRecord,
};
use wharfinger_lifecycle::UnixMs;

use super::sample::{HOUR, NOW, SECOND};
use super::sweeping::{LEASE_MS, NAME, claim_at, leased};
use super::test_db::TestDb;

fn started_by(by: &str, is_dry_run: bool) -> RunStart {
    RunStart { by: by.into(), instance: "host-1".into(), is_dry_run }
}

fn record(started_at: UnixMs, effect: RunEffect) -> SweepRecord {
    SweepRecord {
        name: NAME,
        start: started_by("schedule", false),
        effect,
        started_at,
        ended_at: started_at + SECOND,
        result: Some("{}".into()),
        ..SweepRecord::default()
    }
}

async fn claim(db: &TestDb, now: UnixMs) -> Fence {
    leased(db.catalog.claim_sweep(claim_at(now)).await.expect("asked"))
}

async fn runs(db: &TestDb) -> Vec<RecordedRun> {
    db.catalog.sweep_runs(NAME, None, 1_000).await.expect("read")
}

pub(super) async fn a_run_is_in_the_history_from_its_start(db: &TestDb) {
    assert_eq!(runs(db).await, []);
    let fence = claim(db, NOW).await;
    let open = runs(db).await;
    assert_eq!((open.len(), open[0].started_at, open[0].ended_at), (1, NOW, None));
    assert_eq!(open[0].start, started_by("schedule", false));
    let done = SweepRecord { result: Some(r#"{"a":1}"#.into()), ..record(NOW, RunEffect::Some) };
    db.catalog.fenced(fence).end_sweep(done, Some(NOW + HOUR)).await.expect("ended");
    let ended = runs(db).await;
    let expected = RecordedRun {
        ended_at: Some(NOW + SECOND),
        result: Some(r#"{"a":1}"#.into()),
        is_idle: false,
        ..open[0].clone()
    };
    assert_eq!(ended, [expected]);
    // A claim that is refused leaves no run.
    db.catalog.claim_sweep(claim_at(NOW)).await.expect("asked");
    assert_eq!(runs(db).await.len(), 1);
    assert_eq!(db.catalog.sweep_runs("quota-sync", None, 10).await.expect("read"), [], "of another sweep");
}

pub(super) async fn a_lost_run_is_closed_by_the_next_claim(db: &TestDb) {
    let lost = claim(db, NOW).await;
    let next = claim(db, NOW + LEASE_MS).await;
    let shown = runs(db).await;
    assert_eq!(shown.len(), 2);
    assert_eq!((shown[0].ended_at, shown[0].error.as_deref()), (None, None), "the new run");
    assert_eq!((shown[1].ended_at, shown[1].error.as_deref()), (Some(NOW + LEASE_MS), Some(RUN_LOST)));
    // The first process was only slow. It changes neither its own row nor the other.
    let late = record(NOW, RunEffect::Some);
    db.catalog.fenced(lost).end_sweep(late, None).await.expect_err("it has lost its lease");
    assert_eq!(runs(db).await, shown);
    let failed = SweepRecord { error: Some("no".into()), ..record(NOW + LEASE_MS, RunEffect::Some) };
    db.catalog.fenced(next).end_sweep(failed, None).await.expect("ended");
    assert_eq!(runs(db).await[0].error.as_deref(), Some("no"));

    // Runs that are lost again and again do not fill the table.
    for n in 2..SWEEP_RUNS_KEPT + 20 {
        claim(db, NOW + n * LEASE_MS).await;
    }
    assert_eq!(runs(db).await.len() as i64, SWEEP_RUNS_KEPT + 1);
}

pub(super) async fn dry_and_stopped_runs_are_no_last_runs(db: &TestDb) {
    let last_end = async |catalog: &Catalog| catalog.sweep_ended_at(NAME).await.expect("read");
    let dry = SweepRecord { start: started_by("operator:olga", true), ..record(NOW, RunEffect::Some) };
    db.catalog.record_sweep(dry).await.expect("recorded");
    let stopped = SweepRecord { is_stopped: true, ..record(NOW + SECOND, RunEffect::Some) };
    let fence = claim(db, NOW + SECOND).await;
    db.catalog.fenced(fence).end_sweep(stopped, None).await.expect("ended");
    assert_eq!(last_end(&db.catalog).await, None);
    let shown = runs(db).await;
    assert_eq!(shown.len(), 2);
    assert!(!shown[0].start.is_dry_run && shown[1].start == started_by("operator:olga", true), "{shown:?}");
    assert!(shown.iter().all(|run| run.ended_at.is_some()));
    db.catalog.record_sweep(record(NOW, RunEffect::Idle)).await.expect("recorded");
    assert_eq!(last_end(&db.catalog).await, Some(NOW + SECOND));
}

pub(super) async fn the_last_hundred_runs_are_kept(db: &TestDb) {
    let other = SweepRecord { name: "quota-sync", ..record(NOW, RunEffect::Some) };
    db.catalog.record_sweep(other).await.expect("recorded");
    let all = SWEEP_RUNS_KEPT + 5;
    for n in 0..all {
        // Idle runs count as any other, unless the sweep keeps only one of them.
        let effect = if n % 2 == 0 { RunEffect::Idle } else { RunEffect::Some };
        db.catalog.record_sweep(record(NOW + n, effect)).await.expect("recorded");
    }
    let kept: Vec<UnixMs> = runs(db).await.iter().map(|run| run.started_at - NOW).collect();
    assert_eq!(kept, (5..all).rev().collect::<Vec<_>>(), "newest first");
    let first = db.catalog.sweep_runs(NAME, None, 30).await.expect("read");
    let second = db.catalog.sweep_runs(NAME, Some(first[29].id), 30).await.expect("read");
    let pages: Vec<UnixMs> = first.iter().chain(&second).map(|run| run.started_at - NOW).collect();
    assert_eq!(pages, kept[..60]);
    assert_eq!(db.catalog.sweep_runs("quota-sync", None, 10).await.expect("read").len(), 1);
}

pub(super) async fn idle_runs_do_not_fill_the_history(db: &TestDb) {
    let by_hand = SweepRecord { start: started_by("operator:olga", false), ..record(NOW, RunEffect::Idle) };
    db.catalog.record_sweep(by_hand).await.expect("recorded");
    db.catalog.record_sweep(record(NOW + 1, RunEffect::Some)).await.expect("recorded");
    for n in 2..SWEEP_RUNS_KEPT + 10 {
        let at = NOW + n * HOUR;
        let fence = claim(db, at).await;
        let idle = record(at, RunEffect::StillIdle);
        db.catalog.fenced(fence).end_sweep(idle, Some(at + 1)).await.expect("ended");
    }
    let shown = runs(db).await;
    let kept: Vec<(UnixMs, bool)> = shown.iter().map(|run| (run.started_at - NOW, run.is_idle)).collect();
    assert_eq!(kept, [((SWEEP_RUNS_KEPT + 9) * HOUR, true), (1, false), (0, true)]);
}
