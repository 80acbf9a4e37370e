//! Invalid init requests: each is refused with the name of its field, and nothing is reserved or stored.

use bytes::Bytes;
use reqwest::{Body, Method};
use serde_json::{Value, json};

use crate::oracle;
use crate::test_app::{Answer, Client, Database, TestEnv, on_each_database};

async fn init(me: &Client<'_>, body: impl Into<Body>) -> Answer {
    let request = me.request(Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
    me.send(request.header("content-type", "application/json").body(body)).await
}

/// A valid init request with one member changed.
fn with(member: &str, value: Value) -> String {
    let mut body = json!({ "fileName": "a", "size": 1 });
    body[member] = value;
    body.to_string()
}

fn without(member: &str) -> String {
    let mut body = json!({ "fileName": "a", "size": 1 });
    body.as_object_mut().expect("an object").remove(member);
    body.to_string()
}

fn nested(levels: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels))
}

fn wrong_values() -> Vec<(&'static str, String)> {
    let mut wrong = vec![
        ("size", without("size")),
        ("fileName", without("fileName")),
        ("fileName", "{}".to_owned()),
        ("fileName", String::new()),
    ];
    for size in [
        json!(-1),
        json!(i64::MIN),
        json!(1.5),
        json!(1.0),
        json!(1e3),
        json!("1"),
        json!(""),
        json!(null),
        json!(true),
        json!([1]),
        json!({}),
    ] {
        wrong.push(("size", with("size", size)));
    }
    for huge in ["18446744073709551616", "1e400", "-0.0", "99999999999999999999999999999999"] {
        wrong.push(("size", format!(r#"{{"fileName":"a","size":{huge}}}"#)));
    }
    let long = "x".repeat(10_000);
    for name in [
        "",
        " ",
        ".",
        "..",
        "a/b",
        "/etc/passwd",
        "../x",
        "a\\b",
        "..\\x",
        "a\0b",
        "a\nb",
        "a\rb",
        "a\tb",
        "\u{1b}[2J",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "a\u{202e}fdp.exe",
        "\u{2066}x",
        "\u{200f}x",
        "\u{61c}x",
        &"ü".repeat(256),
        &long,
    ] {
        wrong.push(("fileName", with("fileName", json!(name))));
    }
    for name in [json!(7), json!(null), json!(["a"]), json!({ "name": "a" }), json!(false)] {
        wrong.push(("fileName", with("fileName", name)));
    }
    for kind in [
        json!(""),
        json!("png"),
        json!("a/"),
        json!("/b"),
        json!("a/b\r\nX-Evil: 1"),
        json!("ä/b"),
        json!(7),
        json!(format!("a/{}", "b".repeat(254))),
    ] {
        wrong.push(("contentType", with("contentType", kind)));
    }
    for sum in [json!(""), json!("a".repeat(63)), json!("A".repeat(64)), json!("g".repeat(64)), json!(1)] {
        wrong.push(("checksumSha256", with("checksumSha256", sum)));
    }
    for metadata in [json!([]), json!("x"), json!(7), json!(true), json!({ "a": "x".repeat(16_384) })] {
        wrong.push(("metadata", with("metadata", metadata)));
    }
    for metadata in [
        r#"{"a":"\u0000"}"#.to_owned(),
        r#"{"\u0000":1}"#.to_owned(),
        r#"{"a":[{"b":"x\u0000y"}]}"#.to_owned(),
        r#"{"a":"\ud800"}"#.to_owned(),
        r#"{"a":1e999}"#.to_owned(),
        nested(200),
        nested(3_000),
    ] {
        wrong.push(("metadata", format!(r#"{{"fileName":"a","size":1,"metadata":{metadata}}}"#)));
    }
    wrong.push(("batchId", with("batchId", json!("018F4E6E-7F3A-7000-8000-000000000001"))));
    wrong.push(("batchId", with("batchId", json!(""))));
    wrong.push(("batchId", with("batchId", json!(7))));
    for unknown in ["filename", "tenant", "fileId", "", "Size", "__proto__"] {
        wrong.push((unknown, with(unknown, json!(1))));
    }
    for (field, more) in
        [("size", r#""size":2"#), ("fileName", r#""fileName":"a""#), ("metadata", r#""metadata":{}"#)]
    {
        let body = format!(r#"{{"fileName":"a","size":1,"metadata":{{}},{more}}}"#);
        wrong.push((field, body));
    }
    wrong
}

async fn nothing_was_stored(env: &TestEnv, me: &Client<'_>) {
    let quota = me.get("/api/v2/quota").await.expect(200);
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(0), &json!(0)));
    assert_eq!(me.get("/api/v2/files").await.expect(200), json!({ "files": [], "nextCursor": null }));
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    for table in [
        "SELECT COUNT(*) FROM files",
        "SELECT COUNT(*) FROM objects",
        "SELECT COUNT(*) FROM jobs",
        "SELECT COUNT(*) FROM file_history",
        "SELECT COUNT(*) FROM idempotency_keys",
    ] {
        assert_eq!(env.scalar(table).await, 0, "{table}");
    }
    oracle::catalog_is_sound(me.server).await;
}

async fn an_invalid_value_is_refused_and_its_field_is_named(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    for (field, body) in wrong_values() {
        let shown: String = body.chars().take(100).collect();
        let answer = init(&me, body).await;
        assert_eq!(answer.status, 400, "{shown}: {}", answer.body);
        let problem = answer.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{shown}: {problem}");
        let message = problem["errors"][0]["problem"].as_str().expect("a text");
        assert!(
            !message.is_empty() && !message.contains("u64") && !message.contains("struct"),
            "{shown}: {message}"
        );
    }
    nothing_was_stored(&env, &me).await;
    // The refused requests have not used the idempotency key.
    init(&me, with("size", json!(0))).await.expect(201);
}

async fn a_file_above_the_maximum_size_is_refused(database: Database) {
    let env = TestEnv::with(database, &[("MAX_FILE_SIZE_BYTES", "1MiB")]);
    let server = env.start().await;
    let me = server.me();
    for size in [(1_u64 << 20) + 1, 1 << 53, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX] {
        let problem = init(&me, with("size", json!(size))).await.expect_problem(413, "too_large");
        assert_eq!(problem["errors"][0]["field"], "size");
        assert_eq!(problem["limit"], 1 << 20);
    }
    nothing_was_stored(&env, &me).await;
    init(&me, with("size", json!(1 << 20))).await.expect(201);
}

async fn several_invalid_fields_are_named_together(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let body = json!({
        "fileName": "a/b", "size": 1, "contentType": "x", "checksumSha256": "x", "metadata": [],
    });
    let problem = init(&me, body.to_string()).await.expect_problem(400, "invalid_request");
    let fields: Vec<&Value> =
        problem["errors"].as_array().expect("a list").iter().map(|e| &e["field"]).collect();
    assert_eq!(fields, ["fileName", "contentType", "checksumSha256", "metadata"]);
    nothing_was_stored(&env, &me).await;
}

#[tokio::test]
async fn a_body_that_is_not_an_init_request_is_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let valid = with("size", json!(1));
    let bodies: Vec<Vec<u8>> = vec![
        b"hello".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"7".to_vec(),
        b"\"fileName\"".to_vec(),
        b"fileName=a&size=1".to_vec(),
        b"{'fileName':'a','size':1}".to_vec(),
        b"{\"fileName\":\"a\",\"size\":1".to_vec(),
        b"{\"fileName\":\"a\",\"size\":1,}".to_vec(),
        b"{\"fileName\":\"\xff\xfe\",\"size\":1}".to_vec(),
        b"{\"fileName\":\"\\ud800\",\"size\":1}".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        b"\0".to_vec(),
        b"[".repeat(60_000),
        b"{\"a\":".repeat(10_000),
        format!("{valid}{valid}").into_bytes(),
        format!("[{valid}]").into_bytes(),
        br#"["a",1,null,null,null,null]"#.to_vec(),
        format!("{valid} trailing").into_bytes(),
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let problem = init(&me, body).await.expect_problem(400, "invalid_request");
        let field = problem["errors"][0]["field"].as_str().expect("a field");
        assert!(["body", "fileName", "size", "a"].contains(&field), "{shown}: {problem}");
    }
    nothing_was_stored(&env, &me).await;
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_with_and_without_a_length() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let limit = 64 * 1024;
    let valid = with("size", json!(1));
    let padded = |length: usize| format!("{valid}{}", " ".repeat(length - valid.len()));
    init(&me, padded(limit + 1)).await.expect_problem(413, "too_large");
    let pieces: Vec<Bytes> =
        padded(limit + 1).into_bytes().chunks(1_000).map(Bytes::copy_from_slice).collect();
    let chunked = futures::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
    init(&me, Body::wrap_stream(chunked)).await.expect_problem(413, "too_large");
    nothing_was_stored(&env, &me).await;
    init(&me, padded(limit)).await.expect(201);
    oracle::catalog_is_sound(&server).await;
}

on_each_database!(
    an_invalid_value_is_refused_and_its_field_is_named,
    a_file_above_the_maximum_size_is_refused,
    several_invalid_fields_are_named_together,
);
