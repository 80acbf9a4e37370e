//! Downloads return exactly the confirmed bytes, as an attachment, or an error.

use std::time::{Duration, SystemTime};

use reqwest::{Method, Response};
use serde_json::{Value, json};
use wharfinger::core::Role;

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
        me.get(&format!("{path}/download")).await.expect_problem(409, "quarantined");
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

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";

async fn typed(me: &Client<'_>, name: &str, content_type: &str, bytes: &[u8]) -> String {
    sent(me, json!({ "fileName": name, "size": bytes.len(), "contentType": content_type }), bytes).await
}

/// Uploaded and confirmed. Azure answers the upload with 201. A file of no declared type is sent to the store as a page.
async fn sent(me: &Client<'_>, init: Value, bytes: &[u8]) -> String {
    let mut grant = me.post("/api/v2/files/init", init).await.expect(201);
    if grant["headers"]["content-type"].is_null() {
        grant["headers"]["content-type"] = json!("text/html");
    }
    let status = me.server.put_bytes(&grant, bytes).await.status;
    assert!(status.is_success(), "{status}");
    me.confirm(&id(&grant)).await.expect(200);
    id(&grant)
}

/// A URL for another program or an `<img>`.
async fn link(me: &Client<'_>, file: &str, options: &str) -> Value {
    let answer = me.get(&format!("/api/v2/files/{file}/download?redirect=false{options}")).await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    answer.expect(200)
}

fn url_of(link: &Value) -> &str {
    link["url"].as_str().expect("a URL")
}

async fn a_link_is_shown_inline_only_if_no_browser_can_run_it(env: TestEnv) {
    let server = env.start().await;
    let me = server.me();
    let picture = typed(&me, "é.png", "IMAGE/PNG; x=y", PNG).await;
    let shown = link(&me, &picture, "&disposition=inline&expiresIn=60").await;
    let answer = fetch(&server, Method::GET, url_of(&shown), &[("range", "bytes=1-3")]).await;
    assert_eq!(answer.status(), 206);
    assert_eq!(answer.headers()["content-type"], "image/png");
    assert_eq!(answer.headers()["content-disposition"], "inline; filename*=UTF-8''%C3%A9%2Epng");
    if env.is_local() {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("content-security-policy", "sandbox; default-src 'none'"),
            ("cross-origin-resource-policy", "cross-origin"),
        ] {
            assert_eq!(answer.headers()[name], value, "{name}");
        }
        let lie = url_of(&shown).replace("image%2Fpng", "text%2Fhtml");
        assert_ne!(lie, url_of(&shown));
        let answer = fetch(&server, Method::GET, &lie, &[]).await;
        Answer::read(answer).await.expect_problem(403, "bad_signature");
    } else {
        assert_eq!(answer.text().await.expect("bytes"), "PNG");
    }
    for name in ["a.html", "a.svg", "a.xml", "a.bin"] {
        let content_type = match name {
            "a.html" => "text/html",
            "a.svg" => "image/svg+xml",
            "a.xml" => "application/xml",
            _ => "application/octet-stream",
        };
        let file = typed(&me, name, content_type, b"<script>alert(1)</script>").await;
        let path = format!("/api/v2/files/{file}/download?disposition=inline");
        me.get(&path).await.expect_problem(415, "not_inline");
        let saved = link(&me, &file, "").await;
        let answer = fetch(&server, Method::GET, url_of(&saved), &[]).await;
        let disposition = answer.headers()["content-disposition"].to_str().expect("a text");
        assert!(disposition.starts_with("attachment;"), "{disposition}");
    }
    for (content_type, policy) in [
        // Safari shows no PDF with `sandbox`. Without `script-src`, nothing runs.
        ("application/pdf", "default-src 'none'; style-src 'unsafe-inline'"),
        (
            "video/mp4",
            "sandbox allow-same-origin; default-src 'none'; media-src 'self'; style-src 'unsafe-inline'",
        ),
        ("text/plain; charset=utf-16", "sandbox; default-src 'none'"),
    ] {
        let file = typed(&me, "a.html", content_type, b"<script>alert(1)</script>").await;
        let shown = link(&me, &file, "&disposition=inline").await;
        let answer = fetch(&server, Method::GET, url_of(&shown), &[]).await;
        assert_eq!(answer.headers()["content-type"], content_type);
        if env.is_local() {
            assert_eq!(answer.headers()["content-security-policy"], policy, "{content_type}");
            assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        }
    }
    // A page of the same origin could load these although they are attachments.
    for (content_type, sent_as) in [
        ("text/javascript; charset=utf-8", "application/octet-stream"),
        ("text/css", "application/octet-stream"),
        ("multipart/x-mixed-replace; boundary=x", "application/octet-stream"),
        ("a/b;c, text/javascript", "a/b"),
    ] {
        let file = typed(&me, "a", content_type, b"alert(1)").await;
        let saved = link(&me, &file, "").await;
        let answer = fetch(&server, Method::GET, url_of(&saved), &[]).await;
        assert_eq!(answer.headers()["content-type"], sent_as, "{content_type}");
    }
    let untyped = sent(&me, json!({ "fileName": "a", "size": 3 }), b"abc").await;
    me.get(&format!("/api/v2/files/{untyped}/download?disposition=inline"))
        .await
        .expect_problem(415, "not_inline");
    for (option, field) in [
        ("disposition=show", "disposition"),
        ("expiresIn=0", "expiresIn"),
        ("expiresIn=604801", "expiresIn"),
        ("expiresIn=-1", "expiresIn"),
        ("expiresIn=1h", "expiresIn"),
        ("redirect=maybe", "redirect"),
        ("expires=1", "expires"),
    ] {
        let problem = me.get(&format!("/api/v2/files/{untyped}/download?{option}")).await;
        let problem = problem.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{option}: {problem}");
    }
    // The longest life that a store can sign.
    let week = link(&me, &untyped, "&expiresIn=604800").await;
    assert_eq!(week["expiresAt"], "2025-06-22T15:06:40.000Z");
    let answer = fetch(&server, Method::GET, url_of(&week), &[]).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/octet-stream");
    if env.is_local() {
        env.advance(604_800_000 - 1);
        assert_eq!(fetch(&server, Method::GET, url_of(&week), &[]).await.status(), 200);
        env.advance(1);
        let answer = fetch(&server, Method::GET, url_of(&week), &[]).await;
        Answer::read(answer).await.expect_problem(403, "url_expired");
    }
}

