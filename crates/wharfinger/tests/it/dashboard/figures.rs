//! The dashboard calls: each shows the figures of the caller's scope and no others.

use serde_json::{Value, json};
use wharfinger::core::Role;

use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const FRESH: (&str, &str) = ("DASHBOARD_CACHE_TTL", "0");

async fn dashboard(client: &Client<'_>) -> Value {
    client.get("/api/v2/uploads/dashboard").await.expect(200)
}

/// All fields are in the answer when there are no files yet.
async fn an_empty_scope_has_every_figure(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let expected = json!({
        "statusDistribution": { "registered": 0, "uploaded": 0, "queued": 0, "scanning": 0, "extracting": 0,
            "chunking": 0, "embedding": 0, "ready": 0, "failed": 0, "quarantined": 0 },
        "activeBatches": 0, "dlqDepth": 0, "stuckFiles": 0,
        "queueDepths": { "file-scan": 0, "file-extract": 0, "file-chunk": 0, "file-embed": 0 },
        "recentErrors": [],
        "metrics": { "averageProcessingTime": 0, "throughput24h": 0, "failureRate24h": 0.0 },
    });
    for client in [server.me(), server.operator(), server.as_user("t", "boss", Role::Admin)] {
        assert_eq!(dashboard(&client).await, expected);
    }
    let trend = server.me().get("/api/v2/uploads/trend").await.expect(200);
    let buckets = trend["buckets"].as_array().expect("a list");
    assert_eq!((trend["bucketMs"].as_i64(), buckets.len()), (Some(900_000), 96));
    assert!(buckets.iter().all(|bucket| bucket["ready"] == 0 && bucket["failed"] == 0));
}

async fn worker(server: &TestApp) -> Client<'_> {
    server.as_user("ops", "w", Role::Worker)
}

async fn leased(server: &TestApp, stage: &str) -> (String, Value) {
    let asked = json!({ "stages": [stage], "max": 1, "leaseMs": 60_000 });
    let mut jobs = worker(server).await.post("/api/v2/workers/lease", asked).await.expect(200);
    let job = jobs["jobs"][0].take();
    (job["jobId"].as_str().expect("a job").to_owned(), job["leaseToken"].clone())
}

/// Files with different outcomes: each figure counts the right ones.
async fn figures_follow_every_file(database: Database) {
    let settings = [FRESH, ("PIPELINE_BUILTIN_STAGES", "")];
    let env = TestEnv::with_stages(database, "scan,extract", &settings);
    let server = env.start().await;
    let me = server.me();
    for name in ["a", "b", "c", "d"] {
        me.enqueue(name, b"bytes").await;
    }
    me.init("never uploaded", 7).await.expect(201);
    me.post("/api/v2/batches", json!({ "files": [] })).await.expect(201);
    let shown = dashboard(&me).await;
    assert_eq!(
        shown["queueDepths"],
        json!({ "file-scan": 4, "file-extract": 0, "file-chunk": 0, "file-embed": 0 })
    );
    assert_eq!((&shown["statusDistribution"]["registered"], &shown["activeBatches"]), (&json!(1), &json!(1)));

    env.advance(1_500);
    // One completes its stage, one fails, one is infected, one is only leased.
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(leased(&server, "scan").await);
    }
    let client = worker(&server).await;
    let end = async |(job, token): &(String, Value), how: &str, mut body: Value| {
        body["leaseToken"] = token.clone();
        client.post(&format!("/api/v2/workers/jobs/{job}/{how}"), body).await.expect(200);
    };
    end(&jobs[0], "complete", json!({ "output": { "verdict": "clean" } })).await;
    end(&jobs[1], "fail", json!({ "error": "file is damaged", "retryable": false })).await;
    end(&jobs[2], "complete", json!({ "output": { "verdict": "infected", "signature": "Rats" } })).await;
    let shown = dashboard(&me).await;
    assert_eq!(shown["queueDepths"]["file-extract"], 1);
    assert_eq!((&shown["statusDistribution"]["scanning"], &shown["dlqDepth"]), (&json!(1), &json!(1)));
    assert_eq!(shown["statusDistribution"]["quarantined"], 1);
    let errors = shown["recentErrors"].as_array().expect("a list");
    assert_eq!(errors.len(), 2);
    assert!(
        errors.iter().any(|error| error["error"] == "file is damaged" && error["fileId"].is_string()),
        "{errors:?}"
    );
    assert_eq!(shown["metrics"]["failureRate24h"], 100.0);

    env.advance(500);
    let last = leased(&server, "extract").await;
    end(&last, "complete", json!({ "output": { "text": "words" } })).await;
    let shown = dashboard(&me).await;
    assert_eq!(
        shown["metrics"],
        json!({ "averageProcessingTime": 2_000, "throughput24h": 1, "failureRate24h": 50.0 })
    );
    let trend = me.get("/api/v2/uploads/trend").await.expect(200);
    let now = trend["buckets"].as_array().and_then(|buckets| buckets.last()).expect("the last one").clone();
    assert_eq!((&now["ready"], &now["failed"], &now["quarantined"]), (&json!(1), &json!(1), &json!(1)));

    // A day later they no longer count, and the leased file is stuck.
    env.advance(86_400_000);
    let shown = dashboard(&me).await;
    assert_eq!(shown["metrics"]["throughput24h"], 0);
    assert_eq!(shown["stuckFiles"], 1);
    assert_eq!(me.get("/api/v2/uploads/stuck").await.expect(200)["total"], 1);
    oracle::catalog_is_sound(&server).await;
}

