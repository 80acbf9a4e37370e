//! No-op jobs: enqueued, claimed and completed in batches, beside a bare loop with the same SQL.

use std::time::{Duration, Instant};

use wharfinger_catalog::{Catalog, CatalogUrl, JobClaim, NewJob};
use wharfinger_lifecycle::id::TenantId;

use crate::server::base;
use crate::timing::{rate, say};
use crate::{catalog, limits};

const JOBS: usize = 50_000;
const ENQUEUE: usize = 500;
const CLAIM: usize = 200;
const WORKERS: usize = 4;
const NOW: i64 = 1_750_000_000_000;

pub(crate) async fn run() {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let sqlite = folder.path().join("jobs.db");
    measure("SQLite (synchronous=FULL)", CatalogUrl::Sqlite(sqlite)).await;
    limits::sqlite_jobs(JOBS, CLAIM).await;
    let postgres = harness::postgres::shared();
    measure("PostgreSQL", CatalogUrl::Postgres(postgres.create_database())).await;
    limits::postgres_jobs(&postgres.create_database(), JOBS, CLAIM).await;
}

async fn measure(name: &str, url: CatalogUrl) {
    let catalog = catalog::fresh(url).await;
    let tenant = TenantId::new("t").expect("a tenant");
    let started = Instant::now();
    for _ in 0..JOBS / ENQUEUE {
        let job = NewJob {
            queue: "bench",
            tenant: tenant.clone(),
            file: None,
            payload: None,
            run_at: NOW,
            max_attempts: 5,
        };
        catalog.enqueue(vec![job; ENQUEUE], NOW).await.expect("room");
    }
    let enqueued = started.elapsed();
    let took = drain(&catalog).await;
    say(format!("{name}: drained {:>6.0} jobs/s with {WORKERS} workers, fenced", rate(JOBS, took)));
    say(format!("{name}: enqueued {:>6.0} jobs/s, {ENQUEUE} in a transaction", rate(JOBS, enqueued)));
}

/// Claims and completes jobs until none is left.
async fn drain(catalog: &Catalog) -> Duration {
    let started = Instant::now();
    let tasks: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let catalog = catalog.clone();
            tokio::spawn(async move {
                loop {
                    let claim = JobClaim {
                        queue: "bench",
                        owner: format!("w{worker}"),
                        limit: CLAIM,
                        lease_ms: 60_000,
                        deadline_ms: 600_000,
                        now: NOW,
                    };
                    let jobs = catalog.claim_jobs(claim).await.expect("a claim");
                    if jobs.is_empty() {
                        return;
                    }
                    let done: Vec<_> = jobs.iter().map(|job| (job.id, job.token)).collect();
                    catalog.complete_jobs(done).await.expect("a completion");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a worker");
    }
    started.elapsed()
}
