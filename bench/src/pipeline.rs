//! No-op stages through the whole pipeline, beside common job queues on the same servers in the same run.

use std::process::Command;
use std::time::{Duration, Instant};

use harness::postgres;
use harness::redis::Redis;
use wharfinger_catalog::{
    Admission, BatchUse, Catalog, CatalogUrl, Claimable, NewFile, NewJob, RegisterOutcome, Registration,
    StageClaim, StageEnd, StageEndContext, fresh_id,
};
use wharfinger_lifecycle::file::{self, Pin, UploadPolicy, UploadRequest};
use wharfinger_lifecycle::id::{FileId, JobId, TenantId, UserId};
use wharfinger_lifecycle::processing::PipelinePlan;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::stage_end::{AttemptOutcome, StageOutput};

use crate::catalog;
use crate::server::base;
use crate::timing::{rate, say};

const FILES: usize = 20_000;
const USERS: usize = 50;
const CLAIM: usize = 200;
const WORKERS: usize = 4;
const NOW: i64 = 1_750_000_000_000;
const ROUNDS: usize = 2;

pub(crate) async fn run() {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let redis = Redis::start().expect("Redis");
    let postgres = postgres::shared();
    for round in 1..=ROUNDS {
        say(format!("== round {round}: {FILES} no-op jobs, from the first enqueued to the last done"));
        let sqlite = folder.path().join(format!("{round}.db"));
        ours("SQLite (synchronous=FULL)", CatalogUrl::Sqlite(sqlite)).await;
        ours("PostgreSQL", CatalogUrl::Postgres(postgres.create_database())).await;
        peers(&redis.url(), &postgres.create_database());
    }
}

async fn ours(name: &str, url: CatalogUrl) {
    let catalog = catalog::fresh(url).await;
    let files = registered(&catalog).await;
    for stages in [&[Stage::Scan][..], &Stage::ALL[..]] {
        let plan = PipelinePlan { stages: stages.to_vec(), ..PipelinePlan::without_stages() };
        let half = files.len() / 2;
        let part = if stages.len() == 1 { &files[..half] } else { &files[half..] };
        let started = Instant::now();
        confirm(&catalog, part, &plan).await;
        let enqueued = started.elapsed();
        let drained = drain(&catalog, &plan).await;
        let count = part.len() * stages.len();
        say(format!(
            "ours on {name}, {} stage(s): {:>6.0} jobs/s drained, {:>6.0} files/s confirmed and enqueued, {:>6.0} jobs/s in all",
            stages.len(),
            rate(count, drained),
            rate(part.len(), enqueued),
            rate(count, drained + enqueued)
        ));
    }
}

async fn registered(catalog: &Catalog) -> Vec<file::File> {
    let policy = UploadPolicy {
        charge_bytes_min: 0,
        window_ms: 3_600_000,
        grace_ms: 60_000,
        min_rate_bytes: 262_144,
        tombstone_ms: 86_400_000,
        store_refuses_ended: true,
    };
    let announced = UploadRequest {
        name: "a".into(),
        size: 1,
        content_type: None,
        checksum_sha256: None,
        metadata: None,
        stages: None,
    };
    let make = |n: usize| {
        let id = FileId(fresh_id(NOW));
        let tenant = TenantId::new(&format!("t{}", n % USERS)).expect("a tenant");
        let user = UserId::new("u").expect("a user");
        let file = file::register(id, tenant, user, announced.clone(), &policy, NOW);
        let check = NewJob {
            queue: "upload-check",
            tenant: file.tenant.clone(),
            file: Some(id),
            payload: None,
            run_at: NOW + 3_660_000,
            max_attempts: 5,
        };
        Registration {
            tenant: file.tenant.clone(),
            user: file.user.clone(),
            files: vec![NewFile { file, check, check_id: JobId(fresh_id(NOW)) }],
            batch: BatchUse::None,
            now: NOW,
            actor: "bench".into(),
            default_limit_bytes: 1 << 40,
            unconfirmed_limit_percent: 100,
            idempotency_key: None,
            admission: Admission::Database,
            by_broker: false,
        }
    };
    let wanted: Vec<Registration> = (0..FILES).map(make).collect();
    let files = wanted.iter().map(|one| one.files[0].file.clone()).collect();
    at_once(wanted, |one| {
        let catalog = catalog.clone();
        async move { assert_eq!(catalog.register(one).await.expect("room"), RegisterOutcome::Created) }
    })
    .await;
    files
}

