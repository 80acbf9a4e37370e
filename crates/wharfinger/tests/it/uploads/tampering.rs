//! A signed URL is refused if any part of it was changed.

use reqwest::{Method, Url};
use serde_json::{Value, json};

use super::{id, sha256};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv};
use wharfinger::core::Role;

const BYTES: &[u8] = b"hello";

/// A grant whose URL contains every optional field.
async fn full_grant(server: &TestApp) -> Value {
    let body = json!({
        "fileName": "a.txt", "size": BYTES.len(), "contentType": "text/plain", "checksumSha256": sha256(BYTES),
    });
    server.me().post("/api/v2/files/init", body).await.expect(201)
}

fn url(grant: &Value) -> Url {
    grant["uploadUrl"].as_str().expect("a URL").parse().expect("a valid URL")
}

fn with_query(url: &Url, pairs: &[(String, String)]) -> Url {
    let mut url = url.clone();
    url.query_pairs_mut().clear().extend_pairs(pairs);
    url
}

fn with_path(url: &Url, from: &str, to: &str) -> Url {
    let mut url = url.clone();
    let path = url.path().replace(from, to);
    url.set_path(&path);
    url
}

async fn put(server: &TestApp, url: Url) -> Answer {
    let request = server.http.put(url).header("content-type", "text/plain").body(BYTES);
    Answer::read(request.send().await.expect("an answer")).await
}

fn pairs(url: &Url) -> Vec<(String, String)> {
    url.query_pairs().into_owned().collect()
}

/// A different value in the same format, so that only the signature shows the change.
fn altered(name: &str, value: &str) -> String {
    match name {
        "expires" => (value.parse::<i64>().expect("a number") + 1).to_string(),
        "size" => "6".to_owned(),
        "type" => "text/html".to_owned(),
        "sha256" => sha256(b"other"),
        _ => {
            let first = if value.starts_with('A') { "B" } else { "A" };
            format!("{first}{}", &value[1..])
        }
    }
}

#[tokio::test]
async fn a_changed_upload_url_is_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = full_grant(&server).await;
    let valid = url(&grant);
    let members = pairs(&valid);
    let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["expires", "size", "type", "sha256", "sig"]);

    let mut tampered = Vec::new();
    for at in 0..members.len() {
        let name = members[at].0.as_str();
        let mut changed = members.clone();
        changed[at].1 = altered(name, &members[at].1);
        tampered.push((format!("{name} changed"), with_query(&valid, &changed)));
        changed[at].1 = String::new();
        tampered.push((format!("{name} empty"), with_query(&valid, &changed)));
        changed.remove(at);
        tampered.push((format!("{name} removed"), with_query(&valid, &changed)));
        let mut twice = members.clone();
        twice.push((name.to_owned(), altered(name, &members[at].1)));
        tampered.push((format!("{name} twice"), with_query(&valid, &twice)));
    }
    for (name, value) in [("etag", "x"), ("name", "x"), ("etag", ""), ("acl", "public")] {
        let mut more = members.clone();
        more.push((name.to_owned(), value.to_owned()));
        tampered.push((format!("{name}={value} added"), with_query(&valid, &more)));
    }
    let signature = members[4].1.clone();
    for wrong in
        [&signature[1..], &signature[..42], &format!("{signature}="), &format!("{signature}AA"), "%00"]
    {
        let mut changed = members.clone();
        changed[4].1 = wrong.to_owned();
        tampered.push((format!("sig={wrong}"), with_query(&valid, &changed)));
    }
    let file = id(&grant);
    let other = id(&server.me().init("b", 5).await.expect(201));
    for (from, to) in [
        (file.as_str(), other.as_str()),
        ("/t/", "/T/"),
        ("/u/", "/v/"),
        ("/t/u/", "/t/"),
        ("uploads", "derived"),
        ("uploads/t/u/", "uploads/t/u//"),
        ("uploads/t/u/", "uploads/t/x/%252E%252E/u/"),
        ("uploads/t/u/", "%2Fetc/"),
    ] {
        tampered.push((format!("{from} replaced by {to}"), with_path(&valid, from, to)));
    }
    tampered.push(("no query".to_owned(), {
        let mut without_query = valid.clone();
        without_query.set_query(None);
        without_query
    }));

    for (what, url) in tampered {
        let answer = put(&server, url).await;
        assert!(matches!(answer.status.as_u16(), 400 | 403), "{what}: {}", answer.body);
        let (status, code) = (answer.status.as_u16(), answer.code().to_owned());
        answer.expect_problem(
            status,
            if code == "invalid_request" { "invalid_request" } else { "bad_signature" },
        );
        assert!(oracle::files_below(&env.blob_dir()).is_empty(), "{what}: the refused upload left bytes");
    }
    // The refused requests have not used up the URL.
    put(&server, valid).await.expect(200);
    assert_eq!(server.me().confirm(&file).await.expect(200)["status"], "ready");
    oracle::catalog_is_sound(&server).await;
}

#[tokio::test]
async fn a_url_allows_one_method() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let grant = full_grant(&server).await;
    let upload = url(&grant);
    let ask = async |method: Method, url: &Url| {
        let request =
            server.http.request(method, url.clone()).header("content-type", "text/plain").body(BYTES);
        Answer::read(request.send().await.expect("an answer")).await
    };
    ask(Method::GET, &upload).await.expect_problem(403, "bad_signature");
    assert_eq!(ask(Method::HEAD, &upload).await.status, 403);
    for method in [Method::POST, Method::DELETE, Method::PATCH] {
        ask(method, &upload).await.expect_problem(405, "method_not_allowed");
    }
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    put(&server, upload.clone()).await.expect(200);
    ask(Method::GET, &upload).await.expect_problem(403, "bad_signature");

    me.confirm(&id(&grant)).await.expect(200);
    let answer = me.get(&format!("/api/v2/files/{}/download", id(&grant))).await;
    let download: Url = answer.headers["location"].to_str().expect("text").parse().expect("a URL");
    put(&server, download.clone()).await.expect_problem(403, "bad_signature");
    ask(Method::DELETE, &download).await.expect_problem(405, "method_not_allowed");
    assert_eq!(server.http.get(download).send().await.expect("an answer").status(), 200);
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test]
async fn a_changed_download_url_is_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let mine = me.upload("a", b"mine").await;
    let theirs = server.as_user("t", "v", Role::User).upload("a", b"theirs").await;
    let answer = me.get(&format!("/api/v2/files/{mine}/download")).await;
    let valid: Url = answer.headers["location"].to_str().expect("text").parse().expect("a URL");
    let members = pairs(&valid);
    let mut tampered = vec![
        with_path(&valid, &format!("u/{mine}"), &format!("v/{theirs}")),
        with_path(&valid, &mine, &theirs),
    ];
    for at in 0..members.len() {
        let mut changed = members.clone();
        changed[at].1 = altered(&members[at].0, &members[at].1);
        tampered.push(with_query(&valid, &changed));
        changed.remove(at);
        tampered.push(with_query(&valid, &changed));
    }
    for name in ["size", "type", "sha256"] {
        let mut more = members.clone();
        more.push((name.to_owned(), "1".to_owned()));
        tampered.push(with_query(&valid, &more));
    }
    for url in tampered {
        let answer = server.http.get(url.clone()).send().await.expect("an answer");
        assert!(matches!(answer.status().as_u16(), 400 | 403), "{url}: {}", answer.status());
        let text = answer.text().await.expect("text");
        assert!(!text.contains("mine") && !text.contains("theirs"), "{url} gave {text}");
    }
    assert_eq!(server.http.get(valid).send().await.expect("an answer").status(), 200);
}
