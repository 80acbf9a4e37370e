//! Six processes on PostgreSQL, Redis, RabbitMQ and S3. While clients upload a few thousand files, the servers and the
//! processes are killed, paused or wiped, one after the other, and restarted. Then the files are compared with the
//! store and the database.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::postgres::{self, Postgres};
use harness::rabbitmq::RabbitMq;
use harness::radosgw::Radosgw;
use harness::redis::Redis;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use wharfinger::core::Role;
use wharfinger_catalog::{Destination, Scope};

use crate::test_app::{Database, TestEnv, caller};
use crate::{long, oracle};

const CLIENTS: usize = 12;
/// Longer than the lease of a sweep.
const PAUSE_OF_SWEEPER: Duration = Duration::from_secs(35);
const FILES_MIN: u64 = 2_000;
const TENANTS: [&str; 3] = ["north", "south", "east"];
/// Small enough that some uploads are refused.
const TENANT_LIMIT: u64 = 4_000;

struct Process {
    role: &'static str,
    address: String,
    child: Child,
}

impl Process {
    fn start(env: &TestEnv, role: &'static str, address: &str, n: usize) -> Process {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(env.folder().join(format!("{role}{n}.log")));
        let child = Command::new(env!("CARGO_BIN_EXE_wharfinger"))
            .args(["serve", "--listen", address, "--role", role])
            .envs(env.environment())
            .env("INSTANCE_ID", format!("{role}-{n}"))
            .current_dir(env.folder())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the program starts");
        Process { role, address: address.to_owned(), child }
    }

    fn signal(&self, name: &str) {
        Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().expect("kill runs");
    }

