//! An upload is accepted once, before its URL expires, and only with the declared size, type and checksum.

use bytes::Bytes;
use futures::stream;
use reqwest::Body;
use serde_json::{Value, json};

use super::{GRACE_MS, WINDOW_MS, id, object_of, sha256};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv, on_each_database};

/// A body without a length, sent in pieces of two bytes.
fn chunked(bytes: &'static [u8]) -> Body {
    let pieces = bytes.chunks(2).map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece)));
    Body::wrap_stream(stream::iter(pieces))
}

async fn send(server: &TestApp, grant: &Value, content_type: Option<&str>, body: Body) -> Answer {
    let mut request = server.http.put(grant["uploadUrl"].as_str().expect("a URL")).body(body);
    if let Some(content_type) = content_type {
        request = request.header("content-type", content_type);
    }
    Answer::read(request.send().await.expect("an answer")).await
}

async fn an_upload_url_expires_with_its_window(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let early = me.init("early", 3).await.expect(201);
    let late = me.init("late", 3).await.expect(201);
    env.advance(WINDOW_MS - 1);
    server.put_bytes(&early, b"abc").await.expect(200);
    env.advance(1);
    server.put_bytes(&late, b"abc").await.expect_problem(403, "url_expired");
    assert!(!object_of(&env, &id(&late)).exists());
    // In the grace period, an upload that started in time can still be confirmed.
    assert_eq!(me.confirm(&id(&early)).await.expect(200)["status"], "ready");
    env.advance(GRACE_MS);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_repeated_upload_is_refused(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let body = json!({ "fileName": "a", "size": 3 });
    let grant = me.post("/api/v2/files/init", body.clone()).await.expect(201);
    let file = id(&grant);
    server.put_bytes(&grant, b"abc").await.expect(200);
    server.put_bytes(&grant, b"xyz").await.expect_problem(412, "object_exists");
    me.confirm(&file).await.expect(200);
    server.put_bytes(&grant, b"xyz").await.expect_problem(412, "object_exists");
    assert_eq!(std::fs::read(object_of(&env, &file)).expect("the object"), b"abc");
    // Even if the object was removed, a confirmed file is not written again.
    std::fs::remove_file(object_of(&env, &file)).expect("the object was there");
    server.put_bytes(&grant, b"abc").await.expect_problem(412, "object_exists");
    assert!(!object_of(&env, &file).exists());

    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    server.put_bytes(&grant, b"abc").await.expect_problem(410, "gone");
    server.settle().await;
    server.put_bytes(&grant, b"abc").await.expect_problem(410, "gone");

    // All URLs of a reclaimed file have expired.
    let grant = me.post("/api/v2/files/init", body).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    server.put_bytes(&grant, b"abc").await.expect_problem(403, "url_expired");
    oracle::all_is_healed(&env, &server).await;
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
}

#[tokio::test]
async fn bytes_with_a_wrong_size_type_or_checksum_are_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let body = json!({
        "fileName": "a.txt", "size": 5, "contentType": "text/plain", "checksumSha256": sha256(b"hello"),
    });
    let grant = me.post("/api/v2/files/init", body).await.expect(201);
    let right = Some("text/plain");
    let refused: [(&str, Option<&str>, Body, &str); 11] = [
        ("nothing", right, Body::from(""), "size_mismatch"),
        ("too short", right, Body::from("hell"), "size_mismatch"),
        ("too long", right, Body::from("hello!"), "size_mismatch"),
        ("nothing, chunked", right, chunked(b""), "size_mismatch"),
        ("too short, chunked", right, chunked(b"hell"), "size_mismatch"),
        ("too long, chunked", right, chunked(b"hello and more"), "size_mismatch"),
        ("with a wrong checksum", right, Body::from("hallo"), "checksum_mismatch"),
        ("with a wrong checksum, chunked", right, chunked(b"hallo"), "checksum_mismatch"),
        ("with a wrong type", Some("text/html"), Body::from("hello"), "type_mismatch"),
        (
            "with an extra type parameter",
            Some("text/plain; charset=utf-8"),
            Body::from("hello"),
            "type_mismatch",
        ),
        ("without a type", None, Body::from("hello"), "type_mismatch"),
    ];
    for (what, content_type, body, code) in refused {
        let answer = send(&server, &grant, content_type, body).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, code), "{what}: {}", answer.body);
        answer.expect_problem(400, code);
        assert!(oracle::files_below(&env.blob_dir()).is_empty(), "{what}: the refused upload left bytes");
    }
    send(&server, &grant, right, chunked(b"hello")).await.expect(200);
    assert_eq!(me.confirm(&id(&grant)).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test]
async fn any_type_is_accepted_if_none_was_declared() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    for content_type in [None, Some("image/png"), Some("application/x-www-form-urlencoded")] {
        let grant = me.init("a", 5).await.expect(201);
        send(&server, &grant, content_type, Body::from("hello")).await.expect(200);
        me.confirm(&id(&grant)).await.expect(200);
    }
    oracle::all_is_healed(&env, &server).await;
}

async fn only_one_of_many_concurrent_uploads_succeeds(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 4).await.expect(201);
    let bodies: Vec<String> = (0..10).map(|n| format!("by-{n}")).collect();
    let answers =
        futures::future::join_all(bodies.iter().map(|b| server.put_bytes(&grant, b.as_bytes()))).await;
    let mut accepted = Vec::new();
    for (body, answer) in bodies.iter().zip(answers) {
        match answer.status.as_u16() {
            200 => accepted.push(body.as_bytes().to_vec()),
            // A later upload to the same URL ends an earlier one that is still running.
            409 => drop(answer.expect_problem(409, "superseded")),
            _ => drop(answer.expect_problem(412, "object_exists")),
        }
    }
    assert_eq!(accepted.len(), 1);
    assert_eq!(std::fs::read(object_of(&env, &id(&grant))).expect("the object"), accepted[0]);
    me.confirm(&id(&grant)).await.expect(200);
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test]
async fn a_file_of_five_megabytes_arrives_unchanged() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let bytes: Vec<u8> = (0..5_000_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = me.upload("large", &bytes).await;
    let answer = me.get(&format!("/api/v2/files/{file}/download")).await;
    let url = answer.headers["location"].to_str().expect("a URL");
    let back = server.http.get(url).send().await.expect("an answer").bytes().await.expect("bytes");
    assert_eq!(sha256(&back), sha256(&bytes));
    let tail = server.http.get(url).header("range", "bytes=-7").send().await.expect("an answer");
    assert_eq!(&tail.bytes().await.expect("bytes")[..], &bytes[bytes.len() - 7..]);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    an_upload_url_expires_with_its_window,
    a_repeated_upload_is_refused,
    only_one_of_many_concurrent_uploads_succeeds,
);
