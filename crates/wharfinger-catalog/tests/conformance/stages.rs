//! Files in the stages: a claim, an end or an expired lease changes the file and its job in one transaction. A worker
//! without the lease changes nothing.

use std::collections::BTreeSet;

use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{
    ChunkRow, Claimable, LeasedStageJob, RedriveOutcome, Scope, StageClaim, StageEnd, StageEndContext,
};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{self, File};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, CompletionResult, StageOutput};
use wharfinger_lifecycle::state::Status;

use super::sample::{HOUR, NOW, REFUSING, SECOND, committed, pin, registered, tenant, user};
use super::test_db::{TestDb, all_at_once};

const ADA: (&str, &str) = ("harbour", "ada");
const LATER: UnixMs = NOW + 10 * SECOND;

pub(super) fn plan() -> PipelinePlan {
    PipelinePlan { stages: Stage::ALL.to_vec(), ..PipelinePlan::without_stages() }
}

pub(super) async fn queued(db: &TestDb, stages: &[Stage]) -> File {
    queued_of(db, ADA, stages).await
}

pub(super) async fn queued_of(db: &TestDb, owner: (&str, &str), stages: &[Stage]) -> File {
    let file = registered(&db.catalog, owner, 10).await;
    let plan = PipelinePlan { stages: stages.to_vec(), ..plan() };
    let change = file::confirm(&file, pin(), None, "confirmed", &plan, NOW + SECOND).expect("confirmable");
    committed(&db.catalog, change).await
}

pub(super) fn claim(stage: Stage, limit: usize, now: UnixMs) -> StageClaim {
    StageClaim {
        stage,
        owner: "worker:a".into(),
        limit,
        tenants: None,
        of: Claimable::Untried,
        lease_ms: 10 * SECOND,
        deadline_ms: HOUR,
        plan: plan(),
        now,
    }
}

