//! Events for the archive: each line of a file's history is written to the outbox as an event, in the same transaction.
//! Without an archive no event is written.

use std::collections::{BTreeMap, BTreeSet};

use chrono::DateTime;
use serde_json::{Value, json};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{
    BatchEnding, Catalog, CatalogError, Destination, OutboxLine, OutboxPayload, Recovery, RecoveryOutcome,
    RedriveOutcome, RegisterOutcome, Scope, StageEnd, StageEndContext,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{self, Change, File};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::recovery::RecoveryTrigger;
use wharfinger_lifecycle::retention::{FailureCheck, check_failure};
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult};
use wharfinger_lifecycle::state::Status;

use super::batches::new_batch;
use super::sample::{
    HOUR, LIMIT, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, committed, confirm, confirmed, deleted, pin,
    quarantined, registered, registration,
};
use super::stages::{claim, done, end, plan};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const DAY: i64 = 24 * HOUR;
/// When everything that a case writes is due.
const ALL_DUE: UnixMs = NOW + 400 * DAY;

fn body(line: &OutboxLine) -> Value {
    match &line.payload {
        OutboxPayload::Event { body } => serde_json::from_str(body).expect("an event is JSON"),
        other => panic!("not an event: {other:?}"),
    }
}

fn text<'v>(event: &'v Value, name: &str) -> &'v str {
    event[name].as_str().unwrap_or("-")
}

/// All events that wait for the archive, in the order in which they are sent.
async fn claimed_events(catalog: &Catalog) -> Vec<Value> {
    let lines = catalog.claim_outbox(Destination::Archive, 1_000, ALL_DUE, ALL_DUE).await;
    let lines = lines.expect("claimed");
    assert!(lines.iter().all(|line| line.tenant.as_str() == text(&body(line), "tenant")));
    lines.iter().map(body).collect()
}

async fn waiting_events(catalog: &Catalog) -> u64 {
    catalog.outbox_depth(Destination::Archive).await.expect("counted").0
}

/// A line of history in the database. [`history_line`] makes the same text of an event.
const HISTORY: &str = "SELECT file_id || ':' || CAST(version AS TEXT) || ' ' || CAST(at AS TEXT) || ' ' || \
     COALESCE(from_status, '-') || ' ' || to_status || ' ' || actor || ' ' || reason FROM file_history";

fn history_line(event: &Value) -> String {
    let at = text(event, "at");
    assert!(at.ends_with('Z'), "{at} is not UTC");
    let at = DateTime::parse_from_rfc3339(at).expect("RFC 3339").timestamp_millis();
    let words = ["from", "to", "actor", "reason"].map(|name| text(event, name));
    format!("{} {at} {}", text(event, "id"), words.join(" "))
}

async fn queued(catalog: &Catalog) -> File {
    let file = registered(catalog, ADA, 10).await;
    let plan = PipelinePlan { stages: vec![Stage::Scan, Stage::Extract], ..plan() };
    committed(
        catalog,
        file::confirm(&file, pin(), None, "confirmed", &plan, NOW + SECOND).expect("confirmable"),
    )
    .await
}

async fn end_stages(catalog: &Catalog, ends: Vec<StageEnd>, now: UnixMs) -> Vec<CompletionResult> {
    catalog
        .end_stages(ends, StageEndContext { actor: "worker:a", plan: &plan(), now })
        .await
        .expect("answered")
}

fn reclaimed(files: &[File], now: UnixMs) -> Vec<Change> {
    files
        .iter()
        .map(|file| file::reclaim(file, "not confirmed", &POLICY, now).expect("reclaimable"))
        .collect()
}

/// A batch of thirty files that expires without an upload.
async fn expire_a_batch(catalog: &Catalog) {
    let (batch, wanted) = new_batch(ADA, &[10; 30]);
    assert_eq!(catalog.register(wanted).await.expect("answered"), RegisterOutcome::Created);
    let over = batch.expires_at;
    catalog.end_batch(batch.id, BatchEnding::Expired, "batch-timeout", over).await.expect("answered");
    let files = catalog.batch_files(batch.id, None, 100).await.expect("read");
    let ended = catalog.commit_all(reclaimed(&files, over + SECOND), "batch-timeout").await.expect("ended");
    assert_eq!(ended.len(), 30);
}

