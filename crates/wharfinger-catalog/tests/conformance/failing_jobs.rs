//! Failing jobs: tried again as often as allowed, then dead letters, which a person redrives or discards.

use wharfinger_catalog::{DeadJob, Fate, LeasedJob, NewJob};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::limits::ERROR_TEXT_BYTES_MAX;

use super::sample::{NOW, SECOND, WORK, claim, registered, work};
use super::site::Site;

async fn leased_at(site: &Site, now: UnixMs) -> LeasedJob {
    let mut jobs = site.catalog.claim_jobs(claim(1, now)).await.expect("claimed");
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

async fn failed(site: &Site, job: &LeasedJob, why: &str, retry_at: Option<UnixMs>, now: UnixMs) -> Fate {
    site.catalog.fail_job(job.id, job.token, why, retry_at, now).await.expect("answered")
}

async fn dead_jobs(site: &Site) -> Vec<DeadJob> {
    site.catalog.dead_jobs(None, 100).await.expect("read")
}

/// Enqueues a job and lets it die at once.
async fn died(site: &Site, now: UnixMs) -> LeasedJob {
    site.catalog.enqueue(vec![work("a", now)], now).await.expect("enqueued");
    let job = leased_at(site, now).await;
    assert_eq!(failed(site, &job, "no use", None, now).await, Fate::Dead);
    job
}

pub(super) async fn a_job_is_tried_again_until_its_attempts_are_used_up(site: &Site) {
    let file = registered(&site.catalog, ("harbour", "ada"), 1).await;
    let job = NewJob { file: Some(file.id), ..work("harbour", NOW) };
    let id = site.catalog.enqueue(vec![job], NOW).await.expect("enqueued")[0];
    for attempt in 1..=2 {
        let now = NOW + i64::from(attempt) * SECOND;
        let job = leased_at(site, now).await;
        assert_eq!((job.id, job.attempt), (id, attempt));
        assert_eq!(failed(site, &job, "try again", Some(now + SECOND), now).await, Fate::Retried);
        assert_eq!(site.catalog.next_job_at(&[WORK]).await.expect("read"), Some(now + SECOND));
        assert_eq!(site.catalog.claim_jobs(claim(1, now + SECOND - 1)).await.expect("claimed"), []);
        assert_eq!(dead_jobs(site).await, []);
    }
    let last = leased_at(site, NOW + 9 * SECOND).await;
    let at = NOW + 10 * SECOND;
    assert_eq!(failed(site, &last, "out of luck", Some(at + SECOND), at).await, Fate::Dead);
    let expected = DeadJob {
        id,
        queue: WORK.into(),
        tenant: "harbour".into(),
        file: Some(file.id),
        attempts: 3,
        reason: "attempts used up".into(),
        last_error: Some("out of luck".into()),
        died_at: at,
    };
    assert_eq!(dead_jobs(site).await, [expected]);
    assert_eq!(site.catalog.claim_jobs(claim(1, i64::MAX / 2)).await.expect("claimed"), []);
    assert_eq!(failed(site, &last, "again", Some(at), at).await, Fate::LeaseLost, "the dead hold no lease");
}

pub(super) async fn what_cannot_be_helped_dies_at_once(site: &Site) {
    let job = died(site, NOW).await;
    let dead = dead_jobs(site).await;
    assert_eq!(dead.iter().map(|dead| dead.id).collect::<Vec<_>>(), [job.id]);
    assert_eq!((dead[0].attempts, dead[0].reason.as_str()), (1, "not retryable"));
}

pub(super) async fn a_long_error_is_cut_at_a_character(site: &Site) {
    site.catalog.enqueue(vec![work("a", NOW)], NOW).await.expect("enqueued");
    let job = leased_at(site, NOW).await;
    let long = format!("x{}", "ü".repeat(ERROR_TEXT_BYTES_MAX));
    assert_eq!(failed(site, &job, &long, None, NOW).await, Fate::Dead);
    let kept = dead_jobs(site).await.remove(0).last_error.expect("kept");
    assert_eq!(kept.len(), ERROR_TEXT_BYTES_MAX - 1);
    assert!(long.starts_with(&kept));
}

pub(super) async fn the_dead_are_listed_in_pages(site: &Site) {
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(died(site, NOW + n).await.id);
    }
    let page = async |after: Option<JobId>, limit: usize| {
        let page = site.catalog.dead_jobs(after, limit).await.expect("read");
        page.into_iter().map(|dead| dead.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 9).await, all);
    assert_eq!(page(None, 2).await, all[..2]);
    assert_eq!(page(Some(all[1]), 2).await, all[2..4]);
    assert_eq!(page(Some(all[3]), 2).await, all[4..]);
    assert_eq!(page(Some(all[4]), 2).await, []);
}
