//! Scans that compare the store with the catalog: the expected objects, the progress of a scan, and the cleanups of
//! orphans.

use wharfinger_catalog::{
    CatalogError, CleanupOutcome, FoundOrphan, ObjectState, OrphanBlob, OrphanScan, QueuedOrphans,
    REASON_ORPHAN, ScanProgress, ScanRange, Scope,
};
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::key::end_of_folder;

use super::sample::{NOW, POLICY, REFUSING, SECOND, confirmed, deleted, registered};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const STRAY: &str = "uploads/a stray.bin";

async fn new_scan(db: &TestDb) -> OrphanScan {
    let range = ScanRange::new(0, "uploads/", "uploads/".into(), end_of_folder("uploads/"));
    db.catalog.begin_scan("premise", false, vec![range], NOW).await.expect("started")
}

fn blob(key: &str) -> OrphanBlob {
    OrphanBlob { key: key.into(), size: 7, modified_at: NOW }
}

fn progress(scan: &OrphanScan, from: &str, to: &str, found: &[&str], missing: &[&File]) -> ScanProgress {
    ScanProgress {
        scan: scan.id.clone(),
        ordinal: 0,
        from: from.into(),
        to: to.into(),
        listed: 10,
        foreign: 1,
        found: found.iter().map(|key| blob(key)).collect(),
        missing: missing.iter().map(|file| file.key.to_string()).collect(),
        now: NOW,
    }
}

async fn found(db: &TestDb, keys: &[&str]) -> OrphanScan {
    let scan = new_scan(db).await;
    let progress = progress(&scan, "uploads/", &end_of_folder("uploads/"), keys, &[]);
    db.catalog.advance_scan(progress).await.expect("stored");
    assert!(db.catalog.finish_range(&scan.id, 0, 100).await.expect("finished"));
    scan
}

async fn queue(db: &TestDb, scan: &OrphanScan) -> QueuedOrphans {
    db.catalog.queue_orphans(&scan.id, "", 100, "a sweep", NOW).await.expect("queued")
}

pub(super) async fn object_rows_say_whether_the_object_must_exist(db: &TestDb) {
    let kept = confirmed(&db.catalog, ADA, 1).await;
    let awaited = registered(&db.catalog, ("harbour.", "ada"), 1).await;
    let ended = deleted(&db.catalog, ("Harbour", "ada"), 1, &POLICY).await;
    let rows = async |after: &str, upto: &str, limit| {
        let rows = db.catalog.object_rows(after, upto, limit).await.expect("read");
        rows.into_iter().map(|row| (row.key, row.state)).collect::<Vec<_>>()
    };
    // In byte order: upper case is first, and a dot is encoded with a percent sign.
    let all = [
        (ended.key.to_string(), ObjectState::Ended),
        (awaited.key.to_string(), ObjectState::Pending),
        (kept.key.to_string(), ObjectState::Required),
    ];
    assert_eq!(rows("uploads/", &end_of_folder("uploads/"), 10).await, all);
    assert_eq!(rows("uploads/", &end_of_folder("uploads/"), 2).await, all[..2]);
    assert_eq!(
        rows(ended.key.as_str(), awaited.key.as_str(), 10).await,
        all[1..2],
        "rows after one key, up to another"
    );
    assert_eq!(rows("derived/", &end_of_folder("derived/"), 10).await, []);

    let sample = db.catalog.sample_keys().await.expect("a sample");
    assert_eq!(sample.keys, all.map(|(key, _)| key));
    assert!((3..=10).contains(&sample.objects), "{sample:?}");
}

pub(super) async fn the_sample_of_an_empty_catalog_is_empty(db: &TestDb) {
    let sample = db.catalog.sample_keys().await.expect("a sample");
    assert_eq!((sample.keys.len(), sample.objects), (0, 0));
}

pub(super) async fn the_sample_of_a_large_catalog_is_spread_over_its_keys(db: &TestDb) {
    db.sql(
        "INSERT INTO objects (key, file_id, kind, created_at) \
         WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 19999) \
         SELECT 'uploads/t/u/' || CAST(100000 + i AS TEXT), CAST(i AS TEXT), 'derived', 0 FROM n",
    )
    .await;
    let sample = db.catalog.sample_keys().await.expect("a sample");
    assert!(sample.keys.len() > 100 && sample.keys.is_sorted(), "{}", sample.keys.len());
    assert!((15_000..25_000).contains(&sample.objects), "{}", sample.objects);
    let middle = &sample.keys[sample.keys.len() / 2];
    assert!(("uploads/t/u/105000".."uploads/t/u/115000").contains(&middle.as_str()), "{middle}");
    db.sql("DELETE FROM objects").await;
}

