//! Bounds on tables that would grow without end.

use wharfinger_catalog::{BatchEnding, Destination, Registration, Scope};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::AttemptOutcome;

use super::batches::new_batch;
use super::sample::{HOUR, NOW, REFUSING, SECOND, deleted, registered, registration};
use super::stages::{claimed, ended, queued};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");

pub(super) async fn empty_batches_are_purged_in_pages(db: &TestDb) {
    let (kept, wanted) = new_batch(ADA, &[10]);
    db.catalog.register(wanted).await.expect("registered");
    let mut empty = Vec::new();
    for _ in 0..3 {
        let (batch, wanted) = new_batch(ADA, &[]);
        db.catalog.register(wanted).await.expect("registered");
        empty.push(batch.id);
    }
    for id in empty.iter().chain([&kept.id]) {
        let end = db.catalog.end_batch(*id, BatchEnding::Cancelled, "ada", NOW + SECOND).await;
        end.expect("ended");
    }
    let (active, wanted) = new_batch(ADA, &[]);
    db.catalog.register(wanted).await.expect("registered");
    let page =
        async |after, before| db.catalog.purge_empty_batches(after, before, 2).await.expect("answered");
    assert_eq!(page(None, NOW).await, (0, None), "they ended after that time");
    let (mut gone, mut after) = (0, None);
    loop {
        let (some, next) = page(after, NOW + HOUR).await;
        gone += some;
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(gone, 3);
    for id in [kept.id, active.id] {
        assert!(db.catalog.batch(id).await.expect("read").is_some());
    }
}

pub(super) async fn zero_counters_are_purged(db: &TestDb) {
    let file = registered(&db.catalog, ADA, 10).await;
    deleted(&db.catalog, ("quay", "ben"), 10, &REFUSING).await;
    let before = db.catalog.status_counts(&Scope::All).await.expect("read");
    let zero = "SELECT CAST(COUNT(*) AS TEXT) FROM file_counts WHERE files = 0 AND charged_bytes = 0";
    assert_ne!(db.texts(zero).await, ["0"]);
    assert!(db.catalog.purge_zero_counters(1).await.expect("answered") == 1, "at most the limit");
    db.catalog.purge_zero_counters(100).await.expect("answered");
    assert_eq!(db.texts(zero).await, ["0"]);
    assert_eq!(db.catalog.status_counts(&Scope::All).await.expect("read"), before);
    // A purged counter is inserted again.
    registered(&db.catalog, ("quay", "ben"), 10).await;
    assert!(db.catalog.file(file.id).await.expect("read").is_some());
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
}

/// The history of a file that is retried again and again keeps its first lines and its latest lines.
pub(super) async fn the_history_of_one_file_is_bounded(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let mut now = NOW + SECOND;
    for _ in 0..200 {
        let held = claimed(db, Stage::Scan, now).await;
        let how = AttemptOutcome::Postponed { why: "away".into(), at: now + 1 };
        ended(db, &held, how, now).await;
        now += 1;
    }
    let history = db.catalog.history(file.id).await.expect("read");
    assert!((220..300).contains(&history.len()), "{} lines", history.len());
    assert_eq!(history[0].reason, "registered");
    assert_eq!(history.last().map(|line| line.at), Some(now - 1));
}

pub(super) async fn undelivered_lines_are_dropped_by_age(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    catalog.register(Registration { by_broker: true, ..registration(ADA, 1) }).await.expect("answered");
    for destination in [Destination::Broker, Destination::Archive] {
        let depth = async || catalog.outbox_depth(destination).await.expect("read").0;
        let lines = depth().await;
        assert!(lines > 0);
        assert_eq!(catalog.purge_old_outbox_lines(destination, NOW, 100).await.expect("answered"), 0);
        assert_eq!(catalog.purge_old_outbox_lines(destination, NOW + 1, 100).await.expect("answered"), lines);
        assert_eq!(depth().await, 0);
    }
}
