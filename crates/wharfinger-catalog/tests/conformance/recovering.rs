//! Stuck files: listed with the fault of their job, recovered with a new job, and failed after too many recoveries. A
//! file that only waits is not recovered.

use std::collections::{BTreeMap, BTreeSet};

use wharfinger_catalog::{
    Catalog, CatalogError, Destination, LeasedStageJob, OutboxPayload, Recovery, RecoveryOutcome,
    RedriveOutcome, Scope, StageEndContext, StuckFile, SweepClaim, SweepClaimOutcome,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::diagnosis::Fault;
use wharfinger_lifecycle::file::{self, File};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::processing::{LOST_WORKERS_MAX, PipelinePlan};
use wharfinger_lifecycle::recovery::RecoveryTrigger;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult};
use wharfinger_lifecycle::state::Status;

use super::sample::{HOUR, NOW, REFUSING, SECOND, committed, pin, registered, tenant, user};
use super::stages::{claim, claimed, done, end, end_expired, ended, plan, queued, status, suspects};
use super::test_db::{TestDb, all_at_once};

/// When a file confirmed at `NOW + SECOND` has had no progress for too long.
const OVERDUE: UnixMs = NOW + SECOND + HOUR / 2;

fn recovery(files: &[FileId], now: UnixMs) -> Recovery {
    Recovery {
        files: files.to_vec(),
        trigger: RecoveryTrigger::Overdue,
        actor: "recovery".into(),
        plan: plan(),
        now,
    }
}

/// An outcome without the file that it contains.
fn shown(outcome: &RecoveryOutcome) -> String {
    match outcome {
        RecoveryOutcome::Queued { before, retry_count } => {
            format!("requeued from {}, {retry_count}", before.status)
        }
        RecoveryOutcome::Failed { why, .. } => format!("failed: {why}"),
        other => format!("{other:?}"),
    }
}

async fn recovered(catalog: &Catalog, file: FileId, now: UnixMs) -> RecoveryOutcome {
    let mut outcome = catalog.recover(recovery(&[file], now)).await.expect("answered");
    assert_eq!((outcome.len(), outcome[0].0), (1, file));
    outcome.remove(0).1
}

async fn stuck(db: &TestDb, now: UnixMs) -> Vec<StuckFile> {
    db.catalog.stuck_files(&Scope::All, (now, now), None, 1_000).await.expect("read")
}

async fn lose_job(db: &TestDb, file: FileId) {
    let gone = db.sql(&format!("DELETE FROM jobs WHERE file_id = '{file}' AND queue LIKE 'file-%'")).await;
    assert_eq!(gone, 1);
}

/// A file of `owner` that waits for its scan since `now`.
async fn queued_of(db: &TestDb, owner: (&str, &str), now: UnixMs) -> File {
    let file = registered(&db.catalog, owner, 10).await;
    let plan = PipelinePlan { stages: vec![Stage::Scan], ..plan() };
    let change = file::confirm(&file, pin(), None, "confirmed", &plan, now).expect("confirmable");
    committed(&db.catalog, change).await
}