pub(super) async fn scan_progress_is_counted_once(db: &TestDb) {
    let scan = new_scan(db).await;
    assert_eq!(db.catalog.unfinished_scan().await.expect("read"), Some(scan.clone()));
    let file = confirmed(&db.catalog, ADA, 1).await;
    let first = progress(&scan, "uploads/", "uploads/k", &[STRAY], &[&file]);
    let new = db.catalog.advance_scan(first.clone()).await.expect("stored");
    assert_eq!(new, [file.key.to_string()]);
    let again = db.catalog.advance_scan(first).await;
    assert!(matches!(again, Err(CatalogError::Stale)), "the progress is stored already: {again:?}");
    let second = progress(&scan, "uploads/k", "uploads/z", &[], &[&file]);
    assert_eq!(
        db.catalog.advance_scan(second).await.expect("stored"),
        Vec::<String>::new(),
        "it was reported before"
    );
    let open = db.catalog.unfinished_scan().await.expect("read").expect("still open");
    let range = &open.ranges[0];
    assert_eq!((range.at.as_str(), range.is_done), ("uploads/z", false));
    let totals = range.totals;
    assert_eq!((totals.listed, totals.found, totals.foreign, totals.missing), (20, 1, 2, 2));

    assert!(db.catalog.finish_range(&scan.id, 0, 100).await.expect("finished"));
    let late = progress(&scan, "uploads/z", "uploads/zz", &[], &[]);
    assert!(matches!(db.catalog.advance_scan(late).await, Err(CatalogError::Stale)), "the range is finished");
    db.catalog.end_scan(&scan.id, None, NOW + SECOND).await.expect("ended");
    assert_eq!(db.catalog.last_scan_at().await.expect("read"), Some(NOW + SECOND));
    assert!(matches!(db.catalog.end_scan(&scan.id, None, NOW).await, Err(CatalogError::Stale)));

    // A new scan replaces an unfinished one. Progress of the old one is refused.
    let old = new_scan(db).await;
    let new = new_scan(db).await;
    assert_eq!(db.catalog.unfinished_scan().await.expect("read").map(|scan| scan.id), Some(new.id));
    let lost = progress(&old, "uploads/", "uploads/k", &[], &[]);
    assert!(matches!(db.catalog.advance_scan(lost).await, Err(CatalogError::Stale)));
    assert_eq!(
        db.catalog.last_scan_at().await.expect("read"),
        Some(NOW + SECOND),
        "the last scan that ended"
    );
}

pub(super) async fn an_orphan_has_one_cleanup_and_is_removed_with_it(db: &TestDb) {
    let theirs = "uploads/harbour/ada/018f4e6e-7f3a-7000-8000-000000000001";
    let scan = found(db, &[STRAY, theirs]).await;
    assert_eq!(queue(db, &scan).await, QueuedOrphans { queued: 2, skipped: 0, last: Some(theirs.into()) });
    assert_eq!(queue(db, &scan).await, QueuedOrphans::default());
    let shown = db.catalog.orphans(&Scope::All, 1).await.expect("read");
    let sample = |key| FoundOrphan { blob: blob(key), file_name: None };
    assert_eq!((shown.count, shown.bytes, shown.samples), (2, 14, vec![sample(STRAY)]));
    let keys = [STRAY, theirs, "uploads/other"];
    let mut covered = db.catalog.keys_with_cleanup(&keys).await.expect("read");
    covered.sort();
    assert_eq!(covered, [STRAY, theirs]);

    let claims = db.catalog.claim_cleanups(&Scope::All, NOW, 10, 60 * SECOND).await.expect("claimed");
    assert!(
        claims.iter().all(|claim| claim.reason == REASON_ORPHAN && !claim.in_parts && claim.finish_at == NOW)
    );
    let mut of: Vec<_> = claims.iter().map(|claim| (claim.key.as_str(), claim.tenant.clone())).collect();
    of.sort();
    assert_eq!((of[0].clone(), of[1].0), ((STRAY, None), theirs));
    assert_eq!(of[1].1.as_ref().map(|tenant| tenant.as_str()), Some("harbour"));
    let refused = CleanupOutcome::Refused { error: "no".into(), retry_at: NOW + SECOND };
    let (gone, kept): (Vec<_>, Vec<_>) = claims.into_iter().partition(|claim| claim.key.as_str() == STRAY);
    let outcomes = gone.into_iter().map(|claim| (claim, CleanupOutcome::Deleted));
    let outcomes = outcomes.chain(kept.into_iter().map(|claim| (claim, refused.clone()))).collect::<Vec<_>>();
    let settled = db.catalog.record_cleanup_outcomes(outcomes.clone(), NOW).await.expect("settled");
    assert_eq!((settled.done, settled.failed, settled.orphans), (1, 1, 1));
    let stale = db.catalog.record_cleanup_outcomes(outcomes, NOW).await.expect("settled");
    assert_eq!((stale.done, stale.orphans), (0, 0), "an old claim changes nothing");
    let cleanups = db.catalog.orphan_cleanup_counts(&scan.id).await.expect("read");
    assert_eq!((cleanups.queued, cleanups.deleted, cleanups.failed), (2, 1, 1));

    // The next scan queues no orphan that has a cleanup.
    let next = found(db, &[]).await;
    assert_eq!(queue(db, &next).await, QueuedOrphans::default());
    assert_eq!(db.catalog.orphans(&Scope::All, 9).await.expect("read").samples, [sample(theirs)]);
}