pub(super) async fn claimed(db: &TestDb, stage: Stage, now: UnixMs) -> LeasedStageJob {
    let mut jobs = db.catalog.claim_stage(claim(stage, 1, now)).await.expect("claimed");
    for of in [Claimable::Suspects, Claimable::LastChance] {
        if jobs.is_empty() {
            let claim = StageClaim { of, ..claim(stage, 1, now) };
            jobs = db.catalog.claim_stage(claim).await.expect("claimed");
        }
    }
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

pub(super) fn suspects(stage: Stage, limit: usize, now: UnixMs) -> StageClaim {
    StageClaim { of: Claimable::Suspects, ..claim(stage, limit, now) }
}

pub(super) fn end(held: &LeasedStageJob, outcome: AttemptOutcome) -> StageEnd {
    StageEnd { job: held.job.id, token: held.job.token, outcome }
}

pub(super) async fn ended(
    db: &TestDb,
    held: &LeasedStageJob,
    outcome: AttemptOutcome,
    now: UnixMs,
) -> CompletionResult {
    let by = StageEndContext { actor: "worker:a", plan: &plan(), now };
    db.catalog.end_stages(vec![end(held, outcome)], by).await.expect("answered")[0]
}

pub(super) async fn end_expired(db: &TestDb, now: UnixMs) -> Vec<(FileId, CompletionResult)> {
    let by = StageEndContext { actor: "recovery", plan: &plan(), now };
    let lost = db.catalog.expired_stage_jobs(now, None, 100).await.expect("read");
    let jobs = lost.into_iter().map(|(_, job)| job).collect();
    db.catalog.end_expired_stage_jobs(jobs, by, now).await.expect("answered")
}

pub(super) fn done() -> AttemptOutcome {
    AttemptOutcome::Done(StageOutput::default())
}

pub(super) async fn status(db: &TestDb, id: FileId) -> Status {
    db.catalog.file(id).await.expect("read").expect("it is there").status
}

pub(super) async fn a_file_passes_its_stages_with_one_job(db: &TestDb) {
    let file = queued(db, &[Stage::Scan, Stage::Embed]).await;
    assert_eq!(file.status, Status::Queued);
    let none = db.catalog.claim_stage(claim(Stage::Embed, 5, NOW + SECOND)).await.expect("answered");
    assert_eq!(none, []);

    let scan = claimed(db, Stage::Scan, NOW + SECOND).await;
    assert_eq!((scan.file.id, scan.file.status, scan.job.attempt), (file.id, Status::Scanning, 1));
    assert_eq!(status(db, file.id).await, Status::Scanning);
    assert_eq!(ended(db, &scan, done(), LATER).await, CompletionResult::Next(Stage::Embed));
    let embed = claimed(db, Stage::Embed, LATER).await;
    assert_eq!((embed.job.id, embed.job.attempt), (scan.job.id, 1));
    assert!(embed.job.token > scan.job.token);
    let said = StageOutput { details: Some("{\"dimensions\":3}".into()), text: None };
    assert_eq!(ended(db, &embed, AttemptOutcome::Done(said), LATER + 1).await, CompletionResult::Ready);

    let ready = db.catalog.file(file.id).await.expect("read").expect("it is there");
    assert_eq!((ready.status, ready.ready_at, ready.stage), (Status::Ready, Some(LATER + 1), None));
    assert_eq!(db.texts("SELECT id FROM jobs WHERE queue LIKE 'file-%'").await, Vec::<String>::new());
    let kept = db.catalog.stage_outputs(&[file.id]).await.expect("read");
    assert_eq!(kept, [(file.id, "embed".into(), "{\"dimensions\":3}".into())]);
    let way: Vec<Status> =
        db.catalog.history(file.id).await.expect("read").iter().map(|line| line.to).collect();
    let expected = [
        Status::Registered,
        Status::Uploaded,
        Status::Queued,
        Status::Scanning,
        Status::Queued,
        Status::Embedding,
        Status::Ready,
    ];
    assert_eq!(way, expected);
    let notices = db.catalog.notifications(&tenant("harbour"), &user("ada"), None, 10).await.expect("read");
    assert_eq!(notices.iter().map(|notice| notice.kind.as_str()).collect::<Vec<_>>(), ["file-ready"]);
}

/// The file changed while a worker had its job.
pub(super) async fn a_result_for_a_changed_file_is_rejected(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let held = claimed(db, Stage::Scan, NOW + SECOND).await;
    let changed = committed(&db.catalog, file::repin(&held.file, pin(), LATER)).await;
    let before = db.dump().await;
    assert_eq!(ended(db, &held, done(), LATER).await, CompletionResult::LeaseLost);
    assert_eq!(db.dump().await, before);
    assert_eq!(db.catalog.file(file.id).await.expect("read"), Some(changed));
}

/// I8: a worker that has lost its lease changes nothing, with any outcome.
pub(super) async fn a_lost_lease_ends_no_stage(db: &TestDb) {
    let file = queued(db, &[Stage::Extract]).await;
    let old = claimed(db, Stage::Extract, NOW + SECOND).await;
    let lost_at = NOW + 11 * SECOND;
    assert_eq!(end_expired(db, lost_at - 1).await, []);
    assert_eq!(end_expired(db, lost_at).await, [(file.id, CompletionResult::Retried)]);
    assert_eq!(status(db, file.id).await, Status::Queued);
    let stale = async |db: &TestDb| {
        let before = db.dump().await;
        let endings = [
            done(),
            AttemptOutcome::Retry { why: "late".into(), at: lost_at },
            AttemptOutcome::Postponed { why: "late".into(), at: lost_at },
            AttemptOutcome::Failed { why: "late".into() },
            AttemptOutcome::Quarantined { cause: QuarantineCause::Infected, why: "late".into() },
            AttemptOutcome::Released,
        ];
        for outcome in endings {
            assert_eq!(ended(db, &old, outcome, lost_at).await, CompletionResult::LeaseLost);
        }
        let lease = (old.job.id, old.job.token);
        let key = ObjectKey::text_part(&file.key, old.job.id, old.job.token, 0);
        let chunk = ChunkRow { ordinal: 0, text: "late".into(), start: 0, end: 4 };
        assert!(!db.catalog.add_derived_objects(lease, file.id, vec![key], lost_at).await.expect("answered"));
        assert!(!db.catalog.put_chunks(lease, file.id, vec![chunk], true).await.expect("answered"));
        assert_eq!(db.catalog.leased_stage_job(old.job.id, old.job.token).await.expect("read"), None);
        assert_eq!(db.dump().await, before);
    };
    stale(db).await;
    let new = claimed(db, Stage::Extract, lost_at + 60 * SECOND).await;
    assert_eq!((new.job.id, new.job.attempt), (old.job.id, 2));
    stale(db).await;
    assert_eq!(ended(db, &new, done(), lost_at).await, CompletionResult::Ready);
    stale(db).await;
}

pub(super) async fn each_stage_of_a_batch_has_its_own_outcome(db: &TestDb) {
    for _ in 0..6 {
        queued(db, &[Stage::Scan, Stage::Extract]).await;
    }
    let held = db.catalog.claim_stage(claim(Stage::Scan, 10, NOW + SECOND)).await.expect("claimed");
    assert_eq!(held.len(), 6);
    let gone = &held[5];
    committed(&db.catalog, file::delete(&gone.file, &REFUSING, NOW + 2 * SECOND).expect("deletable")).await;
    let ends = vec![
        end(&held[0], done()),
        end(&held[1], AttemptOutcome::Retry { why: "hiccup".into(), at: LATER + 5 }),
        end(&held[2], AttemptOutcome::Failed { why: "not supported".into() }),
        end(
            &held[3],
            AttemptOutcome::Quarantined { cause: QuarantineCause::Infected, why: "infected".into() },
        ),
        end(&held[4], AttemptOutcome::Released),
        end(gone, done()),
        end(&held[0], done()),
    ];
    let by = StageEndContext { actor: "worker:a", plan: &plan(), now: LATER };
    let outcomes = db.catalog.end_stages(ends, by).await.expect("answered");
    let expected = [
        CompletionResult::Next(Stage::Extract),
        CompletionResult::Retried,
        CompletionResult::Failed,
        CompletionResult::Quarantined,
        CompletionResult::Retried,
        CompletionResult::LeaseLost,
        CompletionResult::LeaseLost,
    ];
    assert_eq!(outcomes, expected);
    let mut now = Vec::new();
    for held in &held {
        now.push(status(db, held.file.id).await);
    }
    let expected = [
        Status::Queued,
        Status::Queued,
        Status::Failed,
        Status::Quarantined,
        Status::Queued,
        Status::Deleted,
    ];
    assert_eq!(now, expected);
    let back = claimed(db, Stage::Scan, LATER).await;
    assert_eq!((back.file.id, back.job.attempt), (held[4].file.id, 1), "a released job has spent no attempt");
    let again = claimed(db, Stage::Scan, LATER + 5).await;
    assert_eq!((again.file.id, again.job.attempt), (held[1].file.id, 2));
}

pub(super) async fn a_job_without_attempts_left_becomes_a_dead_letter(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let scope = Scope::User(tenant("harbour"), user("ada"));
    for attempt in 1..=3 {
        assert_eq!(db.catalog.dead_letters(&scope, None, 10).await.expect("read"), []);
        let held = claimed(db, Stage::Scan, NOW + SECOND).await;
        assert_eq!(held.job.attempt, attempt);
        let outcome = AttemptOutcome::Retry { why: format!("hiccup {attempt}"), at: NOW + SECOND };
        let expected = if attempt < 3 { CompletionResult::Retried } else { CompletionResult::Failed };
        assert_eq!(ended(db, &held, outcome, NOW + SECOND).await, expected);
    }
    let failed = db.catalog.file(file.id).await.expect("read").expect("it is there");
    assert_eq!((failed.status, failed.error.as_deref()), (Status::Failed, Some("hiccup 3")));
    let letters = db.catalog.dead_letters(&scope, None, 10).await.expect("read");
    let [letter] = letters.as_slice() else { panic!("one letter, not {letters:?}") };
    assert_eq!((letter.file, letter.stage, letter.attempts), (file.id, Stage::Scan, 3));
    assert_eq!(
        (letter.reason.as_str(), letter.last_error.as_deref()),
        ("no attempts left", Some("hiccup 3"))
    );
    let others = Scope::User(tenant("harbour"), user("ben"));
    assert_eq!(db.catalog.dead_letters(&others, None, 10).await.expect("read"), []);
    assert_eq!(db.catalog.dead_letter(&others, letter.job).await.expect("read"), None);

    assert_eq!(
        db.catalog.redrive(letter.clone(), "ada", &plan(), None, LATER).await.expect("answered"),
        RedriveOutcome::Done(Status::Queued)
    );
    assert_eq!(
        db.catalog.redrive(letter.clone(), "ada", &plan(), None, LATER).await.expect("answered"),
        RedriveOutcome::NotFound
    );
    assert!(!db.catalog.discard(letter.clone(), "ada", LATER).await.expect("answered"), "it lives again");
    let held = claimed(db, Stage::Scan, LATER).await;
    assert_eq!((held.file.id, held.job.attempt), (file.id, 1));
    assert_eq!(
        ended(db, &held, AttemptOutcome::Failed { why: "encrypted".into() }, LATER).await,
        CompletionResult::Failed
    );
    assert!(db.catalog.discard(letter.clone(), "ada", LATER).await.expect("answered"));
    assert!(!db.catalog.discard(letter.clone(), "ada", LATER).await.expect("answered"));
    assert_eq!(status(db, file.id).await, Status::Failed);
}

/// An outage spends no attempts until it has lasted too long.
pub(super) async fn a_postponed_job_spends_no_attempt(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let mut now = NOW + SECOND;
    for _ in 0..20 {
        let held = claimed(db, Stage::Scan, now).await;
        assert_eq!(held.job.attempt, 1);
        now += 60 * SECOND;
        let outcome = AttemptOutcome::Postponed { why: "clamd is away".into(), at: now };
        assert_eq!(ended(db, &held, outcome, now).await, CompletionResult::Retried);
    }
    now += 6 * HOUR;
    for expected in [CompletionResult::Retried, CompletionResult::Retried, CompletionResult::Failed] {
        let held = claimed(db, Stage::Scan, now).await;
        let outcome = AttemptOutcome::Postponed { why: "clamd is away".into(), at: now };
        assert_eq!(ended(db, &held, outcome, now).await, expected);
    }
    assert_eq!(status(db, file.id).await, Status::Failed);
}

/// The time that a file waited in its queue does not count towards the longest outage.
pub(super) async fn waiting_in_a_backlog_is_not_counted_as_an_outage(db: &TestDb) {
    queued(db, &[Stage::Scan]).await;
    let mut now = NOW + 24 * HOUR;
    for _ in 0..10 {
        let held = claimed(db, Stage::Scan, now).await;
        assert_eq!(held.job.attempt, 1);
        now += 60 * SECOND;
        let outcome = AttemptOutcome::Postponed { why: "clamd is away".into(), at: now };
        assert_eq!(ended(db, &held, outcome, now).await, CompletionResult::Retried);
    }
    // A failure of another kind ends the outage.
    let held = claimed(db, Stage::Scan, now).await;
    ended(db, &held, AttemptOutcome::Retry { why: "hiccup".into(), at: now + 12 * HOUR }, now).await;
    now += 12 * HOUR;
    let held = claimed(db, Stage::Scan, now).await;
    let outcome = AttemptOutcome::Postponed { why: "clamd is away".into(), at: now };
    ended(db, &held, outcome, now).await;
    assert_eq!(claimed(db, Stage::Scan, now).await.job.attempt, 2);
}

/// Files whose workers died together are retried one by one, because one of them may be the cause.
pub(super) async fn suspects_are_claimed_separately(db: &TestDb) {
    for _ in 0..4 {
        queued(db, &[Stage::Scan]).await;
    }
    let died = db.catalog.claim_stage(claim(Stage::Scan, 3, NOW + SECOND)).await.expect("claimed");
    let now = NOW + 11 * SECOND;
    assert_eq!(end_expired(db, now).await.len(), 3);
    let untried = db.catalog.claim_stage(claim(Stage::Scan, 9, now)).await.expect("claimed");
    assert_eq!(untried.len(), 1);
    let now = now + 60 * SECOND;
    let one = db.catalog.claim_stage(suspects(Stage::Scan, 1, now)).await.expect("claimed");
    assert_eq!(one.len(), 1);
    assert!(died.iter().any(|died| died.file.id == one[0].file.id));
    // A file whose worker answers is no suspect any more.
    let retry = AttemptOutcome::Retry { why: "hiccup".into(), at: now };
    assert_eq!(ended(db, &one[0], retry, now).await, CompletionResult::Retried);
    let back = db.catalog.claim_stage(claim(Stage::Scan, 9, now)).await.expect("claimed");
    assert_eq!(back.iter().map(|held| held.file.id).collect::<Vec<_>>(), [one[0].file.id]);
}

/// PostgreSQL refuses a NUL in a text, and a reason may be too long.
pub(super) async fn reasons_with_a_nul_or_of_any_length_are_accepted(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let held = claimed(db, Stage::Scan, NOW + SECOND).await;
    let why = format!("a\0b{}", "ü".repeat(10_000));
    assert_eq!(ended(db, &held, AttemptOutcome::Failed { why }, LATER).await, CompletionResult::Failed);
    let failed = db.catalog.file(file.id).await.expect("read").expect("it is there");
    assert!(failed.error.expect("a reason").starts_with("a\u{fffd}büüü"));
}

/// The delays grow so that a crash loop of a few minutes fails no file. A file that has failed this way can be redriven.
/// A file whose workers are too slow spends attempts instead.
pub(super) async fn a_file_whose_workers_die_fails_after_growing_delays(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let mut now = NOW + SECOND;
    for (pause_ms, of) in [(60 * SECOND, Claimable::Suspects), (15 * 60 * SECOND, Claimable::LastChance)] {
        claimed(db, Stage::Scan, now).await;
        now += 10 * SECOND;
        assert_eq!(end_expired(db, now).await, [(file.id, CompletionResult::Retried)]);
        let early = async |of: Claimable| {
            let claim = StageClaim { of, ..claim(Stage::Scan, 1, now + pause_ms - 1) };
            db.catalog.claim_stage(claim).await.expect("answered")
        };
        for any in [Claimable::Untried, Claimable::Suspects, Claimable::LastChance] {
            assert_eq!(early(any).await, [], "it waits until the delay is over");
        }
        now += pause_ms;
        let is_last = db.catalog.has_last_chance(&[Stage::Scan], now).await.expect("read");
        assert_eq!(is_last, of == Claimable::LastChance);
    }
    claimed(db, Stage::Scan, now).await;
    now += 10 * SECOND;
    assert_eq!(end_expired(db, now).await, [(file.id, CompletionResult::Failed)]);
    let failed = db.catalog.file(file.id).await.expect("read").expect("there");
    assert_eq!(failed.error.as_deref(), Some("3 workers in a row were lost during scan"));
    let letter = db.catalog.dead_letters(&Scope::All, None, 1).await.expect("read").remove(0);
    assert_eq!(letter.reason, "3 workers in a row were lost during scan");
    assert_eq!(
        db.catalog.redrive(letter, "ada", &plan(), None, now).await.expect("answered"),
        RedriveOutcome::Done(Status::Queued)
    );
    let again = claimed(db, Stage::Scan, now).await;
    assert_eq!(
        ended(db, &again, AttemptOutcome::Done(StageOutput::default()), now).await,
        CompletionResult::Ready
    );

    let slow = queued(db, &[Stage::Scan]).await;
    for expected in [CompletionResult::Retried, CompletionResult::Retried, CompletionResult::Failed] {
        let held = claimed(db, Stage::Scan, now).await;
        let kept = db.catalog.heartbeat_job(held.job.id, held.job.token, 9 * HOUR, now + SECOND).await;
        assert_eq!(kept.expect("answered"), Some(now + HOUR), "heartbeats do not move the deadline");
        now += HOUR;
        assert_eq!(end_expired(db, now).await, [(slow.id, expected)]);
    }
}

/// The first pause is 30 seconds. Each later one is as long as the total wait so far, at most an hour. After six hours
/// attempts are spent.
pub(super) async fn a_refused_object_makes_its_file_wait_longer_each_time(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let mut now = NOW + SECOND;
    let mut pauses = Vec::new();
    loop {
        let held = claimed(db, Stage::Scan, now).await;
        let attempt = held.job.attempt;
        let outcome = AttemptOutcome::ObjectUnreadable { why: "403".into(), jitter_ms: 7 };
        if ended(db, &held, outcome, now).await == CompletionResult::Failed {
            break;
        }
        let next = db.catalog.next_job_at(&[Stage::Scan.queue()]).await.expect("read").expect("it waits");
        pauses.push((next - now - 7, attempt));
        now = next;
    }
    let (minute, hour) = (60 * SECOND, 3_600 * SECOND);
    assert_eq!(pauses[0], (minute / 2, 1));
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!(pauses.iter().any(|(pause, _)| *pause == hour) && pauses.iter().all(|(pause, _)| *pause <= hour));
    let unspent = pauses.iter().filter(|(_, attempt)| *attempt == 1).count();
    assert!(unspent > 8, "for six hours no attempt is spent: {pauses:?}");
    assert_eq!(status(db, file.id).await, Status::Failed);
}

/// The claim was committed and its answer was lost, so no worker received the job.
pub(super) async fn a_claim_with_a_lost_answer_is_released(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    db.catalog.rank_due(Stage::Scan, NOW + SECOND).await.expect("ranked");
    let faults = Faults::at(0, Fault::LoseAnswer);
    let catalog = db.with_faults(faults.clone()).await;
    let mut unreceived = None;
    for n in 1..100 {
        faults.rearm_at(n, Fault::LoseAnswer);
        if let Err(failed) = catalog.claim_stage(claim(Stage::Scan, 1, NOW + SECOND)).await
            && failed.claim_id.is_some()
        {
            unreceived = failed.claim_id;
            break;
        }
    }
    let claim_id = unreceived.expect("a claim whose commit was not answered");
    faults.rearm_at(0, Fault::LoseAnswer);
    assert_eq!(status(db, file.id).await, Status::Scanning);
    for given_back in [1, 0] {
        let released = catalog
            .release_claim(&claim_id, StageEndContext { actor: "recovery", plan: &plan(), now: LATER })
            .await
            .expect("answered");
        assert_eq!(released, given_back);
    }
    assert_eq!(status(db, file.id).await, Status::Queued);
    let held = claimed(db, Stage::Scan, LATER).await;
    assert_eq!(held.job.attempt, 1, "no attempt was spent");
    assert_eq!(db.texts("SELECT CAST(lost_leases AS TEXT) FROM jobs").await, ["0"]);
    // A later claim of the same job is not released.
    assert_eq!(
        catalog
            .release_claim(&claim_id, StageEndContext { actor: "recovery", plan: &plan(), now: LATER })
            .await
            .expect("answered"),
        0
    );
}

pub(super) async fn concurrent_workers_never_share_a_file(db: &TestDb) {
    for _ in 0..60 {
        queued(db, &[Stage::Scan, Stage::Extract]).await;
    }
    let workers = (0..6).map(|n| {
        let catalog = db.catalog.clone();
        async move {
            let mut ended = Vec::new();
            loop {
                let mut held = Vec::new();
                for stage in [Stage::Extract, Stage::Scan] {
                    held.extend(catalog.claim_stage(claim(stage, 3 + n, LATER)).await.expect("answered"));
                }
                let ends: Vec<StageEnd> = held.iter().map(|held| end(held, done())).collect();
                let by = StageEndContext { actor: "worker:a", plan: &plan(), now: LATER };
                let outcomes = catalog.end_stages(ends, by).await.expect("answered");
                assert!(!outcomes.contains(&CompletionResult::LeaseLost));
                ended.extend(held.into_iter().map(|held| (held.file.id, held.stage)));
                let waiting = catalog.next_job_at(&["file-scan", "file-extract"]).await.expect("answered");
                if waiting.is_none() {
                    return ended;
                }
            }
        }
    });
    let worked: Vec<(FileId, Stage)> = all_at_once(workers).await.into_iter().flatten().collect();
    assert_eq!(worked.len(), 120);
    assert_eq!(worked.iter().copied().collect::<BTreeSet<_>>().len(), 120);
    assert_eq!(db.catalog.status_counts(&Scope::All).await.expect("read").of(Status::Ready), 60);
}
