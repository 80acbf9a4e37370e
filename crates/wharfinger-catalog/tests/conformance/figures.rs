//! The figures of the dashboard, by user, by tenant and over all, and how they follow each change.

use wharfinger_catalog::{Figures, OUTCOME_SPAN_MS, Outcomes, RedriveOutcome, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult, StageOutput};
use wharfinger_lifecycle::state::Status;

use super::batches::new_batch;
use super::sample::{
    HOUR, NOW, POLICY, REFUSING, SECOND, committed, confirmed, deleted, quarantined, registered, tenant, user,
};
use super::stages::{claimed, ended, plan, queued};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const BEN: (&str, &str) = ("harbour", "ben");
const EVE: (&str, &str) = ("wharf", "eve");

fn own((of, name): (&str, &str)) -> Scope {
    Scope::User(tenant(of), user(name))
}

async fn figures_at(db: &TestDb, scope: &Scope, now: UnixMs) -> Figures {
    db.catalog.figures(scope, now, now - 24 * HOUR).await.expect("read")
}

async fn figures(db: &TestDb, scope: &Scope) -> Figures {
    figures_at(db, scope, NOW + SECOND).await
}

async fn outcomes(db: &TestDb, scope: &Scope) -> (u64, u64, u64) {
    let Outcomes { ready, failed, quarantined } = figures(db, scope).await.outcomes;
    (ready, failed, quarantined)
}

async fn failed(db: &TestDb, stage: Stage) -> wharfinger_lifecycle::file::File {
    let file = queued(db, &[stage]).await;
    let held = claimed(db, stage, NOW + SECOND).await;
    assert_eq!(
        ended(db, &held, AttemptOutcome::Failed { why: "torn".into() }, NOW + SECOND).await,
        CompletionResult::Failed
    );
    db.catalog.file(file.id).await.expect("read").expect("it is there")
}

/// I11: the figures of a user never count files of another user.
pub(super) async fn figures_count_only_files_of_the_scope(db: &TestDb) {
    assert_eq!(figures(db, &Scope::All).await, Figures::default());
    registered(&db.catalog, ADA, 1).await;
    confirmed(&db.catalog, ADA, 2).await;
    confirmed(&db.catalog, BEN, 3).await;
    confirmed(&db.catalog, EVE, 4).await;
    deleted(&db.catalog, ADA, 5, &POLICY).await;
    let counted = async |scope: &Scope| {
        let figures = figures(db, scope).await;
        (figures.statuses.of(Status::Registered), figures.statuses.of(Status::Ready), figures.outcomes.ready)
    };
    assert_eq!(counted(&own(ADA)).await, (1, 1, 1));
    assert_eq!(counted(&own(BEN)).await, (0, 1, 1));
    assert_eq!(counted(&Scope::Tenant(tenant("harbour"))).await, (1, 2, 2));
    assert_eq!(counted(&Scope::Tenant(tenant("wharf"))).await, (0, 1, 1));
    assert_eq!(counted(&Scope::All).await, (1, 3, 3));
    assert_eq!(
        counted(&own(("wharf", "ada"))).await,
        (0, 0, 0),
        "the same name in another tenant is another user"
    );
    let statuses = figures(db, &Scope::All).await.statuses;
    assert_eq!(statuses.of(Status::Deleted), 0, "deleted files are not counted");
}

pub(super) async fn waiting_files_are_counted_by_stage(db: &TestDb) {
    for stages in [&[Stage::Scan, Stage::Embed][..], &[Stage::Embed], &[Stage::Embed]] {
        queued(db, stages).await;
    }
    let waiting = async || {
        let statuses = figures(db, &own(ADA)).await.statuses;
        Stage::ALL.map(|stage| statuses.waiting_for(stage))
    };
    assert_eq!(waiting().await, [1, 0, 0, 2]);
    let held = claimed(db, Stage::Scan, NOW + SECOND).await;
    assert_eq!(waiting().await, [0, 0, 0, 2], "a claimed file does not wait");
    ended(db, &held, AttemptOutcome::Done(StageOutput::default()), NOW + SECOND).await;
    assert_eq!(waiting().await, [0, 0, 0, 3]);
}