async fn links_of_the_local_store(database: Database) {
    a_link_is_shown_inline_only_if_no_browser_can_run_it(TestEnv::new(database)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_s3() {
    a_link_is_shown_inline_only_if_no_browser_can_run_it(TestEnv::on_s3(Database::Sqlite, &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_azure() {
    a_link_is_shown_inline_only_if_no_browser_can_run_it(TestEnv::on_azure(Database::Sqlite, &[])).await;
}

/// Each file ends in another way, by outside workers.
async fn failed_files_can_be_downloaded_after_a_clean_scan(database: Database) {
    let env = TestEnv::with_stages(database, "scan,extract", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    let next = async |stage: &str, verb: &str, rest: Value| {
        let leased = json!({ "stages": [stage], "max": 1 });
        let leased = worker.post("/api/v2/workers/lease", leased).await.expect(200);
        let job = &leased["jobs"][0];
        let mut body = rest;
        body["leaseToken"] = job["leaseToken"].clone();
        let id = job["jobId"].as_str().expect("a job");
        worker.post(&format!("/api/v2/workers/jobs/{id}/{verb}"), body).await.expect(200);
    };
    let clean = || json!({ "output": { "verdict": "clean" } });
    let failure = || json!({ "error": "it is broken", "retryable": false });

    let extracted = me.enqueue("failed in extract", b"abc").await;
    me.get(&format!("/api/v2/files/{extracted}/download")).await.expect_problem(409, "not_ready");
    next("scan", "complete", clean()).await;
    me.get(&format!("/api/v2/files/{extracted}/download")).await.expect_problem(409, "not_ready");
    next("extract", "fail", failure()).await;
    let scanned = me.enqueue("failed in scan", b"abc").await;
    next("scan", "fail", failure()).await;
    let infected = me.enqueue("infected", b"abc").await;
    next("scan", "complete", json!({ "output": { "verdict": "infected", "signature": "X" } })).await;

    // Also after their dead letters are discarded, which ends the record of where they failed.
    for is_discarded in [false, true] {
        if is_discarded {
            let letters = server.operator().get("/api/v2/dlq").await.expect(200);
            for letter in letters["jobs"].as_array().expect("a list") {
                let id = letter["jobId"].as_str().expect("an id");
                server.operator().delete(&format!("/api/v2/dlq/{id}")).await.expect(204);
            }
        }
        assert_eq!(me.file(&extracted).await["status"], "failed");
        let url = location(&me, &extracted).await;
        assert_eq!(fetch(&server, Method::GET, &url, &[]).await.text().await.expect("bytes"), "abc");
        let problem = me.get(&format!("/api/v2/files/{scanned}/download")).await;
        assert_eq!(problem.expect_problem(409, "not_ready")["fileStatus"], "failed");
        me.get(&format!("/api/v2/files/{infected}/download")).await.expect_problem(409, "quarantined");
    }
    // Its bytes are replaced by another program.
    std::fs::write(object_of(&env, &extracted), b"other").expect("the object");
    me.get(&format!("/api/v2/files/{extracted}/download")).await.expect_problem(409, "quarantined");
    assert_eq!(me.file(&extracted).await["status"], "quarantined");
    oracle::catalog_is_sound(&server).await;

    // A pipeline without a scan.
    let server = env.start_but("PIPELINE_STAGES", "extract").await;
    let (me, worker) = (server.me(), server.as_user("ops", "w", Role::Worker));
    let file = me.enqueue("never scanned", b"abc").await;
    let leased = json!({ "stages": ["extract"], "max": 1 });
    let leased = worker.post("/api/v2/workers/lease", leased).await.expect(200);
    let job = &leased["jobs"][0];
    let path = format!("/api/v2/workers/jobs/{}/fail", job["jobId"].as_str().expect("a job"));
    let body = json!({ "leaseToken": job["leaseToken"], "error": "it is broken", "retryable": false });
    worker.post(&path, body).await.expect(200);
    location(&me, &file).await;
    oracle::catalog_is_sound(&server).await;
}

on_each_database!(
    links_of_the_local_store,
    failed_files_can_be_downloaded_after_a_clean_scan,
    a_download_is_an_attachment_that_browsers_do_not_run,
    a_download_url_ends_with_its_time_or_its_file,
    a_changed_object_is_quarantined_and_not_served,
    a_removed_object_is_reported_missing,
);
