//! Chunks and search: empty results, input checks, and limits on concurrent searches.

use std::net::TcpListener;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use wharfinger::core::Role;
use wharfinger_calls::faults::Faults;

use crate::test_app::{Client, Database, TestEnv};

#[tokio::test]
async fn a_file_without_stages_has_no_chunks_and_no_hits() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let file = me.upload("a.txt", b"harbour").await;
    let chunks = me.get(&format!("/api/v2/files/{file}/chunks?limit=10")).await.expect(200);
    assert_eq!(chunks, json!({ "chunks": [], "nextCursor": null }));
    let found = me.post("/api/v2/search", json!({ "query": "harbour", "limit": 5 })).await.expect(200);
    assert_eq!(found, json!({ "hits": [] }));
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    me.get(&format!("/api/v2/files/{file}/chunks")).await.expect_problem(404, "not_found");
}

#[tokio::test]
async fn an_invalid_search_is_refused_and_its_field_is_named() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    for (body, field) in [
        (json!({}), "query"),
        (json!({ "query": "" }), "query"),
        (json!({ "query": " " }), "query"),
        (json!({ "query": 7 }), "query"),
        (json!({ "query": "x", "limit": 0 }), "limit"),
        (json!({ "query": "x", "limit": 1_001 }), "limit"),
        (json!({ "query": "x", "limit": "5" }), "limit"),
        (json!({ "query": "x", "tenant": "other" }), "tenant"),
        (Value::Null, "body"),
        (json!(["x", 5]), "body"),
    ] {
        let problem = me.post("/api/v2/search", body.clone()).await.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
        let message = problem["errors"][0]["problem"].as_str().expect("a text");
        assert!(!message.contains("usize") && !message.contains("struct"), "{body}: {message}");
    }
}

/// The limit is per user, so one user cannot block the searches of others.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_searches_are_limited_and_end_with_their_requests() {
    // An endpoint that accepts connections and never answers.
    let endpoint = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/v1", endpoint.local_addr().expect("bound"));
    let settings = [("EMBEDDINGS_URL", url.as_str()), ("EMBEDDINGS_MODEL", "m")];
    let env = TestEnv::with_stages(Database::Sqlite, "extract,chunk,embed", &settings);
    let server = env.start().await;
    let search = |client: &Client<'_>| {
        let request = client.request(Method::POST, "/api/v2/search").json(&json!({ "query": "coffee" }));
        tokio::spawn(async move { request.send().await.map(|answer| answer.status().as_u16()) })
    };
    let me = server.me();
    let (first, second) = (search(&me), search(&me));
    while server.app.pipeline.searches.running() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let third = me.post("/api/v2/search", json!({ "query": "tea" })).await;
    assert_eq!((third.status.as_u16(), third.code()), (429, "rate_limited"));
    let other = search(&server.as_user("t", "another", Role::User));
    while server.app.pipeline.searches.running() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    other.abort();
    // An aborted request ends its search, although the endpoint has not answered.
    first.abort();
    second.abort();
    while server.app.pipeline.searches.running() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Without its request, nothing else would end the read of the vectors.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_reads_vectors_ends_with_its_request() {
    let faults = Faults::block_at("query");
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start_with(faults.clone()).await;
    // An operator has no request rate, so the first query is the one for the vectors.
    let request =
        server.operator().request(Method::POST, "/api/v2/search").json(&json!({ "query": "coffee" }));
    let running = tokio::spawn(request.send());
    faults.reached().await;
    assert_eq!(server.app.pipeline.searches.running(), 1);
    running.abort();
    for _ in 0..2_000 {
        if server.app.pipeline.searches.running() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the search still runs without its request");
}
