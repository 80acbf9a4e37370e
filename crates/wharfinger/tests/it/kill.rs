//! A real server process that is killed again and again (SIGKILL) while clients upload, confirm and delete.
//! Whatever a client was told stays true, and the rest is healed.

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
/// More than the lease of whatever was under way when the last one was killed.
const PATIENCE: Duration = Duration::from_secs(180);
const SETTINGS: [(&str, &str); 5] = [
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

    /// Killed as by the machine's owner: nothing is said to it before.
    fn kill(mut self) {
        self.0.kill().expect("a process to kill");
        self.0.wait().expect("it ends");
    }

    /// Asks it to stop; answers whether it did so of its own will.
    fn terminate(mut self) -> bool {
        let pid = self.0.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        self.0.wait().expect("it ends").success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that fails leaves no server behind; one that has ended already does not mind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What clients were told, which must stay true: the id of a file and its bytes, or none once deleted.
type Told = Arc<Mutex<BTreeMap<String, Option<Vec<u8>>>>>;

struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
    told: Told,
}

impl Client {
    /// None where the server was away or unsure; that is no promise.
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

    async fn one_life(&self, n: usize) -> Option<()> {
        let bytes = format!("cargo number {n} of {}", self.token.len()).into_bytes();
        let post = reqwest::Method::POST;
        let body = json!({ "fileName": format!("cargo-{n}"), "size": bytes.len() });
        let grant = self.call(post.clone(), "/api/v2/files/init", Some(body)).await?;
        let id = grant["fileId"].as_str()?.to_owned();
        if n.is_multiple_of(5) {
            return None;
        }
        self.http.put(grant["uploadUrl"].as_str()?).body(bytes.clone()).send().await.ok()?;
        if n.is_multiple_of(7) {
            return None;
        }
        self.call(post, &format!("/api/v2/files/{id}/confirm"), Some(json!({}))).await?;
        if n.is_multiple_of(3) {
            // From here on it may be deleted without our hearing of it: no promise either way until the 204.
            self.call(reqwest::Method::DELETE, &format!("/api/v2/files/{id}"), None).await?;
            self.told.lock().await.insert(id, None);
        } else {
            self.told.lock().await.insert(id, Some(bytes));
        }
        Some(())
    }
}

async fn killed_again_and_again(database: Database, kills: usize, seed: u64) {
    let mut random = long::random(seed);
    let env = TestEnv::in_real_time(database, &SETTINGS);
    let address = harness::free_address();
    // Makes the schema and the secrets, and says how to sign tokens.
    let first = env.start().await;
    let expires_at = env.clock.now() + 3_600_000;
    let token = first.app.tokens.mint(&caller("t", "u", Role::Operator), expires_at).expect("a secret");
    first.crash().await;

    let told: Told = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (told, stop) = (told.clone(), stop.clone());
            let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build();
            let client_of = Client {
                http: http.expect("a client"),
                url: format!("http://{address}"),
                token: token.clone(),
                told,
            };
            tokio::spawn(async move {
                let mut n = client;
                while !stop.load(Ordering::SeqCst) {
                    if client_of.one_life(n).await.is_none() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    n += CLIENTS;
                }
            })
        })
        .collect();

    for kill in 0..kills {
        let server = Server::start(&env, &address);
        // Every other one gets something done, however busy the machine is.
        if kill % 2 == 1 {
            until_told(&told, kill).await;
        }
        // Not a wait for anything: the moment of the kill is what varies.
        tokio::time::sleep(Duration::from_millis(random.random_range(250..750))).await;
        server.kill();
    }
    let server = Server::start(&env, &address);
    until_told(&told, kills + 1).await;
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("a client");
    }
    wait_until_healed(&address, &token).await;
    assert!(server.terminate(), "SIGTERM ends the server in order");

    env.age_incoming_uploads();
    let server = env.start().await;
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
    let told = told.lock().await;
    let owner = server.as_user("t", "u", Role::Operator);
    for (id, bytes) in told.iter() {
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

async fn until_told(told: &Told, count: usize) {
    let enough = async {
        while told.lock().await.len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, enough).await.expect("clients get something done");
}

/// The healers run by themselves; this only watches.
async fn wait_until_healed(address: &str, token: &str) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let ask = async |path: &str| -> Option<Value> {
        let answer = http.get(format!("http://{address}{path}")).bearer_auth(token).send().await.ok()?;
        answer.json().await.ok()
    };
    let give_up = Instant::now() + PATIENCE;
    loop {
        let quota = ask("/api/v2/quota").await.unwrap_or_default();
        let cleanups = ask("/api/v1/maintenance/cleanup/status").await.unwrap_or_default();
        if quota["reserved"] == 0 && cleanups["pending"] == 0 {
            return;
        }
        assert!(Instant::now() < give_up, "not healed by itself: {quota} {cleanups}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_on_sqlite() {
    killed_again_and_again(Database::Sqlite, FEW_KILLS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_on_postgres() {
    killed_again_and_again(Database::Postgres, FEW_KILLS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn killed_many_times_on_sqlite() {
    killed_again_and_again(Database::Sqlite, KILLS, long::seed()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn killed_many_times_on_postgres() {
    killed_again_and_again(Database::Postgres, KILLS, long::seed()).await;
}
