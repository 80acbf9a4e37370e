//! Search in the user's own chunks, with and without pgvector. Both give the same answers.

use serde_json::{Value, json};
use wharfinger::core::Role;
use wharfinger::pipeline::remote::EXTERNAL_MODEL;

use super::ALL;
use crate::cli::program::Place;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const SMALL_CHUNKS: [(&str, &str); 2] = [("CHUNK_SIZE", "60"), ("CHUNK_OVERLAP", "0")];
/// Counts the vectors that pgvector does not compare.
const NOT_COPIED: &str = "SELECT COUNT(*) FROM chunks WHERE vector IS NOT NULL AND embedding IS NULL";

async fn found(client: &Client<'_>, query: &str, limit: usize) -> Vec<Value> {
    let answer = client.post("/api/v2/search", json!({ "query": query, "limit": limit })).await.expect(200);
    answer["hits"].as_array().expect("a list").clone()
}

async fn the_best_own_chunk_is_found(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &SMALL_CHUNKS);
    let server = env.start().await;
    let me = server.me();
    let coffee = "Coffee from Santos is stored in warehouse seven.\n\nThe crane is repaired on Tuesdays.\n";
    let file = me.enqueue("coffee.txt", coffee.as_bytes()).await;
    me.enqueue("tea.txt", b"Tea from Assam is stored in warehouse nine.").await;
    let other = server.as_user("t", "other", Role::User);
    let theirs = other.enqueue("secret.txt", b"Coffee from Santos is mine alone.").await;
    assert_eq!(found(&me, "coffee from Santos", 5).await, Vec::<Value>::new(), "nothing is ready yet");
    server.settle().await;

    let hits = found(&me, "coffee from Santos", 5).await;
    assert_eq!((&hits[0]["fileId"], &hits[0]["fileName"]), (&json!(file), &json!("coffee.txt")));
    assert!(hits[0]["text"].as_str().expect("a text").contains("Coffee from Santos"));
    assert_eq!(hits[0]["ordinal"], 0);
    let scores: Vec<f64> = hits.iter().map(|hit| hit["score"].as_f64().expect("a score")).collect();
    assert!(scores.is_sorted_by(|one, other| one >= other) && scores[0] <= 1.000_01, "{scores:?}");
    assert!(hits.iter().all(|hit| hit["fileId"] != theirs.as_str()), "a chunk of another user: {hits:?}");
    let same_name = server.as_user("another-tenant", "u", Role::User);
    assert_eq!(found(&same_name, "coffee from Santos", 5).await, Vec::<Value>::new());
    assert_eq!(found(&other, "coffee from Santos", 5).await.len(), 1);
    assert_eq!(found(&me, "coffee from Santos", 1).await.len(), 1);
    assert_eq!(found(&me, "crane repaired", 1).await[0]["ordinal"], 1);
    // An operator may read all files, but finds only its own.
    assert_eq!(found(&server.operator(), "coffee from Santos", 5).await, Vec::<Value>::new());

    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    assert!(found(&me, "coffee from Santos", 5).await.iter().all(|hit| hit["fileId"] != file.as_str()));
}

const GOODS: [&str; 6] = ["Coffee", "Tea", "Cocoa", "Pepper", "Copper", "Timber"];

/// Files with different chunks and some equal ones. Each file has another age, because equal scores are ordered by age.
async fn enqueue_files(env: &TestEnv, me: &Client<'_>) {
    for (n, cargo) in GOODS.into_iter().enumerate() {
        let lines: Vec<String> = (0..8)
            .map(|line| format!("{cargo} lies in warehouse {} since day {}.", line % 5, n * line % 7))
            .collect();
        me.enqueue(&format!("{n}.txt"), lines.join("\n\n").as_bytes()).await;
        env.advance(1);
    }
}

/// The hits of some queries, without file ids.
async fn answers(me: &Client<'_>) -> Vec<Value> {
    let mut answers = Vec::new();
    for query in ["coffee", "warehouse 3", "tea since day 5", "timber lies in warehouse", "nothing of this"] {
        for limit in [1, 5, 40] {
            let hits = found(me, query, limit).await;
            let shown =
                hits.iter().map(|hit| json!([hit["fileName"], hit["ordinal"], hit["text"], hit["score"]]));
            answers.push(json!({ "query": query, "limit": limit, "hits": shown.collect::<Vec<_>>() }));
        }
    }
    answers
}

