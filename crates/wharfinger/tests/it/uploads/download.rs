//! Downloads return exactly the confirmed bytes, as an attachment, or an error.

use std::time::{Duration, SystemTime};

use reqwest::{Method, Response};
use serde_json::json;

use super::{id, object_of};
use crate::oracle;
use crate::test_app::{Answer, Client, Database, TestApp, TestEnv, on_each_database};

async fn location(me: &Client<'_>, file: &str) -> String {
    let answer = me.get(&format!("/api/v2/files/{file}/download")).await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    let url = answer.headers["location"].to_str().expect("a URL").to_owned();
    answer.expect(302);
    url
}

async fn fetch(server: &TestApp, method: Method, url: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = server.http.request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.expect("an answer")
}

async fn a_download_is_an_attachment_that_browsers_do_not_run(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let body = json!({ "fileName": "é \"x\".html", "size": 10, "contentType": "text/html" });
    let grant = me.post("/api/v2/files/init", body).await.expect(201);
    server.put_bytes(&grant, b"0123456789").await.expect(200);
    me.get(&format!("/api/v2/files/{}/download", id(&grant))).await.expect_problem(409, "not_ready");
    me.confirm(&id(&grant)).await.expect(200);

    let url = location(&me, &id(&grant)).await;
    for method in [Method::GET, Method::HEAD] {
        let answer = fetch(&server, method.clone(), &url, &[]).await;
        assert_eq!(answer.status(), 200);
        for (name, value) in [
            ("content-type", "text/html"),
            ("content-length", "10"),
            ("content-disposition", "attachment; filename*=UTF-8''%C3%A9%20%22x%22%2Ehtml"),
            ("x-content-type-options", "nosniff"),
            ("content-security-policy", "sandbox; default-src 'none'"),
            ("cache-control", "private, no-store"),
            ("accept-ranges", "bytes"),
        ] {
            assert_eq!(answer.headers()[name], value, "{method} {name}");
        }
        assert!(answer.headers().contains_key("etag"));
        let bytes = answer.bytes().await.expect("a whole body");
        let wanted: &[u8] = if method == Method::GET { b"0123456789" } else { b"" };
        assert_eq!(&bytes[..], wanted);
    }
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test]
async fn a_range_request_returns_part_of_the_bytes() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let file = me.upload("digits", b"0123456789").await;
    let url = location(&me, &file).await;
    for (range, bytes, covered) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
    ] {
        let answer = fetch(&server, Method::GET, &url, &[("range", range)]).await;
        assert_eq!(answer.status(), 206, "{range}");
        assert_eq!(answer.headers()["content-range"], covered);
        assert_eq!(answer.headers()["content-length"], bytes.len().to_string().as_str());
        assert_eq!(answer.text().await.expect("text"), bytes);
    }
    let answer = fetch(&server, Method::GET, &url, &[("range", "bytes=10-")]).await;
    assert_eq!(answer.headers()["content-range"], "bytes */10");
    Answer::read(answer).await.expect_problem(416, "range_not_satisfiable");

    let whole = fetch(&server, Method::GET, &url, &[("range", "bytes=1-2"), ("if-range", "\"other\"")]).await;
    assert_eq!(whole.status(), 200);
    let etag = whole.headers()["etag"].to_str().expect("an ETag").to_owned();
    let part = fetch(&server, Method::GET, &url, &[("range", "bytes=1-2"), ("if-range", &etag)]).await;
    assert_eq!(part.status(), 206);
}

async fn a_download_url_ends_with_its_time_or_its_file(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let file = me.upload("a", b"abc").await;
    let url = location(&me, &file).await;
    env.advance(5 * 60_000 - 1);
    assert_eq!(fetch(&server, Method::GET, &url, &[]).await.status(), 200);
    env.advance(1);
    let answer = fetch(&server, Method::GET, &url, &[]).await;
    Answer::read(answer).await.expect_problem(403, "url_expired");

    let url = location(&me, &file).await;
    me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    // The bytes are still on disk, but the row is decisive.
    assert!(object_of(&env, &file).exists());
    let answer = fetch(&server, Method::GET, &url, &[]).await;
    Answer::read(answer).await.expect_problem(410, "gone");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_changed_object_is_quarantined_and_not_served(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let file = me.upload("a", b"abc").await;
    let url = location(&me, &file).await;
    // The same length with another modification time.
    std::fs::write(object_of(&env, &file), b"xyz").expect("the object");
    let object = std::fs::File::options().write(true).open(object_of(&env, &file)).expect("the object");
    object.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).expect("a time");

    for method in [Method::GET, Method::HEAD] {
        let answer = fetch(&server, method, &url, &[]).await;
        assert_eq!(answer.status(), 410, "the URL is valid only for the confirmed bytes");
        assert_ne!(answer.text().await.expect("text"), "xyz");
    }
    let path = format!("/api/v2/files/{file}");
    for _ in 0..2 {
        let problem = me.get(&format!("{path}/download")).await.expect_problem(409, "not_ready");
        assert_eq!(problem["fileStatus"], "quarantined");
    }
    let read = me.get(&path).await.expect(200);
    assert_eq!(read["status"], "quarantined");
    assert_eq!(read["error"], "object changed after it was confirmed");
    let events = me.get(&format!("{path}/history")).await.expect(200);
    assert_eq!(events["events"][3]["to"], "quarantined");
    let list = me.get("/api/v2/notifications").await.expect(200);
    let notifications = list["notifications"].as_array().expect("a list");
    let of_kind = |kind: &str| notifications.iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(
        (notifications.len(), of_kind("file-ready").len(), of_kind("file-quarantined").len()),
        (2, 1, 1)
    );
    assert_eq!(of_kind("file-quarantined")[0]["fileId"], file.as_str());
    assert_eq!(me.used().await, 3, "a quarantined file still counts against the quota");
    oracle::catalog_is_sound(&server).await;

    me.delete(&path).await.expect(204);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_removed_object_is_reported_missing(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let file = me.upload("a", b"abc").await;
    let url = location(&me, &file).await;
    std::fs::remove_file(object_of(&env, &file)).expect("the object was there");
    let path = format!("/api/v2/files/{file}");
    me.get(&format!("{path}/download")).await.expect_problem(409, "object_missing");
    let answer = fetch(&server, Method::GET, &url, &[]).await;
    Answer::read(answer).await.expect_problem(410, "gone");
    assert_eq!(me.get(&path).await.expect(200)["status"], "ready", "the object may come back");
    me.delete(&path).await.expect(204);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_download_is_an_attachment_that_browsers_do_not_run,
    a_download_url_ends_with_its_time_or_its_file,
    a_changed_object_is_quarantined_and_not_served,
    a_removed_object_is_reported_missing,
);