/// For each damage to a job, the list of stuck files and the recovery find the same fault, and the file is recovered.
pub(super) async fn only_files_with_unsound_jobs_are_recovered(db: &TestDb) {
    const WAITING: &str = "UPDATE jobs SET state = 'waiting', lease_until = NULL, deadline_at = NULL";
    const STATE_MISMATCH: Option<&str> = Some("its job was in a different state");
    let (over, later) = (OVERDUE, OVERDUE + 1);
    let queued_cases: [(String, Option<&str>); 8] = [
        (format!("UPDATE jobs SET run_at = {}", OVERDUE + 10 * HOUR), None),
        ("DELETE FROM jobs".into(), Some("its job was missing")),
        ("UPDATE jobs SET queue = 'upload-checks'".into(), Some("its job was missing")),
        ("UPDATE jobs SET state = 'dead'".into(), Some("its job was a dead letter")),
        ("UPDATE jobs SET queue = 'file-extract'".into(), Some("its job was for another stage")),
        (
            "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
             updated_at) SELECT '018f4e6e-7f3a-7000-8000-00000000000f', queue, tenant_id, file_id, 'dead', 0, 0, 1, 0, 0, 0 \
             FROM jobs"
                .into(),
            Some("it had several jobs"),
        ),
        (format!("UPDATE jobs SET state = 'leased', lease_until = {later}, deadline_at = {later}"), STATE_MISMATCH),
        // The counters must match the files.
        (
            "UPDATE files SET stage = NULL; DELETE FROM file_counts; \
             INSERT INTO file_counts (tenant_id, user_id, status, stage, files, charged_bytes) \
             SELECT tenant_id, user_id, pipeline_status, '', COUNT(*), CAST(SUM(charged_bytes) AS BIGINT) FROM files \
             GROUP BY tenant_id, user_id, pipeline_status"
                .into(),
            Some("its job was for another stage"),
        ),
    ];
    let leased_cases: [(String, Option<&str>); 8] = [
        (format!("UPDATE jobs SET lease_until = {later}, deadline_at = {later}"), None),
        (
            format!("UPDATE jobs SET lease_until = {over}, deadline_at = {later}"),
            Some("its worker stopped sending heartbeats"),
        ),
        (
            format!("UPDATE jobs SET lease_until = {over}, deadline_at = {over}"),
            Some("its worker exceeded the time limit"),
        ),
        ("DELETE FROM jobs".into(), Some("its job was missing")),
        (WAITING.into(), STATE_MISMATCH),
        (
            format!(
                "UPDATE jobs SET lease_until = {later}, deadline_at = {later}; UPDATE files SET version = version + 1"
            ),
            Some("its worker had an older version"),
        ),
        (
            format!("UPDATE jobs SET lease_until = {later}, deadline_at = {later}, queue = 'file-embed'"),
            Some("its job was for another stage"),
        ),
        (
            format!(
                "UPDATE jobs SET lease_until = {later}, deadline_at = {later}; \
                 UPDATE files SET pipeline_status = 'embedding' WHERE pipeline_status = 'scanning'; \
                 UPDATE file_counts SET status = 'embedding' WHERE status = 'scanning'; \
                 UPDATE file_history SET to_status = 'embedding' WHERE to_status = 'scanning' \
                 AND file_id IN (SELECT id FROM files WHERE pipeline_status = 'embedding')"
            ),
            STATE_MISMATCH,
        ),
    ];
    let cases =
        queued_cases.iter().map(|case| (false, case)).chain(leased_cases.iter().map(|case| (true, case)));
    for (is_leased, (damage, fault)) in cases {
        let file = queued(db, &[Stage::Scan]).await;
        if is_leased {
            claimed(db, Stage::Scan, NOW + SECOND).await;
        }
        db.sql(damage).await;
        let listed = stuck(db, OVERDUE).await;
        assert_eq!(listed.len(), 1, "{damage}");
        assert_eq!(
            (listed[0].cursor.file, listed[0].fault.map(Fault::as_str)),
            (file.id, *fault),
            "{damage}"
        );
        let before = db.dump().await;
        let outcome = recovered(&db.catalog, file.id, OVERDUE).await;
        match fault {
            None => {
                let expected = if is_leased {
                    RecoveryOutcome::InProgress { until: later }
                } else {
                    RecoveryOutcome::Waiting
                };
                assert_eq!(outcome, expected, "{damage}");
                assert_eq!(db.dump().await, before, "{damage}");
            }
            Some(_) => {
                assert!(
                    matches!(outcome, RecoveryOutcome::Queued { retry_count: 1, .. }),
                    "{damage}: {outcome:?}"
                );
                assert_eq!(stuck(db, OVERDUE).await, [], "{damage}");
                db.sql("DELETE FROM jobs WHERE queue = 'upload-checks'").await;
                assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new(), "{damage}");
                let now = OVERDUE + HOUR;
                let held = claimed(db, Stage::Scan, now).await;
                assert_eq!((held.file.id, held.job.attempt), (file.id, 1), "{damage}");
                assert_eq!(ended(db, &held, done(), now).await, CompletionResult::Ready, "{damage}");
            }
        }
        let file = db.catalog.file(file.id).await.expect("read").expect("it is there");
        committed(&db.catalog, file::delete(&file, &REFUSING, OVERDUE).expect("deletable")).await;
    }
}

