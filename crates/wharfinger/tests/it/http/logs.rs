//! Logs of a real server at trace level: JSON lines, and never a token or a signed URL.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::program::Place;

struct Caller<'a> {
    http: reqwest::Client,
    server: &'a str,
    token: &'a str,
}

impl Caller<'_> {
    /// Returns the status, the location and the body.
    async fn call(&self, method: Method, path: &str, body: &str) -> (u16, String, Value) {
        let url = if path.starts_with("http") { path.to_owned() } else { format!("{}{path}", self.server) };
        let request = self.http.request(method, url).bearer_auth(self.token).body(body.to_owned());
        let answer = request.send().await.expect("an answer");
        let location = answer.headers().get("location").map(|value| value.to_str().expect("text").to_owned());
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("text");
        (status, location.unwrap_or_default(), serde_json::from_str(&text).unwrap_or_default())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_line_holds_a_token_or_a_signed_url() {
    let place = Place::new();
    let filter = "wharfinger=trace,wharfinger_catalog=trace,wharfinger_stores=trace,wharfinger_engines=trace,wharfinger_calls=trace,wharfinger_lifecycle=trace";
    let served = place.serve(&[("RUST_LOG", filter)]);
    let token = place.token("t", "u", "operator");
    let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let caller = Caller { http: http.build().expect("a client"), server: &served.url, token: &token };

    let (status, _, grant) =
        caller.call(Method::POST, "/api/v2/files/init", r#"{"fileName":"a","size":3}"#).await;
    assert_eq!(status, 201, "{grant}");
    let upload = grant["uploadUrl"].as_str().expect("a URL").to_owned();
    let file = grant["fileId"].as_str().expect("an id").to_owned();
    let path = format!("/api/v2/files/{file}");
    for (method, to, body, expected) in [
        (Method::PUT, upload.replace("size=3", "size=4"), "abc", 403),
        (Method::PUT, upload.clone(), "abcd", 400),
        (Method::PUT, upload.clone(), "abc", 200),
        (Method::PUT, upload.clone(), "abc", 412),
        (Method::GET, upload.clone(), "", 403),
        (Method::POST, format!("{path}/confirm"), "", 200),
        (Method::PUT, "/api/v2/tenants/t/quota".to_owned(), r#"{"limit":1000000}"#, 200),
        (Method::GET, "/readyz".to_owned(), "", 200),
        (Method::GET, format!("{path}?token={token}"), "", 200),
    ] {
        let (status, _, answer) = caller.call(method, &to, body).await;
        assert_eq!(status, expected, "{to}: {answer}");
    }
    let (_, download, _) = caller.call(Method::GET, &format!("{path}/download"), "").await;
    assert_eq!(caller.call(Method::GET, &download, "").await.0, 200);
    // A change of the stored bytes makes the server log a quarantine.
    std::fs::write(place.data().join("blobs/uploads/t/u").join(&file), b"abcdefg").expect("the object");
    assert_eq!(caller.call(Method::GET, &format!("{path}/download"), "").await.0, 409);
    assert_eq!(caller.call(Method::DELETE, &path, "").await.0, 204);
    assert!(served.terminate().success());

    let log = place.log();
    let lines: Vec<BTreeMap<String, Value>> =
        log.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let quarantined =
        lines.iter().find(|line| line.get("action") == Some(&json!("quarantined"))).expect("a quarantine");
    assert_eq!((&quarantined["fileId"], &quarantined["tenant"]), (&json!(file), &json!("t")));
    let signature = |url: &str| url.rsplit_once("sig=").expect("a signature").1.to_owned();
    let key = |name: &str| std::fs::read_to_string(place.data().join("secrets").join(name)).expect("a key");
    for (name, secret) in [
        ("the token", token.clone()),
        ("the upload's signature", signature(&upload)),
        ("the download's signature", signature(&download)),
        ("the token secret", key("jwt.key")),
        ("the URL secret", key("url-signing.key")),
        ("any signature", "sig=".to_owned()),
        ("any token", "eyJ".to_owned()),
    ] {
        assert!(!log.contains(&secret), "{name} is in the log");
    }
}

/// Operators find log lines by these fields.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stage_is_logged_with_file_tenant_and_duration() {
    let place = Place::new();
    let served = place.serve(&[("PIPELINE_STAGES", "scan")]);
    let token = place.token("t", "u", "user");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let caller = Caller { http, server: &served.url, token: &token };
    let (_, _, grant) = caller.call(Method::POST, "/api/v2/files/init", r#"{"fileName":"a","size":3}"#).await;
    let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
    caller.call(Method::PUT, grant["uploadUrl"].as_str().expect("a URL"), "abc").await;
    assert_eq!(caller.call(Method::POST, &format!("{path}/confirm"), "").await.0, 200);
    while caller.call(Method::GET, &path, "").await.2["status"] != "ready" {
        tokio::task::yield_now().await;
    }
    assert!(served.terminate().success());
    let log = place.log();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let done = lines.iter().find(|line| line["action"] == "done").expect("a stage that is done");
    assert_eq!((&done["job"], &done["tenant"]), (&json!("file-scan"), &json!("t")), "{done}");
    assert_eq!(done["fileId"], grant["fileId"]);
    assert!(done["durationMs"].is_u64(), "{done}");
}

/// Every line has the instance. A failed request names its file and its code, and no query.
#[tokio::test(flavor = "multi_thread")]
async fn failed_requests_are_logged_with_method_path_status_code_and_file() {
    let place = Place::new();
    let served = place.serve(&[("INSTANCE_ID", "quay \"7\"")]);
    let token = place.token("t", "u", "user");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let caller = Caller { http, server: &served.url, token: &token };
    let (_, _, grant) = caller.call(Method::POST, "/api/v2/files/init", r#"{"fileName":"a","size":3}"#).await;
    let file = grant["fileId"].as_str().expect("an id");
    let path = format!("/api/v2/files/{file}/confirm");
    assert_eq!(caller.call(Method::POST, &format!("{path}?note=x"), "").await.0, 409);
    let upload = grant["uploadUrl"].as_str().expect("a URL").replace("size=3", "size=4");
    assert_eq!(caller.call(Method::PUT, &upload, "abcd").await.0, 403);
    assert_eq!(caller.call(Method::GET, "/api/v2/quota", "").await.0, 200);
    assert!(served.terminate().success());
    let log = place.log();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line["instance"] == "quay \"7\""), "{log}");
    let refused: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request refused").collect();
    let [confirm, put] = refused.as_slice() else { panic!("two lines, not {refused:?}") };
    assert_eq!(
        (&confirm["method"], &confirm["path"], &confirm["status"], &confirm["code"], &confirm["fileId"]),
        (&json!("POST"), &json!(path), &json!(409), &json!("object_missing"), &json!(file))
    );
    assert_eq!((&put["code"], &put["fileId"]), (&json!("bad_signature"), &json!(file)));
    assert!(put["path"].as_str().is_some_and(|path| !path.contains('?')), "{put}");
    assert!(confirm["durationMs"].is_u64(), "{confirm}");
}

/// `ACCESS_LOG=all` logs every request, and `none` only the faults of the server.
#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_has_all_requests_or_none() {
    for (setting, expected) in [("all", vec![200, 404]), ("none", vec![])] {
        let place = Place::new();
        let served = place.serve(&[("ACCESS_LOG", setting)]);
        let token = place.token("t", "u", "user");
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let caller = Caller { http, server: &served.url, token: &token };
        assert_eq!(caller.call(Method::GET, "/api/v2/quota", "").await.0, 200);
        assert_eq!(caller.call(Method::GET, "/api/v2/nothing", "").await.0, 404);
        assert!(served.terminate().success());
        let log = place.log();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON line"));
        let ours = lines.filter(|line| line["path"].as_str().is_some_and(|path| path.starts_with("/api/")));
        let statuses: Vec<u64> = ours.filter_map(|line| line["status"].as_u64()).collect();
        assert_eq!(statuses, expected, "{log}");
    }
}