/// An operator can also select one tenant.
async fn users_see_only_their_own_figures(database: Database) {
    let env = TestEnv::with(database, &[FRESH]);
    let server = env.start().await;
    let of = |tenant, user, role| server.as_user(tenant, user, role);
    of("t", "ann", Role::User).upload("a", b"a").await;
    of("t", "ben", Role::User).upload("b", b"b").await;
    of("s", "ann", Role::User).upload("c", b"c").await;
    let ready = async |client: Client<'_>, query: &str| {
        let shown = client.get(&format!("/api/v2/uploads/dashboard{query}")).await.expect(200);
        let trend = client.get(&format!("/api/v2/uploads/trend{query}")).await.expect(200);
        let sum: u64 = trend["buckets"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|bucket| bucket["ready"].as_u64())
            .sum();
        assert_eq!(shown["metrics"]["throughput24h"], sum, "both calls count the same files");
        shown["statusDistribution"]["ready"].as_u64().expect("a number")
    };
    assert_eq!(ready(of("t", "ann", Role::User), "").await, 1);
    assert_eq!(
        ready(of("t", "ann", Role::User), "?tenant=t").await,
        1,
        "the own tenant shows no other users"
    );
    assert_eq!(ready(of("t", "boss", Role::User), "").await, 0);
    assert_eq!(ready(of("t", "boss", Role::Admin), "").await, 2);
    assert_eq!(ready(server.operator(), "").await, 3);
    assert_eq!(ready(server.operator(), "?tenant=s").await, 1);
    assert_eq!(ready(server.operator(), "?tenant=unknown").await, 0);
    for path in ["dashboard", "trend", "stuck", "orphans"] {
        for role in [Role::User, Role::Admin] {
            let path = format!("/api/v2/uploads/{path}?tenant=s");
            of("t", "ann", role).get(&path).await.expect_problem(403, "forbidden");
        }
        let worker = of("t", "w", Role::Worker);
        worker.get(&format!("/api/v2/uploads/{path}")).await.expect_problem(403, "forbidden");
    }
    for path in ["/api/v2/dlq", "/api/v1/maintenance/cleanup/status", "/api/v1/maintenance/cleanup/pending"] {
        of("t", "ann", Role::Admin).get(&format!("{path}?tenant=s")).await.expect_problem(403, "forbidden");
        server.operator().get(&format!("{path}?tenant=s")).await.expect(200);
    }
    let all = of("t", "ann", Role::User);
    all.post("/api/v2/uploads/stuck/retry-all?tenant=s", json!({})).await.expect_problem(403, "forbidden");
    server.operator().get("/api/v2/uploads/dashboard?tenant=").await.expect_problem(400, "invalid_request");
    server.operator().get("/api/v2/uploads/dashboard?who=x").await.expect_problem(400, "invalid_request");
}

async fn tenants_and_the_spool_are_for_operators(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    server.me().upload("a", b"four").await;
    server.as_user("s", "u", Role::User).init("b", 5).await.expect(201);
    let operator = server.operator();
    let limit = 10u64 << 30;
    let page = operator.get("/api/v2/tenants?limit=1").await.expect(200);
    let of_s = json!({ "tenant": "s", "used": 5, "limit": limit, "reserved": 5 });
    assert_eq!(page, json!({ "tenants": [of_s], "nextCursor": "s" }));
    let page = operator.get("/api/v2/tenants?cursor=s").await.expect(200);
    let of_t = json!({ "tenant": "t", "used": 4, "limit": limit, "reserved": 0 });
    assert_eq!(page, json!({ "tenants": [of_t], "nextCursor": null }));
    let spool = operator.get("/api/v2/maintenance/spool").await.expect(200);
    assert!(spool["instance"].is_string() && spool.get("spool").is_some(), "{spool}");
    for path in ["/api/v2/tenants", "/api/v2/maintenance/spool"] {
        for role in [Role::User, Role::Admin] {
            server.as_user("t", "u", role).get(path).await.expect_problem(403, "forbidden");
        }
    }
}

on_each_database!(
    an_empty_scope_has_every_figure,
    figures_follow_every_file,
    users_see_only_their_own_figures,
    tenants_and_the_spool_are_for_operators,
);
