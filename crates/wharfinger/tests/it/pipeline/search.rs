//! Search in one's own chunks.

use serde_json::{Value, json};
use wharfinger::uploads::Role;

use super::ALL;
use crate::test_app::{Client, Database, Ground, on_each_database};

async fn found(client: &Client<'_>, query: &str, limit: usize) -> Vec<Value> {
    let answer = client.post("/api/v2/search", json!({ "query": query, "limit": limit })).await.expect(200);
    answer["hits"].as_array().expect("a list").clone()
}

async fn the_best_of_ones_own_is_found(database: Database) {
    let ground = Ground::with_stages(database, ALL, &[("CHUNK_SIZE", "60"), ("CHUNK_OVERLAP", "0")]);
    let server = ground.start().await;
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
    assert_eq!(found(&me, "coffee from Santos", 1).await.len(), 1);
    assert_eq!(found(&me, "crane repaired", 1).await[0]["ordinal"], 1);
    // Also who may see everything finds their own.
    assert_eq!(found(&server.operator(), "coffee from Santos", 5).await, Vec::<Value>::new());

    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    assert!(found(&me, "coffee from Santos", 5).await.iter().all(|hit| hit["fileId"] != file.as_str()));
}

on_each_database! { the_best_of_ones_own_is_found }
