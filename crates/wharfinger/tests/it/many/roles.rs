//! Processes with different roles: together they do all work, and each does only the work of its roles.

use serde_json::json;
use wharfinger::worker::Supervisor;

use crate::cli::program::Place;
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv, on_each_database};

/// Once a year, so that no schedule runs in a test.
const NEVER: &str = "0 0 1 1 *";
const WINDOW_AND_GRACE_MS: i64 = 3_660_000;

#[test]
fn an_unknown_role_is_wrong_usage() {
    let place = Place::new();
    place.run(&["serve", "--role", "api,cook"]).expect_usage("`cook`");
    place.run(&["serve", "--role", ""]).expect_usage("--role");
    place.run(&["serve", "--role", "worker,,api"]).expect_usage("api, worker, sweeper, ingest");
    assert!(!place.data().exists(), "nothing was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_the_api_role_serves_only_health_and_metrics() {
    let place = Place::new();
    let served = place.serve_as("worker,ingest", &[]);
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let get = async |path: &str| {
        let answer = http.get(format!("{}{path}", served.url)).send().await.expect("an answer");
        Answer::read(answer).await
    };
    get("/healthz").await.expect(200);
    get("/metrics").await.expect(200);
    assert_eq!(get("/readyz").await.expect(200)["roles"], json!(["worker", "ingest"]));
    for path in ["/", "/docs/", "/openapi.json", "/api/v2/files", "/blobs/uploads/t/u/x", "/nope"] {
        let problem = get(path).await.expect_problem(404, "not_found");
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.contains("`api`") && detail.contains("worker, ingest"), "{path}: {detail}");
    }
    let posted = http.post(format!("{}/readyz", served.url)).send().await.expect("an answer");
    Answer::read(posted).await.expect_problem(405, "method_not_allowed");
    assert!(served.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_roles_are_the_default() {
    let place = Place::new();
    let served = place.serve(&[]);
    let answer = reqwest::get(format!("{}/readyz", served.url)).await.expect("an answer");
    let ready = Answer::read(answer).await.expect(200);
    assert_eq!(ready["roles"], json!(["api", "worker", "sweeper", "ingest"]));
    assert!(served.terminate().success());
}

/// Leaves an upload unconfirmed on an `api` process. The other processes must reclaim it and delete its bytes.
async fn reclaimed_by(env: &TestEnv, others: &[TestApp], lose_the_check: bool) {
    let api = env.start_as("api").await;
    let mut supervisors = vec![Supervisor::start(&api.app).await];
    for other in others {
        supervisors.push(Supervisor::start(&other.app).await);
    }
    let me = api.me();
    let grant = me.init("a", 3).await.expect(201);
    api.put_bytes(&grant, b"abc").await.expect(200);
    if lose_the_check {
        env.execute("DELETE FROM jobs").await;
    }
    env.advance(WINDOW_AND_GRACE_MS);
    let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
    let reclaimed = async {
        while me.get(&path).await.status != 410 || !oracle::files_below(&env.blob_dir()).is_empty() {
            // The `api` process cannot wake the other processes. They poll after some time.
            env.advance(100);
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), reclaimed).await.expect("reclaimed");
    for supervisor in supervisors {
        supervisor.stop().await;
    }
    oracle::all_is_healed(env, &api).await;
}

async fn a_worker_does_the_checks_and_deletes_of_an_api_process(database: Database) {
    let settings = [("UPLOAD_WINDOW_SCHEDULE", NEVER), ("CLEANUP_SWEEP_SCHEDULE", NEVER)];
    let env = TestEnv::with(database, &settings);
    let worker = env.start_as("worker").await;
    reclaimed_by(&env, &[worker], false).await;
}

async fn a_sweeper_reclaims_uploads_without_a_worker(database: Database) {
    let settings = [("UPLOAD_WINDOW_SCHEDULE", "* * * * * *"), ("CLEANUP_SWEEP_SCHEDULE", "* * * * * *")];
    let env = TestEnv::with(database, &settings);
    let sweeper = env.start_as("sweeper").await;
    reclaimed_by(&env, &[sweeper], true).await;
}

on_each_database!(
    a_worker_does_the_checks_and_deletes_of_an_api_process,
    a_sweeper_reclaims_uploads_without_a_worker
);
