//! PostgreSQL outages under traffic: a restart, a failover and a demotion. Clients get only answers and 503, and no
//! confirmed file is lost.

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
/// More than the connections of the pool.
const AT_ONCE: usize = 60;

fn env(url: &str) -> TestEnv {
    let settings =
        [("WHARFINGER_DATABASE_URL", url), ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more")];
    TestEnv::with(Database::Sqlite, &settings)
}

/// Clients that upload files until `stop` is set.
struct Traffic {
    http: reqwest::Client,
    url: String,
    token: String,
    stop: AtomicBool,
    answered: AtomicUsize,
    unavailable: AtomicUsize,
    /// The confirmed files with their bytes. None: the file was deleted.
    confirmed: Mutex<BTreeMap<String, Option<String>>>,
}

impl Traffic {
    fn start(server: &TestApp) -> (Arc<Traffic>, Vec<JoinHandle<()>>) {
        let traffic = Arc::new(Traffic {
            http: server.http.clone(),
            url: server.url.clone(),
            token: server.token("t", "u", Role::Operator),
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
            unavailable: AtomicUsize::new(0),
            confirmed: Mutex::default(),
        });
        let clients = (0..CLIENTS).map(|client| {
            let traffic = traffic.clone();
            tokio::spawn(async move {
                let mut n = client;
                while !traffic.stop.load(Ordering::SeqCst) {
                    traffic.one_file(n).await;
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

    /// Repeats the request until it is answered. Before that, only 503 is allowed.
    async fn retry(&self, request: impl Fn() -> RequestBuilder) -> (u16, Value) {
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

    async fn one_file(&self, n: usize) {
        let bytes = format!("cargo number {n}");
        let body = json!({ "fileName": format!("cargo-{n}"), "size": bytes.len() });
        let init = || {
            let request = self.request(Method::POST, "/api/v2/files/init");
            request.header("idempotency-key", format!("key-{n}")).json(&body)
        };
        let (status, grant) = self.retry(init).await;
        assert_eq!(status, 201, "{grant}");
        let upload = grant["uploadUrl"].as_str().expect("a URL");
        let (status, answer) = self.retry(|| self.http.put(upload).body(bytes.clone())).await;
        // An upload that was answered 503 may be stored.
        assert!(status == 200 || status == 412, "{status} {answer}");
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        let file = format!("/api/v2/files/{id}");
        let confirm = || self.request(Method::POST, &format!("{file}/confirm")).json(&json!({}));
        let (status, answer) = self.retry(confirm).await;
        assert_eq!((status, &answer["status"]), (200, &json!("ready")), "{answer}");
        self.confirmed.lock().await.insert(id.clone(), Some(bytes));
        if n.is_multiple_of(3) {
            let (status, answer) = self.retry(|| self.request(Method::DELETE, &file)).await;
            assert!(status == 204 || status == 404, "{status} {answer}");
            self.confirmed.lock().await.insert(id, None);
        }
    }

    async fn wait_for(&self, what: &str, more: usize, counter: impl Fn(&Traffic) -> &AtomicUsize) {
        let (before, deadline) =
            (counter(self).load(Ordering::SeqCst), Instant::now() + Duration::from_secs(120));
        while counter(self).load(Ordering::SeqCst) < before + more {
            assert!(Instant::now() < deadline, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_served(&self) {
        self.wait_for("clients are served", 10 * CLIENTS, |traffic| &traffic.answered).await;
    }

    async fn until_refused(&self) {
        self.wait_for("clients get 503", CLIENTS, |traffic| &traffic.unavailable).await;
    }
}

/// Old connections of the pool must not fail requests.
async fn many_requests_are_served(server: &TestApp) {
    let me = server.me();
    let inits = (0..AT_ONCE).map(|_| patiently(|| me.init("a", 1)));
    for answer in futures::future::join_all(inits).await {
        let grant = answer.expect(201);
        let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
        me.delete(&path).await.expect(204);
    }
}

async fn no_confirmed_file_is_lost(
    env: &TestEnv,
    server: &TestApp,
    traffic: &Traffic,
    clients: Vec<JoinHandle<()>>,
    supervisor: Supervisor,
) {
    traffic.stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("only answers and 503");
    }
    // Stop before the clock moves. Otherwise the leases of running work would expire.
    supervisor.stop().await;
    env.advance(3_660_000);
    // An upload whose row could not be read again has left an incoming file.
    env.age_incoming_uploads();
    server.settle().await;
    oracle::all_is_healed(env, server).await;
    let operator = server.operator();
    for (id, bytes) in traffic.confirmed.lock().await.iter() {
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
async fn a_database_restart_causes_only_503_answers() {
    let mut postgres = block_in_place(Postgres::start).expect("a separate server");
    let env = env(&postgres.create_database());
    let server = env.start().await;
    let supervisor = Supervisor::start(&server.app).await;
    let (traffic, clients) = Traffic::start(&server);
    for _ in 0..3 {
        traffic.until_served().await;
        block_in_place(|| postgres.kill()).expect("killed");
        block_in_place(|| postgres.start_again()).expect("started again");
        traffic.until_served().await;
        many_requests_are_served(&server).await;
    }
    no_confirmed_file_is_lost(&env, &server, &traffic, clients, supervisor).await;
}

struct Replicated {
    primary: Postgres,
    standby: Postgres,
    proxy: Proxy,
    url: String,
}

/// A primary whose commits wait for its standby, and a proxy that leads to one of them.
fn replicated() -> Replicated {
    let primary = Postgres::start().expect("a primary");
    let url = primary.create_database();
    primary.require_standby(true).expect("required");
    let standby = Postgres::start_standby_of(&primary).expect("a standby");
    let proxy = Proxy::to(("127.0.0.1", primary.port())).expect("a proxy");
    let url = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", proxy.addr().port()));
    assert!(url.contains(&proxy.addr().port().to_string()), "{url}");
    Replicated { primary, standby, proxy, url }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_loses_no_confirmed_file() {
    let mut postgres = block_in_place(replicated);
    let env = env(&postgres.url);
    let server = env.start().await;
    let supervisor = Supervisor::start(&server.app).await;
    let (traffic, clients) = Traffic::start(&server);
    traffic.until_served().await;
    block_in_place(|| postgres.primary.kill()).expect("killed");
    // The address may lead to the standby before its promotion.
    postgres.proxy.point_at(("127.0.0.1", postgres.standby.port())).expect("pointed");
    traffic.until_refused().await;
    block_in_place(|| postgres.standby.promote()).expect("promoted");
    traffic.until_served().await;
    many_requests_are_served(&server).await;
    no_confirmed_file_is_lost(&env, &server, &traffic, clients, supervisor).await;
}

/// The old primary still answers reads, but refuses writes. Its connections must not be used for reads either.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_primary_is_not_used() {
    let mut postgres = block_in_place(replicated);
    let env = env(&postgres.url);
    let server = env.start().await;
    let supervisor = Supervisor::start(&server.app).await;
    let (traffic, clients) = Traffic::start(&server);
    traffic.until_served().await;
    let demote =
        |statement| postgres.primary.psql(&postgres.primary.admin_url(), statement).expect("demoted");
    block_in_place(|| {
        demote("ALTER SYSTEM SET default_transaction_read_only = on");
        demote("SELECT pg_reload_conf()");
    });
    traffic.until_refused().await;
    block_in_place(|| postgres.standby.promote()).expect("promoted");
    postgres.proxy.point_at(("127.0.0.1", postgres.standby.port())).expect("pointed");
    traffic.until_served().await;
    many_requests_are_served(&server).await;
    no_confirmed_file_is_lost(&env, &server, &traffic, clients, supervisor).await;
}
