//! A real server process is killed (SIGKILL) many times while clients upload, confirm and delete. Each acknowledged
//! call stays valid, and the sweeps repair the rest.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng as _;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use wharfinger::core::Role;

use crate::long::{self, FIXED_SEED};
use crate::oracle;
use crate::test_app::{Database, TestEnv, caller};

const KILLS: usize = 20;
const FEW_KILLS: usize = 3;
const CLIENTS: usize = 4;
/// Longer than any lease that the last killed process held.
const TIMEOUT: Duration = Duration::from_secs(180);
const SETTINGS: [(&str, &str); 7] = [
    // Half of the files are uploaded in parts.
    ("MULTIPART_THRESHOLD_BYTES", "100"),
    ("ORPHAN_BLOB_GRACE_MS", "0"),
    ("UPLOAD_WINDOW_MS", "1500"),
    ("UPLOAD_GRACE_MS", "200"),
    ("UPLOAD_MIN_RATE_BYTES", "1000000000"),
    ("UPLOAD_WINDOW_SCHEDULE", "* * * * * *"),
    ("CLEANUP_SWEEP_SCHEDULE", "* * * * * *"),
];

struct Server(Child);

impl Server {
    fn start(env: &TestEnv, address: &str) -> Server {
        let child = Command::new(env!("CARGO_BIN_EXE_wharfinger"))
            .args(["serve", "--listen", address])
            .envs(env.environment())
            .current_dir(env.folder())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        Server(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("a process to kill");
        self.0.wait().expect("it ends");
    }

    /// Sends SIGTERM. Returns whether the process ended with success.
    fn terminate(mut self) -> bool {
        let pid = self.0.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        self.0.wait().expect("it ends").success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed test must not leave a server running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The acknowledged state of files: the id and the bytes, or None after a delete.
type Acknowledged = Arc<Mutex<BTreeMap<String, Option<Vec<u8>>>>>;

struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
    acknowledged: Acknowledged,
}

impl Client {
    /// None if the server did not acknowledge the call.
    async fn call(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> Option<Value> {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let text = answer.text().await.ok()?;
        Some(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn upload_one(&self, n: usize) -> Option<()> {
        let mut bytes = format!("cargo number {n} of {}", self.token.len()).into_bytes();
        bytes.resize(if n.is_multiple_of(2) { 200 } else { bytes.len() }, b'.');
        let post = reqwest::Method::POST;
        let body = json!({ "fileName": format!("cargo-{n}"), "size": bytes.len() });
        let grant = self.call(post.clone(), "/api/v2/files/init", Some(body)).await?;
        let id = grant["fileId"].as_str()?.to_owned();
        if n.is_multiple_of(5) {
            return None;
        }
        let url = grant["uploadUrl"].as_str().or(grant["multipart"]["parts"][0]["url"].as_str())?;
        self.http.put(url).body(bytes.clone()).send().await.ok()?;
        if n.is_multiple_of(7) {
            return None;
        }
        self.call(post, &format!("/api/v2/files/{id}/confirm"), Some(json!({}))).await?;
        if n.is_multiple_of(3) {
            // The delete may succeed without an answer, so the state is unknown until the 204.
            self.call(reqwest::Method::DELETE, &format!("/api/v2/files/{id}"), None).await?;
            self.acknowledged.lock().await.insert(id, None);
        } else {
            self.acknowledged.lock().await.insert(id, Some(bytes));
        }
        Some(())
    }
}

async fn no_acknowledged_file_is_lost(database: Database, kills: usize, seed: u64) {
    let mut random = long::random(seed);
    let env = TestEnv::in_real_time(database, &SETTINGS);
    let address = harness::free_address();
    // Creates the schema and the secrets, and signs a token.
    let first = env.start().await;
    let expires_at = env.clock.now() + 3_600_000;
    let token = first.app.tokens.mint(&caller("t", "u", Role::Operator), expires_at).expect("a secret");
    first.crash().await;

    let acknowledged: Acknowledged = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (acknowledged, stop) = (acknowledged.clone(), stop.clone());
            let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build();
            let client_n = Client {
                http: http.expect("a client"),
                url: format!("http://{address}"),
                token: token.clone(),
                acknowledged,
            };
            tokio::spawn(async move {
                let mut n = client;
                while !stop.load(Ordering::SeqCst) {
                    if client_n.upload_one(n).await.is_none() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    n += CLIENTS;
                }
            })
        })
        .collect();

    for kill in 0..kills {
        let server = Server::start(&env, &address);
        // Every second server acknowledges a call before it is killed, also on a slow machine.
        if kill % 2 == 1 {
            wait_for_acknowledged(&acknowledged, kill).await;
        }
        // The random delay varies the moment of the kill.
        tokio::time::sleep(Duration::from_millis(random.random_range(250..750))).await;
        server.kill();
    }
    let server = Server::start(&env, &address);
    wait_for_acknowledged(&acknowledged, kills + 1).await;
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("a client");
    }
    wait_until_repaired(&address, &token).await;
    assert!(server.terminate(), "SIGTERM stops the server without an error");

    env.age_incoming_uploads();
    let server = env.start().await;
    server.settle().await;
    // Uploads in parts that a killed process has left, before it stored their id or after it completed them.
    server.scan_orphans().await;
    oracle::all_is_healed(&env, &server).await;
    let acknowledged = acknowledged.lock().await;
    let owner = server.as_user("t", "u", Role::Operator);
    for (id, bytes) in acknowledged.iter() {
        let answer = owner.get(&format!("/api/v2/files/{id}")).await;
        match bytes {
            None => drop(answer.expect_problem(404, "not_found")),
            Some(bytes) => {
                assert_eq!(answer.expect(200)["status"], "ready");
                let stored = std::fs::read(env.blob_dir().join(format!("uploads/t/u/{id}")));
                assert_eq!(stored.expect("the object"), *bytes);
            }
        }
    }
}

async fn wait_for_acknowledged(acknowledged: &Acknowledged, count: usize) {
    let enough = async {
        while acknowledged.lock().await.len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, enough).await.expect("the server acknowledges calls");
}

/// Waits until the sweeps of the server have repaired everything.
async fn wait_until_repaired(address: &str, token: &str) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let ask = async |path: &str| -> Option<Value> {
        let answer = http.get(format!("http://{address}{path}")).bearer_auth(token).send().await.ok()?;
        answer.json().await.ok()
    };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let quota = ask("/api/v2/quota").await.unwrap_or_default();
        let cleanups = ask("/api/v1/maintenance/cleanup/status").await.unwrap_or_default();
        if quota["reserved"] == 0 && cleanups["pending"] == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "not repaired in time: {quota} {cleanups}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_file_is_lost_by_kills_on_sqlite() {
    no_acknowledged_file_is_lost(Database::Sqlite, FEW_KILLS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_file_is_lost_by_kills_on_postgres() {
    no_acknowledged_file_is_lost(Database::Postgres, FEW_KILLS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn no_acknowledged_file_is_lost_by_many_kills_on_sqlite() {
    no_acknowledged_file_is_lost(Database::Sqlite, KILLS, long::seed()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn no_acknowledged_file_is_lost_by_many_kills_on_postgres() {
    no_acknowledged_file_is_lost(Database::Postgres, KILLS, long::seed()).await;
}
