//! Health, readiness and metrics, and limits on requests without a token.

use serde_json::{Value, json};
use sqlx::Connection as _;

use super::connections::pass;
use crate::oracle;
use crate::test_app::{Answer, Database, METRICS, TestApp, TestEnv, on_each_database};
use wharfinger::core::Role;
use wharfinger_calls::faults::Faults;

async fn get(server: &TestApp, path: &str) -> Answer {
    Answer::read(server.http.get(format!("{}{path}", server.url)).send().await.expect("an answer")).await
}

fn backends(answer: &Value) -> Vec<(String, bool)> {
    let list = answer["backends"].as_array().expect("a list");
    list.iter()
        .map(|b| (b["name"].as_str().expect("a name").to_owned(), b["ok"].as_bool().expect("a boolean")))
        .collect()
}

async fn readiness_follows_the_backends(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    assert_eq!(get(&server, "/healthz").await.expect(200)["status"], "ok");
    let ready = get(&server, "/readyz").await.expect(200);
    assert_eq!(ready["status"], "ready");
    assert_eq!(backends(&ready), [("catalog".to_owned(), true), ("blobs".to_owned(), true)]);
    let kind = if database == Database::Sqlite { "sqlite" } else { "postgres" };
    assert_eq!(
        (&ready["backends"][0]["kind"], &ready["backends"][1]["kind"]),
        (&json!(kind), &json!("disk"))
    );

    let moved = env.folder().join("moved");
    std::fs::rename(env.blob_dir(), &moved).expect("the folder is moved");
    std::fs::write(env.blob_dir(), b"in the way").expect("a file in its place");
    get(&server, "/readyz").await.expect(200);
    env.advance(1_000);
    let unready = get(&server, "/readyz").await.expect(503);
    assert_eq!(unready["status"], "unavailable");
    assert_eq!(backends(&unready), [("catalog".to_owned(), true), ("blobs".to_owned(), false)]);
    let body = unready.to_string();
    assert!(!body.contains(env.folder().to_str().expect("UTF-8")), "the answer shows a path: {body}");
    get(&server, "/healthz").await.expect(200);

    std::fs::remove_file(env.blob_dir()).expect("the file is removed");
    std::fs::rename(&moved, env.blob_dir()).expect("the folder is restored");
    env.advance(1_000);
    assert_eq!(get(&server, "/readyz").await.expect(200)["status"], "ready");
    assert!(oracle::files_below(&env.blob_dir()).is_empty(), "the readiness check leaves no file");
    server.me().upload("a", b"abc").await;
    oracle::all_is_healed(&env, &server).await;
}

/// Requests without a token must not cause writes.
#[tokio::test]
async fn readiness_writes_nothing() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let modified = || {
        let of = |folder: &std::path::Path| {
            std::fs::metadata(folder).and_then(|meta| meta.modified()).expect("a time")
        };
        (of(&env.blob_dir()), of(&env.blob_dir().join(".incoming")))
    };
    let before = modified();
    for _ in 0..3 {
        env.advance(1_000);
        get(&server, "/readyz").await.expect(200);
    }
    assert_eq!(modified(), before);
}