/// The database returns only the nearest vector. Without pgvector, this process would read all vectors.
async fn is_compared_by_the_database(server: &TestApp) {
    let scope = wharfinger_catalog::Scope::All;
    let query = server.app.pipeline.embedder.embed(vec!["coffee".into()]).await.expect("a vector").remove(0);
    let mut candidates = server.app.core.catalog.candidates(
        scope,
        [server.app.pipeline.embedder.model(), EXTERNAL_MODEL],
        &query,
        1,
    );
    let mut seen = 0;
    while let Some(page) = candidates.next_page().await.expect("read") {
        seen += page.len();
    }
    assert_eq!(seen, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_same_with_and_without_pgvector() {
    let mut all = Vec::new();
    for database in [Database::Sqlite, Database::Postgres, Database::Pgvector] {
        let env = TestEnv::with_stages(database, ALL, &SMALL_CHUNKS);
        let server = env.start().await;
        enqueue_files(&env, &server.me()).await;
        server.settle().await;
        all.push(answers(&server.me()).await);
        if database == Database::Pgvector {
            assert_eq!(env.scalar(NOT_COPIED).await, 0);
            is_compared_by_the_database(&server).await;
        }
    }
    assert!(all[0].iter().any(|answer| answer["hits"].as_array().is_some_and(|hits| hits.len() > 20)));
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pgvector_can_be_installed_and_removed() {
    let env = TestEnv::with_stages(Database::Pgvector, ALL, &SMALL_CHUNKS);
    env.execute("DROP EXTENSION vector").await;
    let server = env.start().await;
    enqueue_files(&env, &server.me()).await;
    server.settle().await;
    let expected = answers(&server.me()).await;

    env.execute("CREATE EXTENSION vector").await;
    assert_eq!(answers(&server.me()).await, expected, "a running server does not use it yet");
    server.crash().await;
    let server = env.start().await;
    assert_eq!(env.scalar(NOT_COPIED).await, 48);
    assert_eq!(answers(&server.me()).await, expected, "found before they are copied");
    server.settle().await;
    assert_eq!(env.scalar(NOT_COPIED).await, 0);
    is_compared_by_the_database(&server).await;
    assert_eq!(answers(&server.me()).await, expected, "found by the database");

    env.execute("DROP EXTENSION vector CASCADE").await;
    assert_eq!(answers(&server.me()).await, expected, "found after the extension was dropped");
    let late = server.me().enqueue("late.txt", b"Amber lies in warehouse nine.").await;
    server.settle().await;
    assert_eq!(found(&server.me(), "amber", 1).await[0]["fileId"], late.as_str());
    server.crash().await;
    let server = env.start().await;
    assert_eq!(found(&server.me(), "amber", 1).await[0]["fileId"], late.as_str());
}

/// Vectors of an external worker can be shorter, longer, all zeros, or too long for pgvector.
#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_other_models_do_not_break_pgvector() {
    let builtin = ("PIPELINE_BUILTIN_STAGES", "scan,extract,chunk");
    let env = TestEnv::with_stages(Database::Pgvector, ALL, &[builtin]);
    let server = env.start().await;
    let worker = server.as_user("ops", "w", Role::Worker);
    for vector in [vec![1.0; 2], vec![1.0; 300], vec![0.0; 256], vec![1.0; 16_001]] {
        let file = server.me().enqueue("theirs.txt", b"Coffee from Santos.").await;
        server.settle().await;
        let lease =
            worker.post("/api/v2/workers/lease", json!({ "stages": ["embed"], "max": 1 })).await.expect(200);
        let job = &lease["jobs"][0];
        assert_eq!(job["fileId"], file.as_str());
        let path = format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str().expect("an id"));
        let output = json!({ "leaseToken": job["leaseToken"], "output": { "vectors": [vector] } });
        worker.post(&path, output).await.expect(200);
        assert_eq!(server.me().file(&file).await["status"], "ready");
    }
    assert_eq!(env.scalar(NOT_COPIED).await, 1, "only the last vector is too long");
    drop(worker);
    server.crash().await;

    let server = env.start_but(builtin.0, "").await;
    let ours = server.me().enqueue("ours.txt", b"Coffee from Java.").await;
    server.settle().await;
    let hits = found(&server.me(), "coffee", 5).await;
    assert_eq!(hits.iter().map(|hit| &hit["fileId"]).collect::<Vec<_>>(), [&json!(ours)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_where_search_runs() {
    let server = harness::postgres::shared_with_pgvector();
    let url = server.create_database();
    let environment = [
        ("WHARFINGER_DATABASE_URL", url.as_str()),
        ("WHARFINGER_JWT_SECRET", "0123456789abcdef0123456789abcdef"),
    ];
    let place = Place::new();
    let detail = || {
        let report = place.run_with(&environment, &["doctor", "--json"]).json().remove(0);
        let checks = report["checks"].as_array().expect("a list").clone();
        let search = checks.into_iter().find(|check| check["check"] == "search").expect("a check of search");
        search["detail"].as_str().expect("a text").to_owned()
    };
    place.run_with(&environment, &["migrate"]).expect(0);
    assert!(detail().contains("no pgvector"), "{}", detail());
    server.psql(&url, "CREATE EXTENSION vector").expect("pgvector");
    assert!(detail().contains("The next start will use"), "{}", detail());
    place.run_with(&environment, &["migrate"]).expect(0);
    assert!(detail().starts_with("runs in the database (pgvector "), "{}", detail());
    let row = "INSERT INTO chunks (file_id, ordinal, text, start_char, end_char, vector) VALUES ('f', 0, '', 0, 0, '\\x0000')";
    server.psql(&url, row).expect("a chunk");
    assert!(detail().contains("1 vectors"), "{}", detail());
}

on_each_database! { the_best_own_chunk_is_found }

mod pgvector {
    use crate::test_app::Database;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_best_own_chunk_is_found() {
        super::the_best_own_chunk_is_found(Database::Pgvector).await;
    }
}
