//! Failing jobs: tried again as often as allowed, then dead letters, which a person redrives or discards.

use wharfinger_catalog::{Fate, LeasedJob, NewJob};
use wharfinger_lifecycle::UnixMs;
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

/// Id, attempts, reason, last error and time of death of each job that is dead.
async fn dead_jobs(site: &Site) -> Vec<String> {
    site.texts(
        "SELECT id || ' ' || CAST(attempts AS TEXT) || ' ' || dead_reason || ': ' || last_error || ' ' \
         || CAST(updated_at AS TEXT) FROM jobs WHERE state = 'dead' ORDER BY id",
    )
    .await
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
        assert_eq!(dead_jobs(site).await, Vec::<String>::new());
    }
    let last = leased_at(site, NOW + 9 * SECOND).await;
    let at = NOW + 10 * SECOND;
    assert_eq!(failed(site, &last, "out of luck", Some(at + SECOND), at).await, Fate::Dead);
    let expected = format!("{id} 3 attempts used up: out of luck {at}");
    assert_eq!(dead_jobs(site).await, [expected]);
    assert_eq!(site.catalog.claim_jobs(claim(1, i64::MAX / 2)).await.expect("claimed"), []);
    assert_eq!(failed(site, &last, "again", Some(at), at).await, Fate::LeaseLost, "the dead hold no lease");
}

pub(super) async fn what_cannot_be_helped_dies_at_once(site: &Site) {
    let job = died(site, NOW).await;
    let expected = format!("{} 1 not retryable: no use {NOW}", job.id);
    assert_eq!(dead_jobs(site).await, [expected]);
}

pub(super) async fn a_long_error_is_cut_at_a_character(site: &Site) {
    site.catalog.enqueue(vec![work("a", NOW)], NOW).await.expect("enqueued");
    let job = leased_at(site, NOW).await;
    let long = format!("x{}", "ü".repeat(ERROR_TEXT_BYTES_MAX));
    assert_eq!(failed(site, &job, &long, None, NOW).await, Fate::Dead);
    let kept = site.texts("SELECT last_error FROM jobs").await.remove(0);
    assert_eq!(kept.len(), ERROR_TEXT_BYTES_MAX - 1);
    assert!(long.starts_with(&kept));
}