/// I8: the worker of the old job has no lease, before and after another worker claims the new job.
pub(super) async fn a_recovery_revokes_the_lease_of_the_old_worker(db: &TestDb) {
    let file = queued(db, &[Stage::Extract, Stage::Chunk]).await;
    let old = claimed(db, Stage::Extract, NOW + SECOND).await;
    let now = OVERDUE;
    let outcome = recovered(&db.catalog, file.id, now).await;
    assert_eq!(shown(&outcome), "requeued from extracting, 1");
    let stale = async |old: &LeasedStageJob| {
        let before = db.dump().await;
        for how in [done(), AttemptOutcome::Failed { why: "late".into() }, AttemptOutcome::Released] {
            assert_eq!(ended(db, old, how, now).await, CompletionResult::LeaseLost);
        }
        let kept = db.catalog.heartbeat_job(old.job.id, old.job.token, HOUR, now).await;
        assert_eq!(kept.expect("answered"), None);
        assert_eq!(db.dump().await, before);
    };
    stale(&old).await;
    // The file may have killed its worker, so only a claim for suspects returns it.
    let now = now + 60 * SECOND;
    assert_eq!(db.catalog.claim_stage(claim(Stage::Extract, 5, now)).await.expect("answered"), []);
    let new = db.catalog.claim_stage(suspects(Stage::Extract, 5, now)).await.expect("claimed").remove(0);
    assert_eq!((new.file.id, new.job.attempt, new.file.retry_count), (file.id, 1, 1));
    assert_ne!(new.job.id, old.job.id);
    stale(&old).await;
    assert_eq!(ended(db, &new, done(), now).await, CompletionResult::Next(Stage::Chunk));
    stale(&old).await;
    let line = &db.catalog.history(file.id).await.expect("read")[4];
    assert_eq!(
        (line.from, line.to, line.actor.as_str()),
        (Some(Status::Extracting), Status::Queued, "recovery")
    );
    assert_eq!(line.reason, "its worker stopped sending heartbeats; extract queued again");
}

pub(super) async fn a_file_recovered_too_often_fails(db: &TestDb) {
    let catalog = db.with_all_targets().await;
    let file = queued(db, &[Stage::Scan]).await;
    let mut now = OVERDUE;
    for retry in 1..=plan().stuck_retries_max {
        lose_job(db, file.id).await;
        let outcome = recovered(&catalog, file.id, now).await;
        assert_eq!(shown(&outcome), format!("requeued from queued, {retry}"));
        now += HOUR / 2;
    }
    lose_job(db, file.id).await;
    let why = "scan did not finish after 3 recoveries";
    let given_up = recovered(&catalog, file.id, now).await;
    assert_eq!(shown(&given_up), format!("failed: {why}"));
    assert_eq!(recovered(&catalog, file.id, now).await, RecoveryOutcome::NotStuck);
    let failed = catalog.file(file.id).await.expect("read").expect("it is there");
    assert_eq!((failed.status, failed.error.as_deref(), failed.retry_count), (Status::Failed, Some(why), 3));
    let letters = catalog.dead_letters(&Scope::All, None, 10).await.expect("read");
    let [letter] = letters.as_slice() else { panic!("one letter, not {letters:?}") };
    assert_eq!((letter.file, letter.stage, letter.died_at), (file.id, Stage::Scan, now));
    assert_eq!(
        (letter.reason.as_str(), letter.last_error.as_deref()),
        ("no recoveries left", Some("its job was missing"))
    );
    let notices = catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    assert_eq!(notices.iter().map(|notice| notice.kind.as_str()).collect::<Vec<_>>(), ["file-failed"]);
    assert_eq!(notices[0].message, format!("report.pdf could not be processed: {why}."));
    let alerts = catalog.claim_outbox(Destination::Slack, 10, now, now).await.expect("claimed");
    let said = format!("report.pdf of tenant harbour failed permanently: {why} (file {})", file.id);
    assert_eq!(
        alerts.iter().map(|line| &line.payload).collect::<Vec<_>>(),
        [&OutboxPayload::Alert { message: said }]
    );
    // It can be redriven.
    assert_eq!(
        catalog.redrive(letter.clone(), "ada", &plan(), None, now).await.expect("answered"),
        RedriveOutcome::Done(Status::Queued)
    );
    let held = claimed(db, Stage::Scan, now).await;
    assert_eq!(ended(db, &held, done(), now).await, CompletionResult::Ready);
}