/// Seven files whose first stage ends in seven ways.
async fn end_stages_in_every_way(db: &TestDb, catalog: &Catalog) {
    for _ in 0..7 {
        queued(catalog).await;
    }
    let at = |seconds: i64| NOW + seconds * SECOND;
    let held = catalog.claim_stage(claim(Stage::Scan, 10, at(2))).await.expect("claimed");
    let endings = [
        done(),
        AttemptOutcome::Retry { why: "hiccup".into(), at: at(5) },
        AttemptOutcome::Failed { why: "not \"supported\"".into() },
        AttemptOutcome::Quarantined { cause: QuarantineCause::Infected, why: "infected".into() },
        AttemptOutcome::Released,
        AttemptOutcome::Postponed { why: "clamd is away".into(), at: at(5) },
    ];
    let ends = held.iter().zip(endings).map(|(held, how)| end(held, how)).collect();
    assert!(!end_stages(catalog, ends, at(3)).await.contains(&CompletionResult::LeaseLost));
    // The worker of the seventh file never answers.
    let by = StageEndContext { actor: "recovery", plan: &plan(), now: at(12) };
    let taken = catalog.end_expired_stage_jobs(vec![held[6].job.id], by, at(12)).await.expect("answered");
    assert_eq!(taken, [(held[6].file.id, CompletionResult::Retried)]);
    let letters = catalog.dead_letters(&Scope::All, None, 10).await.expect("read");
    assert_eq!(
        catalog.redrive(letters[0].clone(), "ada", &plan(), None, at(13)).await.expect("answered"),
        RedriveOutcome::Done(Status::Queued)
    );
    let lost = held[4].file.id;
    db.sql(&format!("DELETE FROM jobs WHERE file_id = '{lost}'")).await;
    let recovery = Recovery {
        files: vec![lost],
        trigger: RecoveryTrigger::Manual,
        actor: "ada".into(),
        plan: plan(),
        now: at(14),
    };
    let recovered = catalog.recover(recovery).await.expect("answered");
    assert!(matches!(recovered[0].1, RecoveryOutcome::Queued { .. }), "{recovered:?}");

    let again = catalog.claim_stage(claim(Stage::Scan, 10, at(15))).await.expect("claimed");
    assert_eq!(again.len(), 4, "the retried, postponed, redriven and recovered files");
    let ends =
        again.iter().map(|held| end(held, AttemptOutcome::Failed { why: "encrypted".into() })).collect();
    assert_eq!(end_stages(catalog, ends, at(16)).await, [CompletionResult::Failed; 4]);
    let mut failed = catalog.file(again[0].file.id).await.expect("read").expect("it is there");
    for days in [24, 40] {
        let checked = check_failure(&failed, &plan(), &REFUSING, at(16) + days * DAY);
        let (FailureCheck::Warn(change) | FailureCheck::Delete(change)) = checked.expect("it has failed")
        else {
            panic!("nothing is due after {days} days")
        };
        failed = committed(catalog, *change).await;
    }
}

/// Changes files in many ways.
async fn change_files(db: &TestDb, catalog: &Catalog) {
    expire_a_batch(catalog).await;
    end_stages_in_every_way(db, catalog).await;
    let file = confirmed(catalog, ADA, 10).await;
    committed(catalog, quarantined(&file, "changed", NOW + 2 * SECOND)).await;
    deleted(catalog, ADA, 10, &REFUSING).await;
}