async fn at_once<T: Send + 'static, F: Future<Output = ()> + Send + 'static>(
    items: Vec<T>,
    run: impl Fn(T) -> F,
) {
    let mut tasks = tokio::task::JoinSet::new();
    for item in items {
        if tasks.len() >= 64 {
            tasks.join_next().await;
        }
        tasks.spawn(run(item));
    }
    tasks.join_all().await;
}

async fn confirm(catalog: &Catalog, files: &[file::File], plan: &PipelinePlan) {
    at_once(files.to_vec(), |file| {
        let pin = Pin { etag: "e".into(), version_id: None };
        let change = file::confirm(&file, pin, None, "confirmed", plan, NOW).expect("confirmable");
        let catalog = catalog.clone();
        async move { catalog.commit(change, "bench").await.expect("committed") }
    })
    .await;
}

/// Claims and ends stages until none is left.
async fn drain(catalog: &Catalog, plan: &PipelinePlan) -> Duration {
    let started = Instant::now();
    let tasks: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (catalog, plan) = (catalog.clone(), plan.clone());
            tokio::spawn(async move {
                loop {
                    let mut worked = 0;
                    for stage in plan.stages.iter().rev() {
                        let claim = StageClaim {
                            stage: *stage,
                            owner: format!("w{worker}"),
                            limit: CLAIM,
                            tenants: None,
                            of: Claimable::Untried,
                            lease_ms: 60_000,
                            deadline_ms: 600_000,
                            plan: plan.clone(),
                            now: NOW,
                        };
                        let leased = catalog.claim_stage(claim).await.expect("a claim");
                        let outcome = || AttemptOutcome::Done(StageOutput::default());
                        let ends: Vec<StageEnd> = leased
                            .iter()
                            .map(|leased| StageEnd {
                                job: leased.job.id,
                                token: leased.job.token,
                                outcome: outcome(),
                            })
                            .collect();
                        worked += ends.len();
                        let by = StageEndContext { actor: "bench", plan: &plan, now: NOW };
                        catalog.end_stages(ends, by).await.expect("ended");
                    }
                    if worked == 0 {
                        let queues: Vec<&str> = plan.stages.iter().map(|stage| stage.queue()).collect();
                        if catalog.next_job_at(&queues).await.expect("an answer").is_none() {
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a worker");
    }
    started.elapsed()
}

/// BullMQ, graphile-worker and pg-boss, in their npm versions for the installed Node.
fn peers(redis: &str, postgres: &str) {
    let folder = base().join("peers");
    std::fs::create_dir_all(&folder).expect("a folder");
    let npm = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix"])
        .arg(&folder)
        .args(["bullmq", "ioredis", "graphile-worker", "pg-boss", "pg"])
        .status();
    if !npm.is_ok_and(|status| status.success()) {
        return say("cannot install BullMQ, graphile-worker and pg-boss");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/peers.mjs");
    let output = Command::new("node")
        .arg(script)
        .arg(&folder)
        .args([redis, postgres, &FILES.to_string()])
        .output()
        .expect("node runs");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let figures: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let ms = |name: &str| figures[name].as_f64().map(|ms| Duration::from_secs_f64(ms / 1_000.0));
        match (ms("enqueueMs"), ms("drainMs")) {
            (Some(enqueued), Some(drained)) => say(format!(
                "{}: {:>6.0} jobs/s drained, {:>6.0} jobs/s enqueued in bulk, {:>6.0} jobs/s in all",
                figures["peer"].as_str().unwrap_or_default(),
                rate(FILES, drained),
                rate(FILES, enqueued),
                rate(FILES, enqueued + drained)
            )),
            _ => say(line),
        }
    }
}