/// Waiting in a backlog spends no retry and no attempt, and recovery writes nothing.
pub(super) async fn a_waiting_file_is_listed_but_not_recovered(db: &TestDb) {
    let mut files = Vec::new();
    for _ in 0..40 {
        files.push(queued(db, &[Stage::Scan]).await.id);
    }
    let held = db.catalog.claim_stage(claim(Stage::Scan, 10, NOW + SECOND)).await.expect("claimed");
    let now = OVERDUE + HOUR;
    db.sql(&format!("UPDATE jobs SET lease_until = {0}, deadline_at = {0} WHERE state = 'leased'", now + 1))
        .await;
    let before = db.dump().await;
    let listed = stuck(db, now).await;
    assert_eq!(listed.len(), 40);
    assert!(listed.iter().all(|file| file.fault.is_none()), "{listed:?}");
    assert_eq!(db.catalog.count_stuck(&Scope::All, now).await.expect("counted"), 40);
    let outcome: BTreeMap<_, _> =
        db.catalog.recover(recovery(&files, now)).await.expect("answered").into_iter().collect();
    let in_work: BTreeSet<_> = held.iter().map(|held| held.file.id).collect();
    for (file, outcome) in &outcome {
        let expected = match in_work.contains(file) {
            true => RecoveryOutcome::InProgress { until: now + 1 },
            false => RecoveryOutcome::Waiting,
        };
        assert_eq!(*outcome, expected);
    }
    assert_eq!(outcome.len(), 40);
    assert_eq!(db.dump().await, before);
}

/// A file that is not overdue is recovered only if a person names it.
pub(super) async fn a_file_is_stuck_only_after_the_threshold(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    lose_job(db, file.id).await;
    assert_eq!(stuck(db, OVERDUE - 1).await, []);
    assert_eq!(recovered(&db.catalog, file.id, OVERDUE - 1).await, RecoveryOutcome::NotStuck);
    assert_eq!(stuck(db, OVERDUE).await.len(), 1);

    let named =
        |now| Recovery { trigger: RecoveryTrigger::Manual, actor: "ada".into(), ..recovery(&[file.id], now) };
    for retry_count in 1..=2 * plan().stuck_retries_max {
        let outcome = db.catalog.recover(named(NOW + SECOND)).await.expect("answered");
        let [(id, outcome)] = outcome.as_slice() else { panic!("one outcome, not {outcome:?}") };
        assert_eq!((*id, shown(outcome)), (file.id, format!("requeued from queued, {retry_count}")));
        let again = db.catalog.recover(named(NOW + SECOND)).await.expect("answered");
        assert_eq!(again, [(file.id, RecoveryOutcome::Waiting)], "its job is sound");
        lose_job(db, file.id).await;
    }
    let file = db.catalog.file(file.id).await.expect("read").expect("it is there");
    committed(&db.catalog, file::delete(&file, &REFUSING, OVERDUE).expect("deletable")).await;
    let gone = db.catalog.recover(named(OVERDUE)).await.expect("answered");
    assert_eq!(gone, [(file.id, RecoveryOutcome::NotStuck)]);
}

pub(super) async fn a_scheduled_job_is_brought_forward(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let held = claimed(db, Stage::Scan, NOW + SECOND).await;
    let how = AttemptOutcome::Retry { why: "hiccup".into(), at: NOW + HOUR };
    assert_eq!(ended(db, &held, how, NOW + SECOND).await, CompletionResult::Retried);
    assert_eq!(db.catalog.claim_stage(claim(Stage::Scan, 1, NOW + 2 * SECOND)).await.expect("answered"), []);
    db.catalog.make_due_now(file.id, NOW + 2 * SECOND).await.expect("rescheduled");
    let before = db.dump().await;
    db.catalog.make_due_now(file.id, NOW + 3 * SECOND).await.expect("rescheduled");
    assert_eq!(db.dump().await, before, "a due job keeps its place in the queue");
    assert_eq!(
        claimed(db, Stage::Scan, NOW + 2 * SECOND).await.job.attempt,
        2,
        "the failed attempt still counts"
    );
}

