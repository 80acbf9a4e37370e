//! Claiming jobs: when they are due, to one worker only, and no tenant beyond its share.

use std::collections::{BTreeMap, BTreeSet};

use wharfinger_backends::catalog::{Catalog, Fate, JobClaim, LeasedJob, NewJob};
use wharfinger_lifecycle::id::JobId;

use super::sample::{CHECKS, NOW, SECOND, WORK, claim, registered, tenant, work};
use super::site::{Site, all_at_once};

async fn enqueued(catalog: &Catalog, jobs: Vec<NewJob>) -> Vec<JobId> {
    catalog.enqueue(jobs, NOW).await.expect("enqueued")
}

async fn claimed(catalog: &Catalog, claim: JobClaim) -> Vec<LeasedJob> {
    catalog.claim_jobs(claim).await.expect("claimed")
}

fn ids(jobs: &[LeasedJob]) -> BTreeSet<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn per_tenant(jobs: &[LeasedJob]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        *counts.entry(job.tenant.as_str()).or_default() += 1;
    }
    counts
}

pub(super) async fn a_job_is_claimed_with_all_it_carries(site: &Site) {
    let file = registered(&site.catalog, ("harbour", "ada"), 1).await;
    let job = NewJob {
        queue: WORK,
        tenant: tenant("häfen"),
        file: Some(file.id),
        payload: Some(r#"{"ü":"'\""}"#.into()),
        run_at: NOW,
        max_attempts: 7,
    };
    let id = enqueued(&site.catalog, vec![job]).await[0];
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
    assert_eq!(claimed(&site.catalog, claim(5, NOW)).await, [expected]);
    assert_eq!(
        site.texts("SELECT lease_owner || ' ' || CAST(deadline_at AS TEXT) FROM jobs WHERE queue = 'work'")
            .await,
        [format!("worker {}", NOW + 25 * SECOND)]
    );
    assert_eq!(claimed(&site.catalog, claim(5, NOW)).await, [], "a leased job is nobody else's");
}

pub(super) async fn nothing_runs_before_its_time_or_from_another_queue(site: &Site) {
    let ids_ = enqueued(&site.catalog, vec![work("a", NOW + 2), work("a", NOW), work("a", NOW + 1)]).await;
    enqueued(&site.catalog, vec![NewJob { queue: CHECKS, ..work("a", NOW) }]).await;
    assert_eq!(claimed(&site.catalog, claim(9, NOW - 1)).await, []);
    assert_eq!(ids(&claimed(&site.catalog, claim(9, NOW)).await), BTreeSet::from([ids_[1]]));
    assert_eq!(
        ids(&claimed(&site.catalog, claim(1, NOW + 9)).await),
        BTreeSet::from([ids_[2]]),
        "oldest first"
    );
    assert_eq!(ids(&claimed(&site.catalog, claim(9, NOW + 9)).await), BTreeSet::from([ids_[0]]));
    assert_eq!(claimed(&site.catalog, claim(9, NOW + 9)).await, []);
    assert_eq!(enqueued(&site.catalog, Vec::new()).await, []);
}

pub(super) async fn the_next_job_is_the_earliest_that_waits(site: &Site) {
    let next = async |queues: &[&'static str]| site.catalog.next_job_at(queues).await.expect("read");
    assert_eq!(next(&[WORK]).await, None);
    enqueued(&site.catalog, vec![work("a", NOW + 5), work("b", NOW + 3)]).await;
    enqueued(&site.catalog, vec![NewJob { queue: CHECKS, ..work("a", NOW + 1) }]).await;
    assert_eq!(next(&[WORK]).await, Some(NOW + 3));
    assert_eq!(next(&[WORK, CHECKS]).await, Some(NOW + 1));
    assert_eq!(next(&["nothing"]).await, None);
    assert_eq!(next(&[]).await, None, "no queue has no job");

    let leased = claimed(&site.catalog, claim(1, NOW + 3)).await;
    assert_eq!(next(&[WORK]).await, Some(NOW + 5), "a leased job does not wait");
    let fate = site.catalog.fail_job(leased[0].id, leased[0].token, "no", None, NOW + 4).await;
    assert_eq!(fate.expect("answered"), Fate::Dead);
    assert_eq!(next(&[WORK]).await, Some(NOW + 5), "nor does a dead one");
}

pub(super) async fn eight_claimers_never_get_the_same_job(site: &Site) {
    let wanted: BTreeSet<JobId> = enqueued(&site.catalog, (0..300).map(|n| work("a", NOW - n % 7)).collect())
        .await
        .into_iter()
        .collect();
    let another = site.another().await;
    let claims = all_at_once((0..8).map(|n| {
        let catalog = if n % 2 == 0 { site.catalog.clone() } else { another.clone() };
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

fn capped(limit: usize, per_tenant_max: u32) -> JobClaim {
    JobClaim { per_tenant_max: Some(per_tenant_max), ..claim(limit, NOW) }
}

pub(super) async fn a_tenant_gets_no_more_than_its_share(site: &Site) {
    enqueued(&site.catalog, (0..20).map(|_| work("a", NOW)).collect()).await;
    let first = claimed(&site.catalog, capped(10, 3)).await;
    assert_eq!(per_tenant(&first), BTreeMap::from([("a", 3)]));
    assert_eq!(claimed(&site.catalog, capped(10, 3)).await, []);
    let done = vec![(first[0].id, first[0].token), (first[1].id, first[1].token)];
    assert_eq!(site.catalog.complete_jobs(done).await.expect("answered").len(), 2);
    assert_eq!(claimed(&site.catalog, capped(1, 3)).await.len(), 1);
    assert_eq!(claimed(&site.catalog, capped(10, 3)).await.len(), 1);
    assert_eq!(claimed(&site.catalog, capped(10, 5)).await.len(), 2, "a higher cap lets more in");
    // Leases of another queue are another matter.
    enqueued(&site.catalog, vec![NewJob { queue: CHECKS, ..work("a", NOW) }]).await;
    assert_eq!(claimed(&site.catalog, JobClaim { queue: CHECKS, ..capped(10, 1) }).await.len(), 1);
}

/// A tenant with a long queue uses up its own share, not the claim.
pub(super) async fn a_long_queue_starves_nobody_behind_it(site: &Site) {
    let mut jobs: Vec<NewJob> = (0..300).map(|_| work("crowd", NOW - SECOND)).collect();
    jobs.extend((0..4).map(|_| work("quiet", NOW)));
    jobs.push(work("single", NOW));
    enqueued(&site.catalog, jobs).await;
    let first = claimed(&site.catalog, capped(10, 2)).await;
    assert_eq!(per_tenant(&first), BTreeMap::from([("crowd", 2), ("quiet", 2), ("single", 1)]));

    // As workers go on, every free place is filled, the crowd's and the others'.
    let of = |name: &str| first.iter().find(|job| job.tenant == name).expect("claimed before");
    let done = [of("crowd"), of("quiet")].map(|job| (job.id, job.token)).to_vec();
    assert_eq!(site.catalog.complete_jobs(done).await.expect("answered").len(), 2);
    let second = claimed(&site.catalog, capped(10, 2)).await;
    assert_eq!(per_tenant(&second), BTreeMap::from([("crowd", 1), ("quiet", 1)]));
    assert_eq!(claimed(&site.catalog, capped(10, 2)).await, []);
}

pub(super) async fn a_limit_counts_over_all_tenants(site: &Site) {
    let jobs = (0..30).map(|n| work(["a", "b", "c"][n % 3], NOW)).collect();
    enqueued(&site.catalog, jobs).await;
    let first = claimed(&site.catalog, capped(5, 2)).await;
    assert_eq!(first.len(), 5);
    assert!(per_tenant(&first).values().all(|count| *count <= 2));
    assert_eq!(claimed(&site.catalog, capped(5, 2)).await.len(), 1);
}

pub(super) async fn shares_hold_when_claims_race(site: &Site) {
    let another = site.another().await;
    for round in 0..5 {
        let names = [format!("a{round}"), format!("b{round}")];
        let jobs = (0..60).map(|n| work(&names[n % 2], NOW)).collect();
        enqueued(&site.catalog, jobs).await;
        let claims = all_at_once((0..8).map(|n| {
            let catalog = if n % 2 == 0 { site.catalog.clone() } else { another.clone() };
            async move { claimed(&catalog, capped(5, 3)).await }
        }))
        .await
        .concat();
        assert_eq!(ids(&claims).len(), claims.len(), "no job went to two workers");
        let expected = BTreeMap::from([(names[0].as_str(), 3), (names[1].as_str(), 3)]);
        assert_eq!(per_tenant(&claims), expected);
    }
}