/// Access without a token needs a loopback address and no proxy.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_need_an_operator_token() {
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_METRICS", "token")]);
    let server = env.start().await;
    get(&server, "/metrics").await.expect_problem(401, "unauthorized");
    for role in [Role::User, Role::Admin] {
        server.as_user("t", "u", role).get("/metrics").await.expect_problem(403, "forbidden");
    }
    assert_eq!(server.operator().get("/metrics").await.status, 200);
    let open = TestEnv::new(Database::Sqlite);
    let server = open.start().await;
    assert_eq!(get(&server, "/metrics").await.status, 200, "metrics are open on a loopback address");
    for header in ["forwarded", "x-forwarded-for"] {
        let request = server.http.get(format!("{}/metrics", server.url)).header(header, "for=1.2.3.4");
        assert_eq!(request.send().await.expect("an answer").status(), 401, "{header}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_can_have_a_separate_address() {
    let place = crate::cli::program::Place::new();
    let address = harness::free_address();
    let served = place.serve(&[("WHARFINGER_METRICS_LISTEN", &address)]);
    let status = async |url: String| reqwest::get(url).await.expect("an answer").status().as_u16();
    assert_eq!(status(format!("http://{address}/metrics")).await, 200);
    assert_eq!(status(format!("http://{address}/healthz")).await, 404);
    assert_eq!(status(format!("{}/metrics", served.url)).await, 401);
    assert!(served.terminate().success());
}

#[tokio::test]
async fn every_answer_has_security_headers() {
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_CORS_ORIGINS", "https://app.example")]);
    let server = env.start().await;
    for path in [
        "/",
        "/healthz",
        "/metrics",
        "/docs/",
        "/openapi.json",
        "/api/v2/files",
        "/nowhere",
        "/dashboard/style.css",
        "OPTIONS /api/v2/files",
        "OPTIONS /nowhere",
    ] {
        let (method, target) = path.split_once(' ').unwrap_or(("GET", path));
        let method = method.parse().expect("a method");
        let request = server.http.request(method, format!("{}{target}", server.url));
        // As a preflight request of another origin.
        let request =
            request.header("origin", "https://app.example").header("access-control-request-method", "POST");
        let answer = request.send().await.expect("an answer");
        let header =
            |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer", "{path}");
        assert!(!header("cache-control").is_empty(), "{path}");
        let policy = header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
    }
}

/// The request announces a body of 10 MB and sends no byte of it.
#[tokio::test]
async fn a_request_without_a_token_is_refused_before_its_body() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let mut stream =
        tokio::net::TcpStream::connect(server.url.trim_start_matches("http://")).await.expect("connected");
    let head = "POST /api/v2/batches HTTP/1.1\r\nhost: w\r\ncontent-type: application/json\r\ncontent-length: 10000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = [0; 512];
    let read = tokio::time::timeout(std::time::Duration::from_secs(20), stream.read(&mut answer)).await;
    let read = read.expect("an answer in time").expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 401"), "{}", String::from_utf8_lossy(&answer[..read]));
}

/// The time limit applies to a valid token too.
#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let token = server.me().token;
    let mut stream =
        tokio::net::TcpStream::connect(server.url.trim_start_matches("http://")).await.expect("connected");
    let head = format!(
        "POST /api/v2/files/init HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // Single bytes do not extend the limit.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        pass(Duration::from_secs(13)).await;
        let _ = stream.write_all(b" ").await;
    }
    let mut answer = [0; 512];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut answer)).await;
    let read = read.expect("an answer in time").expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer[..read]));
}

/// All pooled connections wait for a locked table.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_does_not_wait_for_busy_connections() {
    let env = TestEnv::new(Database::Postgres);
    let server = env.start().await;
    let (_, url) = env.environment().find(|(name, _)| *name == "WHARFINGER_DATABASE_URL").expect("a URL");
    let mut locker = sqlx::PgConnection::connect(url).await.expect("a connection");
    sqlx::raw_sql("BEGIN; LOCK TABLE wharfinger.files IN ACCESS EXCLUSIVE MODE")
        .execute(&mut locker)
        .await
        .expect("locked");
    let me = server.me();
    let lists = futures::future::join_all((0..60).map(|_| me.get("/api/v2/files")));
    let readiness = async {
        let waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let mut before = -1;
        loop {
            let now = env.scalar(waiting).await;
            if now > 0 && now == before {
                break;
            }
            before = now;
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        let ready = get(&server, "/readyz").await;
        sqlx::raw_sql("ROLLBACK").execute(&mut locker).await.expect("unlocked");
        ready
    };
    let (answers, ready) = tokio::join!(lists, readiness);
    assert_eq!(ready.expect(200)["status"], "ready");
    assert!(answers.iter().any(|answer| answer.status == 200));
}

/// All read connections of SQLite are in use, and none is returned.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_does_not_wait_for_busy_readers() {
    const READERS: usize = 8;
    let faults = Faults::block_first_at("query", READERS as u32);
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start_with(faults.clone()).await;
    let me = server.me();
    let lists = futures::future::join_all((0..READERS + 1).map(|_| me.get("/api/v2/files")));
    let readiness = async {
        faults.reached().await;
        let ready = tokio::time::timeout(std::time::Duration::from_secs(5), get(&server, "/readyz")).await;
        faults.release();
        ready.expect("an answer in time")
    };
    let (answers, ready) = tokio::join!(lists, readiness);
    assert_eq!(ready.expect(200)["status"], "ready");
    assert!(answers.iter().all(|answer| answer.status == 200));
}