/// Three lost workers in a row fail the file, whether a worker or the sweep ends the leases. A slow worker is not lost.
pub(super) async fn recoveries_count_lost_workers_too(db: &TestDb) {
    for by_sweep in [[true, true, true], [false, true, true], [true, false, true], [true, true, false]] {
        let poison = queued(db, &[Stage::Scan]).await;
        let mut now = OVERDUE;
        let mut retries = 0;
        for (lost, by_sweep) in (1..=LOST_WORKERS_MAX).zip(by_sweep) {
            claimed(db, Stage::Scan, now).await;
            now += HOUR / 2;
            if by_sweep {
                retries += u32::from(lost < LOST_WORKERS_MAX);
                let why = format!("{lost} workers in a row were lost during scan");
                let expected = match lost < LOST_WORKERS_MAX {
                    true => format!("requeued from scanning, {retries}"),
                    false => format!("failed: {why}"),
                };
                assert_eq!(shown(&recovered(&db.catalog, poison.id, now).await), expected);
            } else {
                let expected = if lost < LOST_WORKERS_MAX {
                    CompletionResult::Retried
                } else {
                    CompletionResult::Failed
                };
                assert_eq!(end_expired(db, now).await, [(poison.id, expected)]);
            }
            now += HOUR / 3;
        }
        assert_eq!(status(db, poison.id).await, Status::Failed);
        let letters = db.catalog.dead_letters(&Scope::All, None, 100).await.expect("read");
        assert!(letters.iter().any(|letter| letter.file == poison.id), "it can be redriven");
    }

    let slow = queued(db, &[Stage::Scan]).await;
    let mut now = OVERDUE + 10 * HOUR;
    for retry_count in 1..=LOST_WORKERS_MAX as u32 {
        let held = claimed(db, Stage::Scan, now).await;
        db.catalog.heartbeat_job(held.job.id, held.job.token, 9 * HOUR, now).await.expect("kept");
        now += HOUR;
        let outcome = recovered(&db.catalog, slow.id, now).await;
        assert_eq!(shown(&outcome), format!("requeued from scanning, {retry_count}"));
    }
}

pub(super) async fn concurrent_recoveries_recover_each_file_once(db: &TestDb) {
    let mut files = Vec::new();
    for n in 0..60 {
        let file = queued(db, &[Stage::Scan]).await;
        if n % 3 > 0 {
            lose_job(db, file.id).await;
        }
        files.push(file.id);
    }
    let sweepers = (0..6).map(|n| {
        let (catalog, mut files) = (db.catalog.clone(), files.clone());
        files.rotate_left(n * 10);
        async move {
            let mut recovered = 0;
            for some in files.chunks(7) {
                let outcome = catalog.recover(recovery(some, OVERDUE)).await.expect("answered");
                recovered += outcome
                    .iter()
                    .filter(|(_, outcome)| matches!(outcome, RecoveryOutcome::Queued { .. }))
                    .count();
            }
            recovered
        }
    });
    let workers = (0..2).map(|_| {
        let catalog = db.catalog.clone();
        async move {
            let held = catalog.claim_stage(claim(Stage::Scan, 10, OVERDUE)).await.expect("claimed");
            let ends = held.iter().map(|held| end(held, done())).collect();
            let by = StageEndContext { actor: "worker:a", plan: &plan(), now: OVERDUE };
            let outcomes = catalog.end_stages(ends, by).await.expect("answered");
            assert!(outcomes.iter().all(|ended| *ended == CompletionResult::Ready), "{outcomes:?}");
        }
    });
    let (recovered, _) = tokio::join!(all_at_once(sweepers), all_at_once(workers));
    let recovered: usize = recovered.into_iter().sum();
    assert_eq!(recovered, 40, "each file once");
    let counts = db.texts("SELECT CAST(SUM(retry_count) AS TEXT) FROM files").await;
    assert_eq!(counts, ["40"]);
    assert_eq!(db.texts("SELECT CAST(MAX(retry_count) AS TEXT) FROM files").await, ["1"]);
}

