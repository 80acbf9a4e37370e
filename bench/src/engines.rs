//! Quotas by Redis and by the database: reservations a second beside `redis-benchmark` with the same script, inits of
//! one hot tenant and of a thousand tenants, and whole uploads on PostgreSQL, Redis and S3.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::redis::Redis;
use harness::{postgres, radosgw};
use reqwest::Method;
use serde_json::json;
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_engines::redis_quota::{Load, RESERVE_SCRIPT, RedisQuota, Reservation, keys};
use wharfinger_lifecycle::id::TenantId;

use crate::limits::say_pgbench;
use crate::s3;
use crate::server::{Server, base, client};
use crate::timing::{Timing, rate, say};
use crate::uploads::call;

const RUN: Duration = Duration::from_secs(8);
const CLIENTS: usize = 64;
const RESERVATIONS: usize = 100_000;
const LIMIT: u64 = 1 << 60;
/// Several rounds in turn, because the speed of the machine changes within minutes.
const ROUNDS: usize = 3;

pub(crate) async fn run() {
    let redis = Redis::start().expect("Redis");
    reservations(&redis).await;
    rows();
    inits(&redis).await;
    uploads(&redis).await;
}

async fn reservations(redis: &Redis) {
    say(format!(
        "== reserve, {CLIENTS} at once: ours through one connection, and redis-benchmark with as many"
    ));
    let tenant = TenantId::new("t").expect("a tenant");
    for _ in 0..ROUNDS {
        redis.cli(&["FLUSHALL"]).expect("empty");
        let quota = Arc::new(RedisQuota::new(&redis.url(), "bench".into(), Faults::none()).expect("a URL"));
        let announced = quota.announce(&tenant, "l").await.expect("announced");
        let load = Load { epoch: 1, used_bytes: 0, limit_bytes: LIMIT, has_own_limit: true };
        quota.load(&tenant, &announced.name, load).await.expect("loaded");
        let (left, started) = (Arc::new(AtomicUsize::new(RESERVATIONS)), Instant::now());
        let tasks: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (quota, tenant, left) = (quota.clone(), tenant.clone(), left.clone());
                tokio::spawn(async move {
                    let take = |left: usize| left.checked_sub(1);
                    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                        let reserved = quota.reserve(&tenant, Uuid::new_v4(), 1, LIMIT).await;
                        assert!(matches!(reserved, Ok(Reservation::Counted { .. })), "{reserved:?}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a client");
        }
        let ours = rate(RESERVATIONS, started.elapsed());
        let bare = redis_benchmark(redis, &tenant);
        say(format!("ours {ours:>7.0}/s, redis-benchmark {bare:>7.0}/s: {:.2}", ours / bare));
    }
}

fn redis_benchmark(redis: &Redis, tenant: &TenantId) -> f64 {
    let hash = redis.cli(&["SCRIPT", "LOAD", RESERVE_SCRIPT]).expect("loaded");
    let mut command = redis.command("redis-benchmark");
    command.args(["-c", &CLIENTS.to_string(), "-n", &RESERVATIONS.to_string(), "--csv", "-r", "1000000000"]);
    command.args(["EVALSHA", hash.trim(), "6"]).args(keys("", tenant));
    command.args(["bench", "__rand_int__", "1", &LIMIT.to_string()]);
    let ran = command.output().expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    let last = text.lines().last().unwrap_or_default();
    last.rsplit("\",\"")
        .nth(6)
        .and_then(|rps| rps.trim_matches('"').parse().ok())
        .unwrap_or_else(|| panic!("{text}"))
}

/// Only the row: the same check as an UPDATE in a separate transaction.
fn rows() {
    say(format!("== the same as an UPDATE of a tenant's row by pgbench, {CLIENTS} clients"));
    let server = postgres::shared();
    let url = server.create_database();
    let table = "CREATE TABLE quotas (tenant_id TEXT PRIMARY KEY, used_bytes BIGINT NOT NULL); \
        INSERT INTO quotas SELECT 't' || n, 0 FROM generate_series(1, 1000) n";
    server.psql(&url, table).expect("a thousand tenants");
    for tenants in [1, 1_000] {
        let file = base().join("row.sql");
        let script = format!(
            "\\set n random(1, {tenants})\nUPDATE quotas SET used_bytes = used_bytes + 1 \
             WHERE tenant_id = 't' || :n AND used_bytes + 1 <= {LIMIT};\n"
        );
        std::fs::write(&file, script).expect("a script");
        say_pgbench(server, &url, &file, CLIENTS, &format!("{tenants} tenants"));
    }
}

async fn inits(redis: &Redis) {
    say(format!("== init over HTTP on PostgreSQL, {CLIENTS} clients, by the database and by Redis in turn"));
    let shapes =
        [("one tenant, one user", 1, 1), ("one tenant, 64 users", 1, 64), ("a thousand tenants", 1_000, 1)];
    for (name, tenants, users) in shapes {
        for round in 0..ROUNDS {
            let mut rates = Vec::new();
            for by in ["database", "Redis"] {
                let mut settings = Vec::new();
                if by == "Redis" {
                    redis.cli(&["FLUSHALL"]).expect("empty");
                    settings.push(("WHARFINGER_QUOTA_URL", redis.url()));
                }
                let database = postgres::shared().create_database();
                let server = Server::start_with(Some(&database), &settings).await;
                let tokens = server.tokens(tenants, users);
                let (made, timing) = init_only(&server, tokens).await;
                rates.push(made);
                if round == 0 {
                    say(timing.line(by));
                }
            }
            say(format!(
                "{name}: database {:>5.0}/s, Redis {:>5.0}/s: {:.2}",
                rates[0],
                rates[1],
                rates[1] / rates[0]
            ));
        }
    }
}

async fn init_only(server: &Server, tokens: Vec<String>) -> (f64, Timing) {
    let http = client();
    let tokens = Arc::new(tokens);
    // The first upload of each tenant creates its row and its count in Redis. It is not measured.
    for token in tokens.iter() {
        let body = json!({ "fileName": "x", "size": 4 });
        call(&http, token, Method::POST, format!("{}/api/v2/files/init", server.url), Some(body)).await;
    }
    let (until, started) = (Instant::now() + RUN, Instant::now());
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (http, url, tokens) =
                (http.clone(), format!("{}/api/v2/files/init", server.url), tokens.clone());
            tokio::spawn(async move {
                let (mut timing, mut count) = (Timing::default(), 0);
                while Instant::now() < until {
                    let token = &tokens[(n + count * CLIENTS) % tokens.len()];
                    let body = json!({ "fileName": "x", "size": 4 });
                    timing.add(call(&http, token, Method::POST, url.clone(), Some(body)).await.1);
                    count += 1;
                }
                (timing, count)
            })
        })
        .collect();
    let (mut all, mut made) = (Timing::default(), 0);
    for task in tasks {
        let (timing, count) = task.await.expect("a client");
        all.merge(timing);
        made += count;
    }
    (rate(made, started.elapsed()), all)
}

async fn uploads(redis: &Redis) {
    say(
        "== whole uploads (init, PUT of 4 bytes, confirm) on PostgreSQL and S3, by the database and by Redis in turn",
    );
    let gateway = radosgw::shared();
    for _ in 0..ROUNDS {
        for by in ["database", "Redis"] {
            let mut settings = s3::environment(gateway, &gateway.create_bucket());
            if by == "Redis" {
                redis.cli(&["FLUSHALL"]).expect("empty");
                settings.push(("WHARFINGER_QUOTA_URL", redis.url()));
            }
            let database = postgres::shared().create_database();
            let server = Server::start_with(Some(&database), &settings).await;
            say(format!("by {by}:"));
            s3::ours(&server, 16).await;
        }
    }
}