/// The value of the sample whose line starts with `start`.
fn sample(metrics: &str, start: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with(start))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// All tests share one recorder, so this test has its own tenant.
#[tokio::test]
async fn the_metrics_of_the_contract_are_exposed() {
    let settings = [("ORPHAN_DELETE_LIMIT_PERCENT", "0"), ("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = TestEnv::with(Database::Sqlite, &settings);
    wharfinger::telemetry::prometheus();
    let server = env.start().await;
    let tenant = "tenant-of-the-metrics-test";
    let me = server.as_user(tenant, "u", Role::User);
    let kept = me.upload("kept", b"kept").await;
    let deleted = me.upload("deleted", b"four").await;
    let object = env.blob_dir().join("uploads").join(tenant).join("u").join(&deleted);
    std::fs::remove_file(&object).expect("the object was there");
    std::fs::create_dir_all(object.join("x")).expect("a folder in its place");
    me.delete(&format!("/api/v2/files/{deleted}")).await.expect(204);
    me.init("unconfirmed", 7).await.expect(201);
    // Its owner gives this one up, so it is no orphan.
    let batch = me.post("/api/v2/batches", json!({ "files": [{ "fileName": "given up", "size": 5 }] }));
    let batch = batch.await.expect(201);
    let cancel = format!("/api/v2/batches/{}/cancel", batch["batchId"].as_str().expect("an id"));
    me.post(&cancel, json!({})).await.expect(200);
    env.advance(3_660_000);
    server.settle().await;
    let of_kept = env.blob_dir().join("uploads").join(tenant).join("u").join(&kept);
    std::fs::rename(&of_kept, of_kept.with_file_name("01977420-dc00-7639-b4cc-0216978d32b7"))
        .expect("renamed: one object is missing, one is an orphan");
    let scanned = server.scan_orphans().await;
    assert_eq!((scanned.deleted, scanned.missing), (1, 1));

    let _lock = METRICS.lock().await;
    let answer = server.http.get(format!("{}/metrics", server.url)).send().await.expect("an answer");
    assert!(answer.headers()["content-type"].to_str().expect("text").starts_with("text/plain"));
    let text = answer.text().await.expect("text");
    let of_tenant = |name: &str| sample(&text, &format!("{name}{{tenant_id=\"{tenant}\"}}"));
    assert_eq!(of_tenant("resource_orphaned_files_cleaned_total"), Some(1.0), "{text}");
    assert_eq!(of_tenant("resource_quota_refunded_bytes_total"), Some(7.0));
    let failures = sample(&text, "resource_cleanup_failures_total{error_type=\"refused\"}");
    assert!(failures.is_some_and(|count| count >= 1.0), "{text}");
    assert_eq!(sample(&text, "file_pipeline_status{status=\"ready\"}"), Some(1.0));
    assert_eq!(sample(&text, "file_pipeline_status{status=\"registered\"}"), Some(0.0));
    assert!(!text.contains("file_pipeline_status{status=\"deleted\"}"), "deleted files are not counted");
    assert_eq!(
        (sample(&text, "wharfinger_missing_blobs "), sample(&text, "wharfinger_orphan_blobs ")),
        (Some(1.0), Some(0.0))
    );
    assert!(sample(&text, "orphan_blobs_deleted_total").is_some_and(|count| count >= 1.0), "{text}");
    assert_eq!(sample(&text, "pending_cleanups{state=\"pending\"}"), Some(1.0));
    assert_eq!(sample(&text, "pending_cleanups{state=\"exhausted\"}"), Some(0.0));
    for sweep in ["pending-cleanups", "upload-window"] {
        let at = sample(&text, &format!("sweep_last_success_timestamp_seconds{{sweep=\"{sweep}\"}}"));
        assert!(at.is_some(), "{sweep} in {text}");
    }
    let routes: Vec<&str> =
        text.lines().filter(|line| line.starts_with("http_request_duration_seconds_count{")).collect();
    let counted = |route: &str, method: &str, status: &str| {
        routes.iter().any(|line| {
            line.contains(&format!("route=\"{route}\""))
                && line.contains(&format!("method=\"{method}\""))
                && line.contains(&format!("status=\"{status}\""))
        })
    };
    assert!(counted("/api/v2/files/init", "POST", "201"), "{routes:?}");
    assert!(counted("/api/v2/files/{id}", "DELETE", "204"), "{routes:?}");
    assert!(counted("/blobs/{*key}", "PUT", "200"), "{routes:?}");
    assert!(text.contains("http_request_duration_seconds_bucket{"), "a histogram");
    assert!(!text.contains(&kept) && !text.contains(&deleted), "no label contains a file id");
}

on_each_database!(readiness_follows_the_backends);
