//! Clients that hang up during every kind of request: at any byte, or after the last byte without waiting for the
//! answer.

use sqlx::{Connection as _, Executor as _};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv};

const CLIENTS: usize = 1_000;
const BYTES: &[u8] = &[7; 2_000];

struct Kind {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    token: bool,
}

fn request(server: &TestApp, kind: &Kind) -> Vec<u8> {
    let host = server.url.trim_start_matches("http://");
    let token =
        if kind.token { format!("authorization: Bearer {}\r\n", server.me().token) } else { String::new() };
    let head = format!(
        "{} {} HTTP/1.1\r\nhost: {host}\r\n{token}content-length: {}\r\n\r\n",
        kind.method,
        kind.path,
        kind.body.len()
    );
    [head.as_bytes(), &kind.body].concat()
}

/// Registers a new file. Returns its id and upload path.
async fn registered(server: &TestApp) -> (String, String) {
    let grant = server.me().init("cargo", BYTES.len() as u64).await.expect(201);
    let url = grant["uploadUrl"].as_str().expect("a URL");
    let path = url.strip_prefix(&server.url).expect("an address of this server").to_owned();
    (grant["fileId"].as_str().expect("an id").to_owned(), path)
}

async fn kind(server: &TestApp, n: usize) -> Kind {
    let call = |method, path: String, body: &str| Kind { method, path, body: body.into(), token: true };
    let file = |id: &str, rest: &str| format!("/api/v2/files/{id}{rest}");
    match n % 8 {
        0 | 1 => call("POST", "/api/v2/files/init".into(), r#"{"fileName":"half","size":1000}"#),
        2 => {
            let (_, path) = registered(server).await;
            Kind { method: "PUT", path, body: BYTES.to_vec(), token: false }
        }
        3 => {
            let id =
                server.me().init("cargo", 3).await.expect(201)["fileId"].as_str().expect("id").to_owned();
            call("POST", file(&id, "/url"), "{}")
        }
        4 => {
            let grant = server.me().init("cargo", 3).await.expect(201);
            server.put_bytes(&grant, b"abc").await.expect(200);
            call("POST", file(grant["fileId"].as_str().expect("id"), "/confirm"), "{}")
        }
        5 => {
            let id = server.me().upload("cargo", b"abc").await;
            call("DELETE", file(&id, ""), "")
        }
        6 => {
            let id = server.me().upload("cargo", b"abc").await;
            call("GET", file(&id, "/download"), "")
        }
        _ => call("GET", "/api/v2/files".into(), ""),
    }
}

async fn hang_up(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    for n in 0..CLIENTS {
        let bytes = request(&server, &kind(&server, n).await);
        // Half of the clients send the whole request. The others stop at different bytes.
        let sent = if n % 2 == 0 { bytes.len() } else { (n * 7_919) % bytes.len() };
        let address = server.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(&bytes[..sent]).await.expect("the request is sent");
        drop(stream);
    }
    server.crash().await;

    let server = env.start().await;
    oracle::catalog_is_sound(&server).await;
    env.age_incoming_uploads();
    env.advance(2 * 3_600_000);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_hang_up_on_sqlite() {
    hang_up(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_hang_up_on_postgres() {
    hang_up(Database::Postgres).await;
}

/// The request waits for a lock in the middle of its transaction while its client hangs up.
#[tokio::test(flavor = "multi_thread")]
async fn a_started_request_completes_after_its_client_hangs_up() {
    let env = TestEnv::new(Database::Postgres);
    let server = env.start().await;
    let file = server.me().upload("cargo", b"abc").await;
    let (_, url) = env.environment().find(|(name, _)| *name == "WHARFINGER_DATABASE_URL").expect("a URL");
    let mut holder = sqlx::PgConnection::connect(url).await.expect("a connection");
    let mut watcher = sqlx::PgConnection::connect(url).await.expect("a connection");
    holder
        .execute("BEGIN; UPDATE quotas SET used_bytes = used_bytes")
        .await
        .expect("the quota row is locked");

    let delete =
        Kind { method: "DELETE", path: format!("/api/v2/files/{file}"), body: Vec::new(), token: true };
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(&request(&server, &delete)).await.expect("the request is sent");
    while lock_waiters(&mut watcher).await == 0 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    // Long enough for the server to notice that its client has hung up.
    for _ in 0..50 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert_eq!(lock_waiters(&mut watcher).await, 1, "the request was cancelled");
    }
    holder.execute("ROLLBACK").await.expect("the quota row is unlocked");
    server.app.core.verbs.close();
    server.app.core.verbs.wait().await;
    server.me().get(&format!("/api/v2/files/{file}")).await.expect_problem(404, "not_found");
    oracle::catalog_is_sound(&server).await;
}

/// How many transactions of this database wait for a lock.
async fn lock_waiters(watcher: &mut sqlx::PgConnection) -> i64 {
    // The wait event is no reliable sign: it ends for a moment at each check for a deadlock.
    let sql = "SELECT COUNT(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid) \
               WHERE datname = current_database() AND NOT granted";
    sqlx::query_scalar(sql).fetch_one(watcher).await.expect("a number")
}
