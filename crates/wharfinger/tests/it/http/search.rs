//! Chunks and search before any stage has made something to find: empty, and strict about what is asked.

use serde_json::{Value, json};

use crate::test_app::{Database, Ground};

#[tokio::test]
async fn a_file_has_no_chunks_and_nothing_is_found() {
    let ground = Ground::new(Database::Sqlite);
    let server = ground.start().await;
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
async fn a_wrong_question_is_refused_with_its_field_named() {
    let ground = Ground::new(Database::Sqlite);
    let server = ground.start().await;
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
        let words = problem["errors"][0]["problem"].as_str().expect("words");
        assert!(!words.contains("usize") && !words.contains("struct"), "{body}: {words}");
    }
}
