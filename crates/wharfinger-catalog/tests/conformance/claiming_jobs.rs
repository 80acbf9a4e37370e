//! Claiming jobs: when they are due, and by one worker only.

use std::collections::BTreeSet;

use wharfinger_catalog::{Catalog, FailOutcome, JobClaim, LeasedJob, NewJob};
use wharfinger_lifecycle::id::JobId;

use super::sample::{CHECKS, NOW, SECOND, WORK, claim, new_job, registered, tenant};
use super::test_db::{TestDb, all_at_once};

async fn enqueued(catalog: &Catalog, jobs: Vec<NewJob>) -> Vec<JobId> {
    catalog.enqueue(jobs, NOW).await.expect("enqueued")
}

async fn claimed(catalog: &Catalog, claim: JobClaim) -> Vec<LeasedJob> {
    catalog.claim_jobs(claim).await.expect("claimed")
}

fn ids(jobs: &[LeasedJob]) -> BTreeSet<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

pub(super) async fn a_claimed_job_has_all_its_fields(db: &TestDb) {
    let file = registered(&db.catalog, ("harbour", "ada"), 1).await;
    let job = NewJob {
        queue: WORK,
        tenant: tenant("häfen"),
        file: Some(file.id),
        payload: Some(r#"{"ü":"'\""}"#.into()),
        run_at: NOW,
        max_attempts: 7,
    };
    let id = enqueued(&db.catalog, vec![job]).await[0];
    let expected = LeasedJob {
        id,
        token: 1,
        queue: WORK.into(),
        tenant: "häfen".into(),
        file: Some(file.id),
        payload: Some(r#"{"ü":"'\""}"#.into()),
        attempt: 1,
        max_attempts: 7,
        lease_until: NOW + 10 * SECOND,
    };
    assert_eq!(claimed(&db.catalog, claim(5, NOW)).await, [expected]);
    assert_eq!(
        db.texts("SELECT lease_owner || ' ' || CAST(deadline_at AS TEXT) FROM jobs WHERE queue = 'work'")
            .await,
        [format!("worker {}", NOW + 25 * SECOND)]
    );
    assert_eq!(claimed(&db.catalog, claim(5, NOW)).await, [], "a leased job is not claimed again");
}

pub(super) async fn a_claim_returns_only_due_jobs_of_its_queue(db: &TestDb) {
    let jobs =
        enqueued(&db.catalog, vec![new_job("a", NOW + 2), new_job("a", NOW), new_job("a", NOW + 1)]).await;
    enqueued(&db.catalog, vec![NewJob { queue: CHECKS, ..new_job("a", NOW) }]).await;
    assert_eq!(claimed(&db.catalog, claim(9, NOW - 1)).await, []);
    assert_eq!(ids(&claimed(&db.catalog, claim(9, NOW)).await), BTreeSet::from([jobs[1]]));
    assert_eq!(
        ids(&claimed(&db.catalog, claim(1, NOW + 9)).await),
        BTreeSet::from([jobs[2]]),
        "oldest first"
    );
    assert_eq!(ids(&claimed(&db.catalog, claim(9, NOW + 9)).await), BTreeSet::from([jobs[0]]));
    assert_eq!(claimed(&db.catalog, claim(9, NOW + 9)).await, []);
    assert_eq!(enqueued(&db.catalog, Vec::new()).await, []);
}

pub(super) async fn the_next_job_is_the_earliest_waiting_one(db: &TestDb) {
    let next = async |queues: &[&'static str]| db.catalog.next_job_at(queues).await.expect("read");
    assert_eq!(next(&[WORK]).await, None);
    enqueued(&db.catalog, vec![new_job("a", NOW + 5), new_job("b", NOW + 3)]).await;
    enqueued(&db.catalog, vec![NewJob { queue: CHECKS, ..new_job("a", NOW + 1) }]).await;
    assert_eq!(next(&[WORK]).await, Some(NOW + 3));
    assert_eq!(next(&[WORK, CHECKS]).await, Some(NOW + 1));
    assert_eq!(next(&["nothing"]).await, None);
    assert_eq!(next(&[]).await, None, "no queue was named");

    let leased = claimed(&db.catalog, claim(1, NOW + 3)).await;
    assert_eq!(next(&[WORK]).await, Some(NOW + 5), "a leased job is not waiting");
    let fate = db.catalog.fail_job(leased[0].id, leased[0].token, "no", None, NOW + 4).await;
    assert_eq!(fate.expect("answered"), FailOutcome::Dead);
    assert_eq!(next(&[WORK]).await, Some(NOW + 5), "a dead job is not waiting");
}

pub(super) async fn eight_claimers_never_get_the_same_job(db: &TestDb) {
    let wanted: BTreeSet<JobId> =
        enqueued(&db.catalog, (0..300).map(|n| new_job("a", NOW - n % 7)).collect())
            .await
            .into_iter()
            .collect();
    let another = db.another_handle().await;
    let claims = all_at_once((0..8).map(|n| {
        let catalog = if n % 2 == 0 { db.catalog.clone() } else { another.clone() };
        async move {
            let mut got = Vec::new();
            loop {
                let batch =
                    claimed(&catalog, JobClaim { owner: format!("worker-{n}"), ..claim(7, NOW) }).await;
                assert!(batch.len() <= 7);
                if batch.is_empty() {
                    return got;
                }
                got.extend(batch);
            }
        }
    }))
    .await
    .concat();
    assert_eq!(claims.len(), 300);
    assert_eq!(ids(&claims), wanted);
    assert!(claims.iter().all(|job| (job.token, job.attempt) == (1, 1)));
}
