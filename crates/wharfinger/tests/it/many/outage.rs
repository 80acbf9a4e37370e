//! PostgreSQL goes away under traffic: killed and started again, demoted, or dead and followed by its standby. Clients
//! get answers or 503, never anything else, and what they were told stays true.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::postgres::Postgres;
use harness::proxy::Proxy;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, block_in_place};
use wharfinger::core::Role;
use wharfinger::worker::Supervisor;

use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv, patiently};

const CLIENTS: usize = 4;
/// More than the pool has connections.
const AT_ONCE: usize = 60;

fn env(url: &str) -> TestEnv {
    let settings =
        [("WHARFINGER_DATABASE_URL", url), ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more")];
    TestEnv::with(Database::Sqlite, &settings)
}

/// Clients that go on until they are told to stop, whatever they are answered.
struct Traffic {
    http: reqwest::Client,
    url: String,
    token: String,
    stop: AtomicBool,
    answered: AtomicUsize,
    unavailable: AtomicUsize,
    /// The files that clients were told of: their bytes, or none once deleted.
    told: Mutex<BTreeMap<String, Option<String>>>,
}

impl Traffic {
    fn begin(server: &TestApp) -> (Arc<Traffic>, Vec<JoinHandle<()>>) {
        let traffic = Arc::new(Traffic {
            http: server.http.clone(),
            url: server.url.clone(),
            token: server.token("t", "u", Role::Operator),
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
            unavailable: AtomicUsize::new(0),
            told: Mutex::default(),
        });
        let clients = (0..CLIENTS).map(|client| {
            let traffic = traffic.clone();
            tokio::spawn(async move {
                let mut n = client;
                while !traffic.stop.load(Ordering::SeqCst) {
                    traffic.one_life(n).await;
                    n += CLIENTS;
                }
            })
        });
        let clients = clients.collect();
        (traffic, clients)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    /// Asks until it is answered. 503 is the only other thing a client may get.
    async fn insist(&self, request: impl Fn() -> RequestBuilder) -> (u16, Value) {
        loop {
            let answer = Answer::read(request().send().await.expect("an answer")).await;
            if answer.status.as_u16() < 500 {
                self.answered.fetch_add(1, Ordering::SeqCst);
                return (answer.status.as_u16(), answer.body);
            }
            self.unavailable.fetch_add(1, Ordering::SeqCst);
            assert_eq!(answer.headers["retry-after"], "1");
            answer.expect_problem(503, "unavailable");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn one_life(&self, n: usize) {
        let bytes = format!("cargo number {n}");
        let body = json!({ "fileName": format!("cargo-{n}"), "size": bytes.len() });
        let init = || {
            let request = self.request(Method::POST, "/api/v2/files/init");
            request.header("idempotency-key", format!("key-{n}")).json(&body)
        };
        let (status, grant) = self.insist(init).await;
        assert_eq!(status, 201, "{grant}");
        let upload = grant["uploadUrl"].as_str().expect("a URL");
        let (status, answer) = self.insist(|| self.http.put(upload).body(bytes.clone())).await;
        // What was answered 503 may have landed.
        assert!(status == 200 || status == 412, "{status} {answer}");
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        let file = format!("/api/v2/files/{id}");
        let confirm = || self.request(Method::POST, &format!("{file}/confirm")).json(&json!({}));
        let (status, answer) = self.insist(confirm).await;
        assert_eq!((status, &answer["status"]), (200, &json!("ready")), "{answer}");
        self.told.lock().await.insert(id.clone(), Some(bytes));
        if n.is_multiple_of(3) {
            let (status, answer) = self.insist(|| self.request(Method::DELETE, &file)).await;
            assert!(status == 204 || status == 404, "{status} {answer}");
            self.told.lock().await.insert(id, None);
        }
    }

    async fn until(&self, what: &str, more: usize, counter: impl Fn(&Traffic) -> &AtomicUsize) {
        let (before, give_up) =
            (counter(self).load(Ordering::SeqCst), Instant::now() + Duration::from_secs(120));
        while counter(self).load(Ordering::SeqCst) < before + more {
            assert!(Instant::now() < give_up, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_served(&self) {
        self.until("clients are served", 10 * CLIENTS, |traffic| &traffic.answered).await;
    }

    async fn until_refused(&self) {
        self.until("clients are told to try again", CLIENTS, |traffic| &traffic.unavailable).await;
    }
}

/// No connection that is left from before keeps a request from being served.
async fn all_is_as_before(server: &TestApp) {
    let me = server.me();
    let inits = (0..AT_ONCE).map(|_| patiently(|| me.init("a", 1)));
    for answer in futures::future::join_all(inits).await {
        let grant = answer.expect(201);
        let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
        me.delete(&path).await.expect(204);
    }
}

async fn all_that_was_told_is_true(
    env: &TestEnv,
    server: &TestApp,
    traffic: &Traffic,
    clients: Vec<JoinHandle<()>>,
    supervisor: Supervisor,
) {
    traffic.stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("nothing but answers and 503");
    }
    // Before the clock is moved: what it has under way nobody else may take up.
    supervisor.stop().await;
    env.advance(3_660_000);
    // An upload whose row could not be looked at again has left its note.
    env.age_incoming_uploads();
    server.settle().await;
    oracle::all_is_healed(env, server).await;
    let operator = server.operator();
    for (id, bytes) in traffic.told.lock().await.iter() {
        let answer = operator.get(&format!("/api/v2/files/{id}")).await;
        match bytes {
            None => drop(answer.expect_problem(404, "not_found")),
            Some(bytes) => {
                assert_eq!(answer.expect(200)["status"], "ready");
                let stored = std::fs::read_to_string(env.blob_dir().join(format!("uploads/t/u/{id}")));
                assert_eq!(stored.expect("the object"), *bytes);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_killed_and_comes_back_costs_503s_only() {
    let mut postgres = block_in_place(Postgres::start).expect("a server of its own");
    let env = env(&postgres.create_database());
    let server = env.start().await;
    let supervisor = Supervisor::start(&server.app).await;
    let (traffic, clients) = Traffic::begin(&server);
    for _ in 0..3 {
        traffic.until_served().await;
        block_in_place(|| postgres.kill()).expect("killed");
        block_in_place(|| postgres.start_again()).expect("started again");
        traffic.until_served().await;
        all_is_as_before(&server).await;
    }
    all_that_was_told_is_true(&env, &server, &traffic, clients, supervisor).await;
}

struct Pair {
    primary: Postgres,
    standby: Postgres,
    proxy: Proxy,
    url: String,
}

/// A primary whose commits wait for its standby, and an address that leads to whichever it is told.
fn pair() -> Pair {
    let primary = Postgres::start().expect("a primary");
    let url = primary.create_database();
    primary.require_standby(true).expect("required");
    let standby = Postgres::start_standby_of(&primary).expect("a standby");
    let proxy = Proxy::to(("127.0.0.1", primary.port())).expect("a proxy");
    let url = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", proxy.addr().port()));
    assert!(url.contains(&proxy.addr().port().to_string()), "{url}");
    Pair { primary, standby, proxy, url }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_takes_over_finds_everything_as_it_was_told() {
    let mut pair = block_in_place(pair);
    let env = env(&pair.url);
    let server = env.start().await;
    let supervisor = Supervisor::start(&server.app).await;
    let (traffic, clients) = Traffic::begin(&server);
    traffic.until_served().await;
    block_in_place(|| pair.primary.kill()).expect("killed");
    // Before it takes writes: an address that leads to it too early does no harm.
    pair.proxy.point_at(("127.0.0.1", pair.standby.port())).expect("pointed");
    traffic.until_refused().await;
    block_in_place(|| pair.standby.promote()).expect("promoted");
    traffic.until_served().await;
    all_is_as_before(&server).await;
    all_that_was_told_is_true(&env, &server, &traffic, clients, supervisor).await;
}

/// The old primary lives on and answers, but takes no writes: its connections must not be used any more, for reads
/// either.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_demoted_is_left() {
    let mut pair = block_in_place(pair);
    let env = env(&pair.url);
    let server = env.start().await;
    let supervisor = Supervisor::start(&server.app).await;
    let (traffic, clients) = Traffic::begin(&server);
    traffic.until_served().await;
    let demote = |statement| pair.primary.psql(&pair.primary.admin_url(), statement).expect("demoted");
    block_in_place(|| {
        demote("ALTER SYSTEM SET default_transaction_read_only = on");
        demote("SELECT pg_reload_conf()");
    });
    traffic.until_refused().await;
    block_in_place(|| pair.standby.promote()).expect("promoted");
    pair.proxy.point_at(("127.0.0.1", pair.standby.port())).expect("pointed");
    traffic.until_served().await;
    all_is_as_before(&server).await;
    all_that_was_told_is_true(&env, &server, &traffic, clients, supervisor).await;
}
