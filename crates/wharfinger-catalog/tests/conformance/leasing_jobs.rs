//! Leases: only the current token can complete or fail a job; an older one changes nothing.

use std::collections::BTreeSet;

use wharfinger_catalog::{FailOutcome, JobClaim, LeasedJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::JobId;

use super::sample::{NOW, SECOND, WORK, claim, new_job};
use super::test_db::{TestDb, all_at_once};

async fn one_leased(db: &TestDb) -> LeasedJob {
    db.catalog.enqueue(vec![new_job("a", NOW)], NOW).await.expect("enqueued");
    leased_at(db, NOW).await
}

async fn leased_at(db: &TestDb, now: UnixMs) -> LeasedJob {
    let mut jobs = db.catalog.claim_jobs(claim(1, now)).await.expect("claimed");
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

async fn heartbeat(db: &TestDb, job: &LeasedJob, now: UnixMs) -> Option<UnixMs> {
    db.catalog.heartbeat_job(job.id, job.token, 10 * SECOND, now).await.expect("answered")
}

async fn end_expired(db: &TestDb, now: UnixMs) -> Vec<(JobId, FailOutcome)> {
    db.catalog.end_expired_jobs(WORK, now, now, 10).await.expect("answered")
}

/// I8: a worker that has lost its lease commits nothing.
pub(super) async fn an_old_token_changes_nothing(db: &TestDb) {
    let old = one_leased(db).await;
    let lost_at = NOW + 10 * SECOND;
    assert_eq!(end_expired(db, lost_at).await, [(old.id, FailOutcome::Retried)]);
    let stale = async |db: &TestDb| {
        let before = db.dump().await;
        let done = vec![(old.id, old.token)];
        assert_eq!(db.catalog.complete_jobs(done).await.expect("answered"), []);
        for retry_at in [None, Some(lost_at)] {
            let fate = db.catalog.fail_job(old.id, old.token, "late", retry_at, lost_at).await;
            assert_eq!(fate.expect("answered"), FailOutcome::LeaseLost);
        }
        assert_eq!(heartbeat(db, &old, lost_at).await, None);
        assert_eq!(db.dump().await, before);
    };
    stale(db).await;
    let new = leased_at(db, lost_at).await;
    assert_eq!((new.id, new.token, new.attempt), (old.id, old.token + 1, 2));
    stale(db).await;
    assert_eq!(heartbeat(db, &new, lost_at + 1).await, Some(lost_at + 1 + 10 * SECOND));
    assert_eq!(db.catalog.complete_jobs(vec![(new.id, new.token)]).await.expect("answered"), [new.id]);
    stale(db).await;
}

pub(super) async fn each_job_of_a_batch_is_completed_independently(db: &TestDb) {
    let jobs = (0..4).map(|_| new_job("a", NOW)).collect();
    db.catalog.enqueue(jobs, NOW).await.expect("enqueued");
    let leased = db.catalog.claim_jobs(claim(4, NOW)).await.expect("claimed");
    let fate = db.catalog.fail_job(leased[1].id, leased[1].token, "no", Some(NOW + 1), NOW).await;
    assert_eq!(fate.expect("answered"), FailOutcome::Retried);

    let unknown = JobId(wharfinger_catalog::fresh_id(NOW));
    let done = vec![
        (leased[0].id, leased[0].token),
        (leased[1].id, leased[1].token),
        (leased[2].id, leased[2].token + 1),
        (unknown, 1),
        (leased[3].id, leased[3].token),
        (leased[0].id, leased[0].token),
    ];
    let ended: BTreeSet<JobId> =
        db.catalog.complete_jobs(done).await.expect("answered").into_iter().collect();
    assert_eq!(ended, BTreeSet::from([leased[0].id, leased[3].id]));
    let left = db.texts("SELECT state FROM jobs ORDER BY state").await;
    assert_eq!(left, ["leased", "waiting"]);
    assert_eq!(db.catalog.complete_jobs(Vec::new()).await.expect("answered"), []);
}

/// Heartbeats extend the lease, never the deadline: a worker that hangs must lose its job.
pub(super) async fn no_heartbeat_extends_a_lease_past_the_deadline(db: &TestDb) {
    let job = one_leased(db).await;
    let deadline = NOW + 25 * SECOND;
    assert_eq!(heartbeat(db, &job, NOW + 8 * SECOND).await, Some(NOW + 18 * SECOND));
    assert_eq!(end_expired(db, NOW + 18 * SECOND - 1).await, []);
    assert_eq!(heartbeat(db, &job, NOW + 15 * SECOND).await, Some(deadline));
    assert_eq!(heartbeat(db, &job, NOW + 24 * SECOND).await, Some(deadline));
    assert_eq!(heartbeat(db, &job, NOW + 99 * SECOND).await, Some(deadline));
    assert_eq!(end_expired(db, deadline - 1).await, []);
    assert_eq!(end_expired(db, deadline).await, [(job.id, FailOutcome::Retried)]);
    assert_eq!(heartbeat(db, &job, deadline).await, None);
}

pub(super) async fn no_claim_leases_a_job_past_the_deadline(db: &TestDb) {
    db.catalog.enqueue(vec![new_job("a", NOW)], NOW).await.expect("enqueued");
    let hurried = JobClaim { deadline_ms: 4 * SECOND, ..claim(1, NOW) };
    let leased = db.catalog.claim_jobs(hurried).await.expect("claimed");
    assert_eq!(leased[0].lease_until, NOW + 4 * SECOND);
}

/// Each expired lease spends an attempt, and the last attempt ends the job.
pub(super) async fn an_expired_lease_counts_as_an_attempt(db: &TestDb) {
    let job = one_leased(db).await;
    let mut now = NOW;
    for attempt in 1..=3 {
        let fate = if attempt < 3 { FailOutcome::Retried } else { FailOutcome::Dead };
        now += 10 * SECOND;
        let retry_at = now + 5 * SECOND;
        let expired = db.catalog.end_expired_jobs(WORK, now, retry_at, 10).await.expect("answered");
        assert_eq!(expired, [(job.id, fate)]);
        if fate == FailOutcome::Retried {
            assert_eq!(db.catalog.claim_jobs(claim(1, retry_at - 1)).await.expect("claimed"), []);
            let again = leased_at(db, retry_at).await;
            assert_eq!((again.attempt, again.token), (attempt + 1, i64::from(attempt) + 1));
            now = retry_at;
        }
    }
    let dead = "SELECT CAST(attempts AS TEXT) || ' ' || dead_reason || ': ' || last_error || ' ' \
                || CAST(updated_at AS TEXT) FROM jobs WHERE state = 'dead'";
    assert_eq!(db.texts(dead).await, [format!("3 no attempts left: the lease ran out {now}")]);
}

pub(super) async fn expired_leases_are_ended_in_bounded_batches(db: &TestDb) {
    db.catalog.enqueue((0..5).map(|_| new_job("a", NOW)).collect(), NOW).await.expect("enqueued");
    for n in 0..5 {
        leased_at(db, NOW + n).await;
    }
    let at = NOW + 10 * SECOND + 3;
    assert_eq!(db.catalog.end_expired_jobs(WORK, at, at, 3).await.expect("answered").len(), 3);
    let left = db.texts("SELECT CAST(lease_until AS TEXT) FROM jobs WHERE state = 'leased' ORDER BY 1").await;
    assert_eq!(left, [at.to_string(), (at + 1).to_string()], "the longest overdue are ended first");
    assert_eq!(db.catalog.end_expired_jobs(WORK, at, at, 3).await.expect("answered").len(), 1);
    assert_eq!(db.catalog.end_expired_jobs(WORK, at, at, 3).await.expect("answered"), []);
}

pub(super) async fn an_expired_lease_is_ended_once(db: &TestDb) {
    db.catalog.enqueue((0..60).map(|_| new_job("a", NOW)).collect(), NOW).await.expect("enqueued");
    assert_eq!(db.catalog.claim_jobs(claim(60, NOW)).await.expect("claimed").len(), 60);
    let another = db.another_handle().await;
    let at = NOW + 10 * SECOND;
    let ended = all_at_once((0..6).map(|n| {
        let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
        async move {
            let mut ended = Vec::new();
            loop {
                let batch = catalog.end_expired_jobs(WORK, at, at, 7).await.expect("answered");
                if batch.is_empty() {
                    return ended;
                }
                ended.extend(batch);
            }
        }
    }))
    .await
    .concat();
    assert_eq!(ended.len(), 60);
    assert_eq!(ended.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>().len(), 60);
    assert!(ended.iter().all(|(_, fate)| *fate == FailOutcome::Retried));
}

/// A worker completes its job while the lease expires: exactly one of the two happens.
pub(super) async fn a_job_is_either_completed_or_expired(db: &TestDb) {
    let another = db.another_handle().await;
    let at = NOW + 10 * SECOND;
    for _ in 0..15 {
        let job = one_leased(db).await;
        let completing = tokio::spawn({
            let catalog = db.catalog.clone();
            async move { catalog.complete_jobs(vec![(job.id, job.token)]).await.expect("answered") }
        });
        let expired = another.end_expired_jobs(WORK, at, at, 10).await.expect("answered");
        let completed = completing.await.expect("ended");
        match (completed.len(), expired.len()) {
            (1, 0) => assert_eq!(db.texts("SELECT id FROM jobs").await.len(), 0),
            (0, 1) => {
                assert_eq!(db.texts("SELECT state FROM jobs").await, ["waiting"]);
                db.sql("DELETE FROM jobs").await;
            }
            both => panic!("completed, expired: {both:?}"),
        }
    }
}