pub(super) async fn every_line_of_history_is_an_event(db: &TestDb) {
    let catalog = db.with_archive().await;
    change_files(db, &catalog).await;
    let events = claimed_events(&catalog).await;
    let (of_batches, of_files): (Vec<&Value>, Vec<&Value>) =
        events.iter().partition(|event| text(event, "type").starts_with("batch."));
    let written: BTreeSet<String> = of_files.iter().map(|event| history_line(event)).collect();
    assert_eq!(written.len(), of_files.len(), "each line once");
    assert_eq!(written, db.texts(HISTORY).await.into_iter().collect());

    let mut kinds = BTreeMap::<&str, u32>::new();
    for event in &events {
        *kinds.entry(text(event, "type")).or_default() += 1;
    }
    let expected = [
        ("batch.expired", 1),
        ("batch.opened", 1),
        ("file.cleaned-up", 31),
        ("file.deleted", 1),
        ("file.failed", 5),
        ("file.quarantined", 2),
        ("file.queued", 14),
        ("file.ready", 1),
        ("file.registered", 39),
        ("file.scanning", 11),
        ("file.uploaded", 8),
        ("file.warned", 1),
    ];
    assert_eq!(kinds, expected.into());
    let mut versions = BTreeMap::<&str, Vec<i64>>::new();
    for event in of_files {
        let version = event["version"].as_i64().expect("a number");
        assert_eq!(text(event, "id"), format!("{}:{version}", text(event, "fileId")));
        versions.entry(text(event, "fileId")).or_default().push(version);
    }
    for (file, versions) in versions {
        assert!(versions.is_sorted(), "events of {file} are sent in the order {versions:?}");
    }
    assert_eq!(
        of_batches.iter().map(|event| text(event, "actor")).collect::<Vec<_>>(),
        ["ada", "batch-timeout"]
    );
}

pub(super) async fn without_an_archive_no_event_is_written(db: &TestDb) {
    change_files(db, &db.catalog).await;
    assert_eq!(db.texts("SELECT id FROM outbox").await, Vec::<String>::new());
    // Other targets do not change that.
    let catalog = db.with_webhook_and_slack().await;
    confirmed(&catalog, ADA, 10).await;
    assert_eq!(waiting_events(&catalog).await, 0);
}

pub(super) async fn an_event_has_all_its_fields(db: &TestDb) {
    let catalog = db.with_archive().await;
    let file = confirmed(&catalog, ADA, 10).await;
    committed(&catalog, file::delete(&file, &REFUSING, NOW + 2 * SECOND).expect("deletable")).await;
    let file_event =
        |kind: &str, version: i64, at: &str, from: Option<&str>, to: &str, reason: &str, actor: &str| {
            json!({
                "type": kind, "id": format!("{}:{version}", file.id), "at": at, "fileId": file.id.to_string(),
                "batchId": null, "tenant": "harbour", "user": "ada", "fileName": "report.pdf", "size": 10,
                "from": from, "to": to, "reason": reason, "actor": actor, "version": version,
            })
        };
    let (at, later, last) =
        ("2027-01-15T08:00:00.000Z", "2027-01-15T08:00:01.000Z", "2027-01-15T08:00:02.000Z");
    let expected = [
        file_event("file.registered", 1, at, None, "registered", "registered", "ada"),
        file_event("file.uploaded", 2, later, Some("registered"), "uploaded", "confirmed", "clerk"),
        file_event("file.ready", 3, later, Some("uploaded"), "ready", "no stages", "clerk"),
        file_event("file.deleted", 4, last, Some("ready"), "deleted", "deleted", "clerk"),
    ];
    let first = claimed_events(&catalog).await;
    assert_eq!(first, expected);
    assert_eq!(claimed_events(&catalog).await, first, "a repeated delivery sends the same events");

    let (batch, wanted) = new_batch(ADA, &[1]);
    catalog.register(wanted).await.expect("answered");
    catalog.end_batch(batch.id, BatchEnding::Cancelled, "ada", NOW + SECOND).await.expect("answered");
    let all = claimed_events(&catalog).await;
    let of_batch: Vec<&Value> =
        all.iter().filter(|event| text(event, "batchId") == batch.id.to_string()).collect();
    let batch_event = |kind: &str, version: i64, at: &str, from: Option<&str>, to: &str| {
        json!({
            "type": kind, "id": format!("{}:{version}", batch.id), "at": at, "batchId": batch.id.to_string(),
            "tenant": "harbour", "user": "ada", "from": from, "to": to, "actor": "ada", "version": version,
        })
    };
    let (opened, cancelled) = (
        batch_event("batch.opened", batch.version, at, None, "active"),
        batch_event("batch.cancelled", batch.version + 1, later, Some("active"), "cancelled"),
    );
    assert_eq!(of_batch.len(), 3, "two events of the batch and one of its file: {of_batch:?}");
    assert!(of_batch.contains(&&opened) && of_batch.contains(&&cancelled), "{of_batch:?}");
}

