//! A rolling restart: two processes behind a load balancer are restarted one after the other under steady traffic, and
//! no request fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use wharfinger::core::Role;

use crate::cli::program::{Place, Served};
use crate::oracle;
use crate::test_app::{Database, TestEnv, caller};

const CLIENTS: usize = 4;
const RESTARTS_EACH: usize = 2;
/// Much longer than the 100 ms between two readiness checks of the balancer, on a busy machine too.
const DRAIN_MS: &str = "5000";
/// The address in signed URLs. The balancer replaces it.
const PUBLIC_URL: &str = "http://wharf.test";

/// Sends each request to a process whose last readiness check was ok, and keeps connections open.
struct Balancer {
    addresses: [String; 2],
    ready: [AtomicBool; 2],
    next: AtomicUsize,
    http: reqwest::Client,
    token: String,
    stop: AtomicBool,
    failed: Mutex<Vec<String>>,
}

impl Balancer {
    async fn watch(self: Arc<Self>, process: usize) {
        let url = format!("http://{}/readyz", self.addresses[process]);
        while !self.stop.load(Ordering::SeqCst) {
            let answer = self.http.get(&url).send().await;
            let is_ready = answer.is_ok_and(|answer| answer.status() == StatusCode::OK);
            self.ready[process].store(is_ready, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait_until(&self, process: usize, is_ready: bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.ready[process].load(Ordering::SeqCst) != is_ready {
            assert!(Instant::now() < deadline, "process {process}: expected ready = {is_ready}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// None: the request failed, and is recorded in `failed`.
    async fn send(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Option<(u16, Value)> {
        let next = self.next.fetch_add(1, Ordering::SeqCst);
        let ready = (next..next + 2).map(|n| n % 2).find(|n| self.ready[*n].load(Ordering::SeqCst));
        let Some(process) = ready else {
            self.failed.lock().await.push(format!("{method} {path}: no process is ready"));
            return None;
        };
        let url = format!("http://{}{path}", self.addresses[process]);
        let request = self.http.request(method.clone(), url).bearer_auth(&self.token).body(body);
        let answer = async {
            let answer = request.send().await?;
            Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.text().await?))
        };
        match answer.await {
            Ok((status, text)) if status < 500 => {
                Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
            }
            Ok((status, text)) => {
                self.failed.lock().await.push(format!("{method} {path}: {status} {text}"));
                None
            }
            Err(error) => {
                self.failed.lock().await.push(format!("{method} {path}: {error:?}"));
                None
            }
        }
    }

    /// init, PUT, confirm, get and delete, each on the next ready process.
    async fn one_file(&self) -> Option<()> {
        let body = json!({ "fileName": "cargo", "size": 5 }).to_string();
        let (status, grant) = self.send(Method::POST, "/api/v2/files/init", body).await?;
        assert_eq!(status, 201, "{grant}");
        let id = grant["fileId"].as_str().expect("an id");
        let upload = grant["uploadUrl"].as_str().and_then(|url| url.strip_prefix(PUBLIC_URL));
        let (status, put) = self.send(Method::PUT, upload.expect("a path"), "cargo").await?;
        assert_eq!(status, 200, "{put}");
        let file = format!("/api/v2/files/{id}");
        let (status, confirmed) = self.send(Method::POST, &format!("{file}/confirm"), "{}").await?;
        assert_eq!((status, &confirmed["status"]), (200, &json!("ready")), "{confirmed}");
        assert_eq!(self.send(Method::GET, &file, "").await?.0, 200);
        assert_eq!(self.send(Method::DELETE, &file, "").await?.0, 204);
        Some(())
    }
}

fn serve(place: &Place, env: &TestEnv, address: &str) -> Served {
    let environment: Vec<_> = env.environment().collect();
    block_in_place(|| place.serve_at(address, &environment))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_request() {
    let settings = [("SHUTDOWN_DRAIN_MS", DRAIN_MS), ("WHARFINGER_PUBLIC_URL", PUBLIC_URL)];
    let env = TestEnv::in_real_time(Database::Postgres, &settings);
    let first = env.start().await;
    let expires_at = env.clock.now() + 3_600_000;
    let token = first.app.tokens.mint(&caller("t", "u", Role::User), expires_at).expect("a secret");
    first.crash().await;

    let place = Place::new();
    let addresses = [(); 2].map(|()| harness::free_address());
    let mut processes = addresses.each_ref().map(|address| Some(serve(&place, &env, address)));
    let balancer = Arc::new(Balancer {
        addresses,
        ready: Default::default(),
        next: AtomicUsize::new(0),
        http: reqwest::Client::builder().no_proxy().build().expect("a client"),
        token,
        stop: AtomicBool::new(false),
        failed: Mutex::default(),
    });
    let watchers: Vec<_> = (0..2).map(|process| tokio::spawn(balancer.clone().watch(process))).collect();
    balancer.wait_until(0, true).await;
    balancer.wait_until(1, true).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let balancer = balancer.clone();
            tokio::spawn(async move {
                let mut files = 0;
                while !balancer.stop.load(Ordering::SeqCst) {
                    files += usize::from(balancer.one_file().await.is_some());
                }
                files
            })
        })
        .collect();

    for restart in 0..2 * RESTARTS_EACH {
        let process = restart % 2;
        let running = processes[process].take().expect("it runs");
        running.signal("TERM");
        balancer.wait_until(process, false).await;
        assert!(block_in_place(|| running.wait()).success(), "the process ends with an error");
        processes[process] = Some(serve(&place, &env, &balancer.addresses[process]));
        balancer.wait_until(process, true).await;
    }
    balancer.stop.store(true, Ordering::SeqCst);
    let mut files = 0;
    for client in clients {
        files += client.await.expect("a client");
    }
    for watcher in watchers {
        watcher.await.expect("a watcher");
    }
    assert_eq!(*balancer.failed.lock().await, Vec::<String>::new());
    assert!(files > CLIENTS, "there was traffic: {files}");
    for running in processes.into_iter().flatten() {
        running.signal("INT");
        assert!(block_in_place(|| running.wait()).success());
    }
    let log = place.log();
    assert_eq!(log.matches("\"message\":\"stopped\"").count(), 2 * RESTARTS_EACH + 2, "{log}");
    assert_eq!(
        log.matches("\"message\":\"draining").count(),
        2 * RESTARTS_EACH,
        "an interrupt does not drain"
    );
    assert!(!log.contains("did not"), "a task did not end: {log}");

    let server = env.start().await;
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}