pub(super) async fn only_orphans_without_a_cleanup_are_queued(db: &TestDb) {
    let kept = confirmed(&db.catalog, ADA, 1).await;
    let awaited = registered(&db.catalog, ADA, 1).await;
    let ended = deleted(&db.catalog, ADA, 1, &REFUSING).await;
    let keys = [kept.key.as_str(), awaited.key.as_str(), ended.key.as_str()];
    let scan = found(db, &keys).await;
    let batch = queue(db, &scan).await;
    assert_eq!((batch.queued, batch.skipped), (0, 3), "the last one has a cleanup already");
    assert_eq!(db.catalog.orphans(&Scope::All, 9).await.expect("read").count, 0);

    db.sql("DELETE FROM pending_cleanups").await;
    let scan = found(db, &keys).await;
    let batch = queue(db, &scan).await;
    assert_eq!((batch.queued, batch.skipped), (1, 2), "the object of the deleted file");
    db.sql("UPDATE files SET next_check_at = 0").await;
}

pub(super) async fn outdated_findings_are_purged_in_bounded_batches(db: &TestDb) {
    let keys: Vec<String> = (0..10).map(|n| format!("uploads/{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    found(db, &keys).await;
    let scan = new_scan(db).await;
    let some = progress(&scan, "uploads/", &end_of_folder("uploads/"), &keys[..3], &[]);
    db.catalog.advance_scan(some).await.expect("stored");
    let finish = async || db.catalog.finish_range(&scan.id, 0, 4).await.expect("purged");
    assert_eq!((finish().await, finish().await), (false, true));
    assert_eq!(db.catalog.orphans(&Scope::All, 9).await.expect("read").count, 3);
}

/// Findings of a dry run are shown, and nothing is deleted for them: neither by its own scan, nor by one that does not find
/// them again.
pub(super) async fn findings_of_a_dry_run_are_never_queued(db: &TestDb) {
    let late = deleted(&db.catalog, ADA, 1, &REFUSING).await;
    db.sql("DELETE FROM pending_cleanups").await;
    let live = confirmed(&db.catalog, ADA, 1).await;
    let range = ScanRange::new(0, "uploads/", "uploads/".into(), end_of_folder("uploads/"));
    let dry = db.catalog.begin_scan("premise", true, vec![range], NOW).await.expect("started");
    assert!(db.catalog.unfinished_scan().await.expect("read").is_some_and(|scan| scan.is_dry_run));
    let keys = [STRAY, late.key.as_str(), live.key.as_str()];
    let all = progress(&dry, "uploads/", &end_of_folder("uploads/"), &keys, &[]);
    db.catalog.advance_scan(all).await.expect("stored");
    assert!(db.catalog.finish_range(&dry.id, 0, 100).await.expect("finished"));
    assert_eq!(queue(db, &dry).await, QueuedOrphans::default(), "before its end");
    db.catalog.end_scan(&dry.id, None, NOW).await.expect("ended");
    assert_eq!(queue(db, &dry).await, QueuedOrphans::default(), "after its end");
    assert_eq!(db.catalog.last_scan_at().await.expect("read"), Some(NOW));

    // A file that has a row is not shown as an orphan, and a deleted one is shown with its name.
    let mut found = db.catalog.found_keys(&dry.id, 10).await.expect("read");
    found.sort();
    assert_eq!(found.len(), 3);
    let shown = db.catalog.orphans(&Scope::All, 9).await.expect("read");
    let names: Vec<_> =
        shown.samples.iter().map(|one| (one.blob.key.as_str(), one.file_name.as_deref())).collect();
    assert_eq!(names, [(STRAY, None), (late.key.as_str(), Some("report.pdf"))]);
    assert_eq!(shown.count, 2);

    let real = new_scan(db).await;
    assert_eq!(queue(db, &real).await, QueuedOrphans::default(), "it has found nothing yet");
    let again = progress(&real, "uploads/", &end_of_folder("uploads/"), &[STRAY], &[]);
    db.catalog.advance_scan(again).await.expect("stored");
    assert_eq!(queue(db, &real).await.queued, 1, "only what the real scan has found itself");
    let pending = db.texts("SELECT file_path || ' ' || ordered_by FROM pending_cleanups").await;
    assert_eq!(pending, [format!("{STRAY} a sweep")]);
    db.sql("UPDATE files SET next_check_at = 0 WHERE pipeline_status = 'deleted'").await;
}