pub(super) async fn dead_letters_are_counted_until_they_are_resolved(db: &TestDb) {
    let one = failed(db, Stage::Scan).await;
    let other = failed(db, Stage::Extract).await;
    let third = failed(db, Stage::Extract).await;
    let depth = async || figures(db, &own(ADA)).await.statuses.dead_letters;
    assert_eq!(depth().await, 3);
    let letters = db.catalog.dead_letters(&own(ADA), None, 10).await.expect("read");
    let letter = |file: &file::File| {
        letters.iter().find(|letter| letter.file == file.id).expect("it has a letter").clone()
    };
    assert!(db.catalog.discard(letter(&one), "ada", NOW + SECOND).await.expect("answered"));
    assert_eq!((depth().await, outcomes(db, &own(ADA)).await), (2, (0, 3, 0)), "its file stays failed");
    assert_eq!(
        db.catalog.redrive(letter(&other), "ada", &plan(), None, NOW + SECOND).await.expect("answered"),
        RedriveOutcome::Done(Status::Queued)
    );
    assert_eq!((depth().await, outcomes(db, &own(ADA)).await), (1, (0, 2, 0)));
    committed(&db.catalog, file::delete(&third, &REFUSING, NOW + SECOND).expect("deletable")).await;
    assert_eq!(
        (depth().await, outcomes(db, &own(ADA)).await),
        (0, (0, 1, 0)),
        "deleted files are not counted"
    );
    // The file of the discarded letter can still be deleted.
    let one = db.catalog.file(one.id).await.expect("read").expect("it is there");
    committed(&db.catalog, file::delete(&one, &REFUSING, NOW + SECOND).expect("deletable")).await;
    assert_eq!(outcomes(db, &own(ADA)).await, (0, 0, 0));
}

pub(super) async fn outcomes_are_counted_in_their_time_span(db: &TestDb) {
    let file = confirmed(&db.catalog, ADA, 1).await;
    let ready_at = file.ready_at.expect("it is ready");
    confirmed(&db.catalog, ADA, 2).await;
    let span = ready_at.div_euclid(OUTCOME_SPAN_MS) * OUTCOME_SPAN_MS;
    let trend = async || db.catalog.trend(&own(ADA), NOW - 24 * HOUR).await.expect("read");
    let counted = |ready, quarantined| Outcomes { ready, quarantined, failed: 0 };
    assert_eq!(trend().await, [(span, counted(2, 0))]);
    // Hours later the earlier span loses a ready file and the later one gets a quarantined file.
    let later = NOW + 5 * HOUR;
    let late_span = later.div_euclid(OUTCOME_SPAN_MS) * OUTCOME_SPAN_MS;
    committed(&db.catalog, quarantined(&file, "changed", later)).await;
    assert_eq!(trend().await, [(span, counted(1, 0)), (late_span, counted(0, 1))]);
    let shown = figures_at(db, &own(ADA), later).await;
    assert_eq!(shown.outcomes, Outcomes { ready: 1, failed: 0, quarantined: 1 });
    let [error] = shown.recent_errors.as_slice() else { panic!("one error, not {:?}", shown.recent_errors) };
    assert_eq!((error.file, error.error.as_deref(), error.at), (file.id, Some("changed"), later));

    assert_eq!(db.catalog.purge_outcomes(NOW + 71 * HOUR).await.expect("answered"), 0);
    assert_eq!(db.catalog.purge_outcomes(NOW + 73 * HOUR).await.expect("answered"), 1, "the older span");
}

/// The counter of the file's time span is purged, and the delete does not insert it again.
pub(super) async fn deleting_an_old_file_changes_no_outcome_counter(db: &TestDb) {
    let file = confirmed(&db.catalog, ADA, 1).await;
    let late = NOW + 72 * HOUR;
    assert_eq!(db.catalog.purge_outcomes(late + HOUR).await.expect("answered"), 1);
    committed(&db.catalog, file::delete(&file, &REFUSING, late).expect("deletable")).await;
    assert_eq!(db.texts("SELECT outcome FROM file_outcomes").await, Vec::<String>::new());
}