/// An unreadable file is skipped, and the other file of the same call is recovered.
pub(super) async fn an_unreadable_file_does_not_stop_the_recovery_of_others(db: &TestDb) {
    let (bad, good) = (queued(db, &[Stage::Scan]).await.id, queued(db, &[Stage::Scan]).await.id);
    for id in [bad, good] {
        lose_job(db, id).await;
    }
    let broken = |stage: &str| format!("UPDATE files SET stage = {stage} WHERE id = '{bad}'");
    db.sql(&broken("'a stage that is none'")).await;
    let both = db.catalog.recover(recovery(&[bad, good], OVERDUE)).await.expect("answered");
    assert_eq!(both[0], (bad, RecoveryOutcome::Unreadable), "it is listed as unreadable");
    assert!(matches!(both[1], (_, RecoveryOutcome::Queued { .. })), "{both:?}");
    let unreadable = db.catalog.unreadable_rows(10).await.expect("read");
    assert_eq!(unreadable.iter().map(|row| row.id.clone()).collect::<Vec<_>>(), [bad.to_string()]);
    db.sql(&broken("'scan'")).await;
    assert!(matches!(recovered(&db.catalog, bad, OVERDUE).await, RecoveryOutcome::Queued { .. }));
}

/// I13: a recovery under an old fence writes nothing.
pub(super) async fn a_recovery_under_a_lost_sweep_lease_changes_nothing(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    lose_job(db, file.id).await;
    let claim_at = |now| SweepClaim {
        name: "stuck",
        owner: "a process".into(),
        now,
        lease_ms: SECOND,
        only_if_due: true,
        start: wharfinger_catalog::RunStart::default(),
    };
    let mut fences = Vec::new();
    for now in [NOW, OVERDUE] {
        match db.catalog.claim_sweep(claim_at(now)).await.expect("asked") {
            SweepClaimOutcome::Leased(fence) => fences.push(db.catalog.fenced(fence)),
            other => panic!("{other:?}"),
        }
    }
    let before = db.dump().await;
    let refused = fences[0].recover(recovery(&[file.id], OVERDUE)).await;
    assert!(matches!(refused, Err(CatalogError::Fenced)), "{refused:?}");
    assert_eq!(db.dump().await, before);
    assert!(matches!(recovered(&fences[1], file.id, OVERDUE).await, RecoveryOutcome::Queued { .. }));
}

pub(super) async fn stuck_files_are_listed_by_scope_longest_first(db: &TestDb) {
    let owners = [("harbour", "ada"), ("harbour", "ben"), ("pier", "ada")];
    let mut all = Vec::new();
    for n in 0..12_i64 {
        let file = queued_of(db, owners[n as usize % 3], NOW + (n * 7 % 5) * SECOND).await;
        if n % 4 == 0 {
            db.catalog.claim_stage(claim(Stage::Scan, 1, NOW + (n * 7 % 5) * SECOND)).await.expect("claimed");
        }
        all.push(file);
    }
    let now = OVERDUE + HOUR;
    let listed = async |scope: &Scope, limit: usize| {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = db.catalog.stuck_files(scope, (now, now), after, limit).await.expect("read");
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { return seen };
            after = Some(last.cursor);
            seen.extend(page.into_iter().map(|file| file.cursor));
        }
    };
    let whole = listed(&Scope::All, 1_000).await;
    assert_eq!(whole.len(), 12);
    assert!(whole.is_sorted());
    let scopes = [
        (Scope::All, 12),
        (Scope::Tenant(tenant("harbour")), 8),
        (Scope::Tenant(tenant("unknown")), 0),
        (Scope::User(tenant("harbour"), user("ada")), 4),
        (Scope::User(tenant("pier"), user("ben")), 0),
    ];
    for (scope, count) in scopes {
        let expected: Vec<_> = whole
            .iter()
            .filter(|place| {
                let file = all.iter().find(|file| file.id == place.file).expect("a file of this test");
                scope.covers(&file.tenant, &file.user)
            })
            .copied()
            .collect();
        assert_eq!(expected.len(), count);
        for limit in [1, 3, 1_000] {
            assert_eq!(listed(&scope, limit).await, expected, "{scope:?} by {limit}");
        }
        assert_eq!(db.catalog.count_stuck(&scope, now).await.expect("counted"), count as u64);
    }
    assert_eq!(db.catalog.count_stuck(&Scope::All, NOW).await.expect("counted"), 0);
    let one = &stuck(db, now).await[0];
    assert_eq!((one.file_name.as_str(), one.retry_count, one.batch.as_deref()), ("report.pdf", 0, None));
}
