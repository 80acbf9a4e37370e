//! Failing jobs: they are retried up to their limit, then they are dead.

use wharfinger_catalog::{FailOutcome, LeasedJob, NewJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::limits::ERROR_TEXT_BYTES_MAX;

use super::sample::{NOW, SECOND, WORK, claim, new_job, registered};
use super::test_db::TestDb;

async fn leased_at(db: &TestDb, now: UnixMs) -> LeasedJob {
    let mut jobs = db.catalog.claim_jobs(claim(1, now)).await.expect("claimed");
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

async fn failed(
    db: &TestDb,
    job: &LeasedJob,
    why: &str,
    retry_at: Option<UnixMs>,
    now: UnixMs,
) -> FailOutcome {
    db.catalog.fail_job(job.id, job.token, why, retry_at, now).await.expect("answered")
}

/// Id, attempts, reason, last error and end of each dead job.
async fn dead_jobs(db: &TestDb) -> Vec<String> {
    db.texts(
        "SELECT id || ' ' || CAST(attempts AS TEXT) || ' ' || dead_reason || ': ' || last_error || ' ' \
         || CAST(updated_at AS TEXT) FROM jobs WHERE state = 'dead' ORDER BY id",
    )
    .await
}

/// Enqueues a job that fails for good in its first attempt.
async fn died(db: &TestDb, now: UnixMs) -> LeasedJob {
    db.catalog.enqueue(vec![new_job("a", now)], now).await.expect("enqueued");
    let job = leased_at(db, now).await;
    assert_eq!(failed(db, &job, "no use", None, now).await, FailOutcome::Dead);
    job
}

pub(super) async fn a_job_is_retried_until_its_attempts_are_used_up(db: &TestDb) {
    let file = registered(&db.catalog, ("harbour", "ada"), 1).await;
    let job = NewJob { file: Some(file.id), ..new_job("harbour", NOW) };
    let id = db.catalog.enqueue(vec![job], NOW).await.expect("enqueued")[0];
    for attempt in 1..=2 {
        let now = NOW + i64::from(attempt) * SECOND;
        let job = leased_at(db, now).await;
        assert_eq!((job.id, job.attempt), (id, attempt));
        assert_eq!(failed(db, &job, "try again", Some(now + SECOND), now).await, FailOutcome::Retried);
        assert_eq!(db.catalog.next_job_at(&[WORK]).await.expect("read"), Some(now + SECOND));
        assert_eq!(db.catalog.claim_jobs(claim(1, now + SECOND - 1)).await.expect("claimed"), []);
        assert_eq!(dead_jobs(db).await, Vec::<String>::new());
    }
    let last = leased_at(db, NOW + 9 * SECOND).await;
    let at = NOW + 10 * SECOND;
    assert_eq!(failed(db, &last, "out of luck", Some(at + SECOND), at).await, FailOutcome::Dead);
    let expected = format!("{id} 3 no attempts left: out of luck {at}");
    assert_eq!(dead_jobs(db).await, [expected]);
    assert_eq!(db.catalog.claim_jobs(claim(1, i64::MAX / 2)).await.expect("claimed"), []);
    assert_eq!(
        failed(db, &last, "again", Some(at), at).await,
        FailOutcome::LeaseLost,
        "a dead job has no lease"
    );
}

pub(super) async fn a_job_that_cannot_be_retried_dies_at_once(db: &TestDb) {
    let job = died(db, NOW).await;
    let expected = format!("{} 1 not retryable: no use {NOW}", job.id);
    assert_eq!(dead_jobs(db).await, [expected]);
}

pub(super) async fn a_long_error_is_cut_at_a_character(db: &TestDb) {
    db.catalog.enqueue(vec![new_job("a", NOW)], NOW).await.expect("enqueued");
    let job = leased_at(db, NOW).await;
    let long = format!("x{}", "ü".repeat(ERROR_TEXT_BYTES_MAX));
    assert_eq!(failed(db, &job, &long, None, NOW).await, FailOutcome::Dead);
    let kept = db.texts("SELECT last_error FROM jobs").await.remove(0);
    assert_eq!(kept.len(), ERROR_TEXT_BYTES_MAX - 1);
    assert!(long.starts_with(&kept));
}
