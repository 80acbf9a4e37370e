//! Search in one's own chunks, compared here or by pgvector: the same is found.

use serde_json::{Value, json};
use wharfinger::core::Role;

use super::ALL;
use crate::cli::program::Place;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};

const SMALL_CHUNKS: [(&str, &str); 2] = [("CHUNK_SIZE", "60"), ("CHUNK_OVERLAP", "0")];
/// How many vectors there are that the database does not compare.
const NOT_COPIED: &str = "SELECT COUNT(*) FROM chunks WHERE vector IS NOT NULL AND embedding IS NULL";

async fn found(client: &Client<'_>, query: &str, limit: usize) -> Vec<Value> {
    let answer = client.post("/api/v2/search", json!({ "query": query, "limit": limit })).await.expect(200);
    answer["hits"].as_array().expect("a list").clone()
}

async fn the_best_of_ones_own_is_found(database: Database) {
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
    assert!(hits.iter().all(|hit| hit["fileId"] != theirs.as_str()), "another's chunk: {hits:?}");
    let namesake = server.as_user("another-tenant", "u", Role::User);
    assert_eq!(found(&namesake, "coffee from Santos", 5).await, Vec::<Value>::new());
    assert_eq!(found(&other, "coffee from Santos", 5).await.len(), 1);
    assert_eq!(found(&me, "coffee from Santos", 1).await.len(), 1);
    assert_eq!(found(&me, "crane repaired", 1).await[0]["ordinal"], 1);
    // Also who may see everything finds their own.
    assert_eq!(found(&server.operator(), "coffee from Santos", 5).await, Vec::<Value>::new());

    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    assert!(found(&me, "coffee from Santos", 5).await.iter().all(|hit| hit["fileId"] != file.as_str()));
}

const CARGOES: [&str; 6] = ["Coffee", "Tea", "Cocoa", "Pepper", "Copper", "Timber"];

/// Files whose chunks differ, some of which are the same text twice; one is older than the other, as ties are broken so.
async fn enqueue_ledgers(env: &TestEnv, me: &Client<'_>) {
    for (n, cargo) in CARGOES.into_iter().enumerate() {
        let lines: Vec<String> = (0..8)
            .map(|line| format!("{cargo} lies in warehouse {} since day {}.", line % 5, n * line % 7))
            .collect();
        me.enqueue(&format!("{n}.txt"), lines.join("\n\n").as_bytes()).await;
        env.advance(1);
    }
}

/// Answers to some questions, without the ids of files.
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

/// The database brings the one that is nearest, and not all for this process to compare.
async fn is_compared_by_the_database(server: &TestApp) {
    let scope = wharfinger_catalog::Scope::All;
    let wanted = server.app.pipeline.embedder.embed(vec!["coffee".into()]).await.expect("a vector").remove(0);
    let mut candidates = server.app.core.catalog.candidates(scope, &wanted, 1);
    let mut seen = 0;
    while let Some(page) = candidates.next_page().await.expect("read") {
        seen += page.len();
    }
    assert_eq!(seen, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_and_without_pgvector_the_answers_are_the_same() {
    let mut all = Vec::new();
    for database in [Database::Sqlite, Database::Postgres, Database::Pgvector] {
        let env = TestEnv::with_stages(database, ALL, &SMALL_CHUNKS);
        let server = env.start().await;
        enqueue_ledgers(&env, &server.me()).await;
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
async fn pgvector_comes_and_goes() {
    let env = TestEnv::with_stages(Database::Pgvector, ALL, &SMALL_CHUNKS);
    env.execute("DROP EXTENSION vector").await;
    let server = env.start().await;
    enqueue_ledgers(&env, &server.me()).await;
    server.settle().await;
    let expected = answers(&server.me()).await;

    env.execute("CREATE EXTENSION vector").await;
    assert_eq!(answers(&server.me()).await, expected, "who runs already does without");
    server.crash().await;
    let server = env.start().await;
    assert_eq!(env.scalar(NOT_COPIED).await, 48);
    assert_eq!(answers(&server.me()).await, expected, "found before they are copied");
    server.settle().await;
    assert_eq!(env.scalar(NOT_COPIED).await, 0);
    is_compared_by_the_database(&server).await;
    assert_eq!(answers(&server.me()).await, expected, "found by the database");

    env.execute("DROP EXTENSION vector CASCADE").await;
    assert_eq!(answers(&server.me()).await, expected, "found when it goes from under the server");
    let late = server.me().enqueue("late.txt", b"Amber lies in warehouse nine.").await;
    server.settle().await;
    assert_eq!(found(&server.me(), "amber", 1).await[0]["fileId"], late.as_str());
    server.crash().await;
    let server = env.start().await;
    assert_eq!(found(&server.me(), "amber", 1).await[0]["fileId"], late.as_str());
}

/// What an outside worker brings may be shorter, longer, without a direction, or too long for pgvector.
#[tokio::test(flavor = "multi_thread")]
async fn another_models_vectors_are_no_trouble_to_pgvector() {
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
    assert_eq!(env.scalar(NOT_COPIED).await, 1, "of those only the last is too long");
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
    let said = || {
        let report = place.run_with(&environment, &["doctor", "--json"]).json().remove(0);
        let checks = report["checks"].as_array().expect("a list").clone();
        let search = checks.into_iter().find(|check| check["check"] == "search").expect("a word on search");
        search["detail"].as_str().expect("a text").to_owned()
    };
    place.run_with(&environment, &["migrate"]).expect(0);
    assert!(said().contains("no pgvector"), "{}", said());
    server.psql(&url, "CREATE EXTENSION vector").expect("pgvector");
    assert!(said().contains("for the next start to use"), "{}", said());
    place.run_with(&environment, &["migrate"]).expect(0);
    assert!(said().starts_with("in the database (pgvector "), "{}", said());
    let row = "INSERT INTO chunks (file_id, ordinal, text, start_char, end_char, vector) VALUES ('f', 0, '', 0, 0, '\\x0000')";
    server.psql(&url, row).expect("a chunk");
    assert!(said().contains("1 vectors"), "{}", said());
}

on_each_database! { the_best_of_ones_own_is_found }

mod pgvector {
    use crate::test_app::Database;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_best_of_ones_own_is_found() {
        super::the_best_of_ones_own_is_found(Database::Pgvector).await;
    }
}