    fn terminate(&mut self) -> bool {
        self.signal("TERM");
        self.child.wait().expect("the process ends").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The confirmed results: whether a file must exist at the end.
type ExpectedFiles = Mutex<BTreeMap<String, bool>>;

struct Fleet {
    apis: Vec<String>,
    tokens: Vec<String>,
    expected: ExpectedFiles,
    /// The number of files that were uploaded, confirmed, and then kept or deleted.
    completed: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
    http: reqwest::Client,
}

impl Fleet {
    /// Sends a request to one of the two API processes. None: there was no certain result.
    async fn call(&self, n: u64, method: Method, path: &str, body: Value) -> Option<Value> {
        let token = &self.tokens[n as usize % self.tokens.len()];
        for attempt in 0..2 {
            let api = &self.apis[(n as usize + attempt) % self.apis.len()];
            let request = self.http.request(method.clone(), format!("http://{api}{path}")).bearer_auth(token);
            let Ok(answer) = request.json(&body).send().await else { continue };
            match answer.status().as_u16() {
                200..300 => return Some(answer.json().await.unwrap_or(Value::Null)),
                403 => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                503 => {}
                other => {
                    let text = answer.text().await.unwrap_or_default();
                    assert!(matches!(other, 404 | 409 | 410), "{method} {path}: {other} {text}");
                    return None;
                }
            }
        }
        None
    }

    async fn upload_file(&self, n: u64) -> Option<()> {
        let bytes = format!("bytes {n:>10}").into_bytes();
        let body = json!({ "fileName": format!("file-{n}"), "size": bytes.len() });
        let grant = self.call(n, Method::POST, "/api/v2/files/init", body).await?;
        let id = grant["fileId"].as_str()?.to_owned();
        if n.is_multiple_of(11) {
            return None;
        }
        let mut put = self.http.put(grant["uploadUrl"].as_str()?).body(bytes);
        for (name, value) in grant["headers"].as_object().into_iter().flatten() {
            put = put.header(name, value.as_str()?);
        }
        let stored = put.send().await.ok()?;
        if !stored.status().is_success() || n.is_multiple_of(13) {
            return None;
        }
        let file = format!("/api/v2/files/{id}");
        self.call(n, Method::POST, &format!("{file}/confirm"), json!({})).await?;
        if n.is_multiple_of(7) {
            self.expected.lock().await.insert(id, true);
        } else {
            self.call(n, Method::DELETE, &file, json!({})).await?;
            self.expected.lock().await.insert(id, false);
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    async fn run_client(self: Arc<Self>, client: u64) {
        let mut n = client;
        while !self.stop.load(Ordering::SeqCst) {
            if self.upload_file(n).await.is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            n += CLIENTS as u64;
        }
    }
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

struct Servers {
    postgres: Postgres,
    redis: Redis,
    rabbit: RabbitMq,
    s3: Radosgw,
}

/// A failure of one server or process. It recovers before the next failure starts.
#[derive(Clone, Copy, Debug)]
enum Failure {
    KillRedis,
    WipeRedis,
    PauseRedis,
    KillRabbit,
    WipeRabbit,
    KillPostgres,
    PausePostgres,
    KillS3,
    PauseS3,
    /// The process is killed and started again.
    Restart(usize),
}

const FAILURES: [Failure; 13] = [
    Failure::KillRedis,
    Failure::WipeRedis,
    Failure::PauseRedis,
    Failure::KillRabbit,
    Failure::WipeRabbit,
    Failure::KillPostgres,
    Failure::PausePostgres,
    Failure::KillS3,
    Failure::PauseS3,
    Failure::Restart(0),
    Failure::Restart(1),
    Failure::Restart(2),
    Failure::Restart(3),
];

impl Failure {
    fn inject(self, servers: &mut Servers, processes: &mut [Process], env: &TestEnv, random: &mut StdRng) {
        let Servers { postgres, redis, rabbit, s3 } = servers;
        let mut wait = || pause(random.random_range(500..2_500));
        match self {
            Failure::KillRedis => {
                redis.kill().expect("killed");
                wait();
                redis.start_again().expect("started");
            }
            Failure::WipeRedis => redis.wipe().expect("wiped"),
            Failure::PauseRedis => {
                redis.pause().expect("paused");
                wait();
                redis.resume().expect("resumed");
            }
            Failure::KillRabbit => {
                rabbit.kill().expect("killed");
                wait();
                rabbit.start_again().expect("started");
            }
            Failure::WipeRabbit => rabbit.wipe().expect("wiped"),
            Failure::KillPostgres => {
                postgres.kill().expect("killed");
                wait();
                postgres.start_again().expect("started");
            }
            Failure::PausePostgres => {
                postgres.pause().expect("paused");
                wait();
                postgres.resume().expect("resumed");
            }
            Failure::KillS3 => {
                s3.kill().expect("killed");
                wait();
                s3.start_again().expect("started");
            }
            Failure::PauseS3 => {
                s3.pause().expect("paused");
                wait();
                s3.resume().expect("resumed");
            }
            Failure::Restart(n) => restart(processes, n, env),
        }
    }
}

/// Injects every failure once. The seed decides the order.
fn inject_all(servers: &mut Servers, processes: &mut [Process], env: &TestEnv, mut random: StdRng) {
    // This sweeper is paused for longer than any lease, and continues at the end.
    let paused = processes.iter().rposition(|process| process.role == "sweeper").expect("a sweeper");
    processes[paused].signal("STOP");
    let paused_at = Instant::now();
    let mut failures = FAILURES;
    failures.shuffle(&mut random);
    println!("{failures:?}");
    for failure in failures {
        failure.inject(servers, processes, env, &mut random);
        pause(random.random_range(0..1_500));
    }
    std::thread::sleep(PAUSE_OF_SWEEPER.saturating_sub(paused_at.elapsed()));
    processes[paused].signal("CONT");
    pause(1_000);
}

fn restart(processes: &mut [Process], n: usize, env: &TestEnv) {
    let (role, address) = (processes[n].role, processes[n].address.clone());
    processes[n].child.kill().expect("killed");
    processes[n].child.wait().expect("the process ends");
    processes[n] = Process::start(env, role, &address, n);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn no_file_is_lost_when_every_server_and_process_fails_once() {
    let mut servers = tokio::task::spawn_blocking(|| Servers {
        postgres: Postgres::start_with(postgres::Options { fsync: false, ..Default::default() })
            .expect("PostgreSQL"),
        redis: Redis::start().expect("Redis"),
        rabbit: RabbitMq::start().expect("RabbitMQ"),
        s3: Radosgw::start().expect("S3"),
    })
    .await
    .expect("four servers");
    let limit = TENANT_LIMIT.to_string();
    let s3 = &servers.s3;
    let settings = [
        ("WHARFINGER_DATABASE_URL", servers.postgres.create_database()),
        ("WHARFINGER_QUOTA_URL", servers.redis.url()),
        ("WHARFINGER_BROKER_URL", servers.rabbit.url()),
        ("WHARFINGER_BLOB_URL", format!("s3://{}/files", s3.create_bucket())),
        ("AWS_ENDPOINT_URL", s3.endpoint()),
        ("AWS_ACCESS_KEY_ID", s3.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", s3.secret_key().to_owned()),
        ("AWS_REGION", s3.region().to_owned()),
        ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more".into()),
        ("DEFAULT_TENANT_QUOTA_BYTES", limit),
        ("UPLOAD_WINDOW_MS", "5000".into()),
        ("UPLOAD_GRACE_MS", "1000".into()),
        ("UPLOAD_MIN_RATE_BYTES", "1000000000".into()),
        ("UPLOAD_WINDOW_SCHEDULE", "*/5 * * * * *".into()),
        ("CLEANUP_SWEEP_SCHEDULE", "*/5 * * * * *".into()),
    ];
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let env = Arc::new(TestEnv::in_real_time(Database::Sqlite, &settings));
    let first = env.start().await;
    let expires_at = env.clock.now() + 3_600_000;
    let mint = |tenant: &str| first.app.tokens.mint(&caller(tenant, "u", Role::Operator), expires_at);
    let tokens: Vec<String> = TENANTS.iter().map(|tenant| mint(tenant).expect("a secret")).collect();
    first.crash().await;

    let roles = ["api", "api", "worker", "worker", "sweeper", "sweeper"];
    let mut processes: Vec<Process> =
        (0..).zip(roles).map(|(n, role)| Process::start(&env, role, &harness::free_address(), n)).collect();
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build();
    let fleet = Arc::new(Fleet {
        apis: processes[..2].iter().map(|process| process.address.clone()).collect(),
        tokens: tokens.clone(),
        expected: ExpectedFiles::default(),
        completed: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        http: http.expect("a client"),
    });
    let clients: Vec<_> = (0..CLIENTS).map(|n| tokio::spawn(fleet.clone().run_client(n as u64))).collect();
    let watcher = tokio::spawn(watch(env.clone(), fleet.clone()));
    let environment = env.clone();
    let (servers, mut processes) = tokio::task::spawn_blocking(move || {
        pause(3_000);
        inject_all(&mut servers, &mut processes, &environment, long::random(long::seed()));
        (servers, processes)
    })
    .await
    .expect("all failures were injected");
    let give_up = Instant::now() + Duration::from_secs(600);
    while fleet.completed.load(Ordering::Relaxed) < FILES_MIN && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fleet.stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("a client");
    }
    let checks = watcher.await.expect("the limit is never exceeded");
    assert!(fleet.completed.load(Ordering::Relaxed) >= FILES_MIN, "too few files were completed");
    assert!(fleet.refused.load(Ordering::Relaxed) > 0, "the limit was never reached");
    println!(
        "{checks} checks of the limit, {} files completed, {} refused by the quota, {} expected results",
        fleet.completed.load(Ordering::Relaxed),
        fleet.refused.load(Ordering::Relaxed),
        fleet.expected.lock().await.len()
    );
    wait_until_repaired(&env).await;
    for process in &mut processes {
        assert!(process.terminate(), "{} stops gracefully", process.role);
    }
    check(&env, &fleet).await;
    drop(servers);
}

/// Checks I1 in the database during the test. One statement reads one consistent state.
async fn watch(env: Arc<TestEnv>, fleet: Arc<Fleet>) -> u64 {
    let most = "SELECT CAST(COALESCE(MAX(charged), 0) AS BIGINT) FROM \
        (SELECT SUM(charged_bytes) AS charged FROM files GROUP BY tenant_id) sums";
    let mut checks = 0;
    while !fleet.stop.load(Ordering::SeqCst) {
        // The database is sometimes down.
        if let Some(charged) = env.try_scalar(most).await {
            assert!(
                charged <= TENANT_LIMIT as i64,
                "{charged} bytes were admitted, the limit is {TENANT_LIMIT}"
            );
            checks += 1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    checks
}

/// Waits in the database until the running processes have repaired everything.
async fn wait_until_repaired(env: &TestEnv) {
    let give_up = Instant::now() + Duration::from_secs(180);
    let unfinished = "SELECT (SELECT COUNT(*) FROM files WHERE pipeline_status = 'registered') \
        + (SELECT COUNT(*) FROM files WHERE pipeline_status = 'deleted' AND charged_bytes > 0) \
        + (SELECT COUNT(*) FROM pending_cleanups) + (SELECT COUNT(*) FROM outbox)";
    loop {
        let left = env.scalar(unfinished).await;
        if left == 0 {
            return;
        }
        assert!(Instant::now() < give_up, "{left} rows are not repaired");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Checks I1 to I9 and I14 to I16 with a new process. The paused sweeper could have violated I13.
async fn check(env: &TestEnv, fleet: &Fleet) {
    let server = env.start().await;
    oracle::all_is_healed(env, &server).await;
    for tenant in TENANTS {
        let tenant = wharfinger_lifecycle::id::TenantId::new(tenant).expect("a tenant");
        let quota = server.app.core.catalog.quota(&tenant, TENANT_LIMIT).await.expect("a quota");
        assert!(quota.used_bytes <= TENANT_LIMIT, "{tenant} uses {}", quota.used_bytes);
    }
    let depth = server.app.core.catalog.outbox_depth(Destination::Broker).await.expect("counted").0;
    assert_eq!(depth, 0, "checks that were never published");
    let live = server.app.core.catalog.files(&Scope::All, None, 100_000).await.expect("files");
    let live: std::collections::BTreeSet<String> = live.iter().map(|file| file.id.to_string()).collect();
    let expected = fleet.expected.lock().await;
    assert!(expected.len() as u64 >= FILES_MIN / 2, "too few expected results: {}", expected.len());
    for (id, exists) in expected.iter() {
        assert_eq!(live.contains(id), *exists, "whether {id} exists");
    }
}