pub(super) async fn rejected_changes_write_no_event(db: &TestDb) {
    let catalog = db.with_archive().await;
    let file = registered(&catalog, ADA, 10).await;
    committed(&catalog, confirm(&file)).await;
    let held = {
        queued(&catalog).await;
        catalog.claim_stage(claim(Stage::Scan, 1, NOW + 2 * SECOND)).await.expect("claimed").remove(0)
    };
    let before = db.dump().await;
    let too_much = catalog.register(registration(ADA, LIMIT + 1)).await.expect("answered");
    assert!(matches!(too_much, RegisterOutcome::QuotaExceeded { .. }), "{too_much:?}");
    let (_, too_many) = new_batch(ADA, &[LIMIT / 2, LIMIT]);
    assert!(matches!(catalog.register(too_many).await, Ok(RegisterOutcome::QuotaExceeded { .. })));
    let late = file::delete(&file, &REFUSING, NOW + 3 * SECOND).expect("deletable");
    assert!(matches!(catalog.commit(late, "clerk").await, Err(CatalogError::Stale)));
    let ended = catalog.commit_all(reclaimed(std::slice::from_ref(&file), URL_DEAD_AT), "a sweep").await;
    assert_eq!(ended.expect("answered"), []);
    let lost = StageEnd { token: held.job.token + 1, ..end(&held, done()) };
    assert_eq!(end_stages(&catalog, vec![lost], NOW + 3 * SECOND).await, [CompletionResult::LeaseLost]);
    assert_eq!(db.dump().await, before);
    // A change without a line of history has no event.
    let repinned =
        file::repin(&catalog.file(file.id).await.expect("read").expect("there"), pin(), NOW + 4 * SECOND);
    let before = waiting_events(&catalog).await;
    committed(&catalog, repinned).await;
    assert_eq!(waiting_events(&catalog).await, before);
}

/// For many files the archive costs only a few more statements.
pub(super) async fn many_events_are_written_by_few_statements(db: &TestDb) {
    // How many statements write thirty lines, and sixty.
    let (of_thirty, of_sixty) = if db.is_postgres() { (1, 1) } else { (2, 3) };
    // The first file of a tenant inserts rows that later files update.
    registered(&db.catalog, ADA, 1).await;
    let mut calls: Vec<[u64; 4]> = Vec::new();
    for archives in [false, true] {
        let counting = Faults::counting();
        let catalog = match archives {
            true => db.with_archive_and(counting.clone()).await,
            false => db.with_faults(counting.clone()).await,
        };
        let mut seen = 0;
        let mut since = || {
            let so_far = counting.calls() - seen;
            seen += so_far;
            so_far
        };
        let (batch, wanted) = new_batch(ADA, &[1; 60]);
        since();
        catalog.register(wanted).await.expect("answered");
        let registering = since();
        let files = db.catalog.batch_files(batch.id, None, 100).await.expect("read");
        catalog.commit_all(reclaimed(&files[..30], URL_DEAD_AT), "a sweep").await.expect("ended");
        let ending = since();
        for _ in 0..30 {
            queued(&db.catalog).await;
        }
        let held = catalog.claim_stage(claim(Stage::Scan, 30, NOW + 2 * SECOND)).await.expect("claimed");
        assert_eq!(held.len(), 30);
        let claiming = since();
        end_stages(&catalog, held.iter().map(|held| end(held, done())).collect(), NOW + 3 * SECOND).await;
        calls.push([registering, ending, claiming, since()]);
    }
    // The batch has an event too.
    let expected = [of_sixty + 1, of_thirty, of_thirty, of_thirty];
    let cost: [u64; 4] = std::array::from_fn(|n| calls[1][n] - calls[0][n]);
    assert_eq!(cost, expected, "{calls:?}");
}