pub(super) async fn the_processing_time_is_an_average_of_the_last_hundred_files(db: &TestDb) {
    assert_eq!(figures(db, &own(ADA)).await.processing_ms, None);
    for (n, took) in (0..102).zip([1_000_000, 1_000_000].into_iter().chain(std::iter::repeat(10))) {
        let file = confirmed(&db.catalog, ADA, 1).await;
        db.sql(&format!(
            "UPDATE files SET ready_at = ready_at + {n}, confirmed_at = ready_at + {n} - {took} WHERE id = '{}'",
            file.id
        ))
        .await;
    }
    let average = async |scope: Scope| figures(db, &scope).await.processing_ms;
    assert_eq!(average(own(ADA)).await, Some(10));
    assert_eq!(average(Scope::Tenant(tenant("harbour"))).await, Some(10));
    assert_eq!(average(Scope::All).await, Some(10));
    assert_eq!(average(own(BEN)).await, None);
}

pub(super) async fn figures_show_errors_stuck_files_and_batches(db: &TestDb) {
    for _ in 0..12 {
        failed(db, Stage::Scan).await;
    }
    let waits = queued(db, &[Stage::Scan]).await;
    let (_, batch) = new_batch(ADA, &[]);
    db.catalog.register(batch).await.expect("opened");
    let shown = figures(db, &own(ADA)).await;
    assert_eq!((shown.recent_errors.len(), shown.stuck, shown.active_batches), (10, 0, 1));
    let stuck_at = waits.next_check_at.expect("it has a next check");
    for scope in [own(ADA), Scope::Tenant(tenant("harbour")), Scope::All] {
        assert_eq!(figures_at(db, &scope, stuck_at).await.stuck, 1, "{scope:?}");
        assert_eq!(figures_at(db, &scope, stuck_at).await.active_batches, 1, "{scope:?}");
        assert_eq!(figures_at(db, &scope, stuck_at).await.recent_errors.len(), 10, "{scope:?}");
    }
    let other = figures_at(db, &own(BEN), stuck_at).await;
    assert_eq!((other.recent_errors.len(), other.stuck, other.active_batches), (0, 0, 0));
}

pub(super) async fn every_status_change_is_noticed(db: &TestDb) {
    let mut seen = vec![db.catalog.files_revision(&own(ADA)).await.expect("read")];
    let mut check = async || {
        let changes = db.catalog.files_revision(&own(ADA)).await.expect("read");
        assert!(!seen.contains(&changes), "{changes} was read before: {seen:?}");
        seen.push(changes);
    };
    queued(db, &[Stage::Scan]).await;
    check().await;
    let held = claimed(db, Stage::Scan, NOW + SECOND).await;
    check().await;
    ended(db, &held, AttemptOutcome::Done(StageOutput::default()), NOW + SECOND).await;
    check().await;
    let file = confirmed(&db.catalog, ADA, 1).await;
    check().await;
    committed(&db.catalog, file::delete(&file, &REFUSING, NOW + SECOND).expect("deletable")).await;
    check().await;
    let before = db.catalog.files_revision(&own(ADA)).await.expect("read");
    confirmed(&db.catalog, BEN, 1).await;
    assert_eq!(db.catalog.files_revision(&own(ADA)).await.expect("read"), before, "a change of another user");
}

pub(super) async fn quotas_are_listed_by_tenant(db: &TestDb) {
    for (owner, size) in [(EVE, 7), (ADA, 5), (BEN, 6)] {
        registered(&db.catalog, owner, size).await;
    }
    db.catalog.set_limit(&tenant("wharf"), 70).await.expect("set");
    let shown = async |after: &str, limit| {
        let quotas = db.catalog.quotas(after, limit, 1_000).await.expect("read");
        let show =
            |(tenant, quota): (wharfinger_lifecycle::id::TenantId, wharfinger_lifecycle::quota::Quota)| {
                (tenant.to_string(), quota.used_bytes, quota.reserved_bytes, quota.limit_bytes)
            };
        quotas.into_iter().map(show).collect::<Vec<_>>()
    };
    let (harbour, wharf) = (("harbour".to_owned(), 11, 11, 1_000), ("wharf".to_owned(), 7, 7, 70));
    assert_eq!(shown("", 10).await, [harbour.clone(), wharf.clone()]);
    assert_eq!(shown("", 1).await, [harbour]);
    assert_eq!(shown("harbour", 10).await, [wharf]);
}
