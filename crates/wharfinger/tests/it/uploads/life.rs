//! A file from its registration to its deletion, and the names, types and sizes that are accepted.

use reqwest::Method;
use serde_json::{Value, json};

use super::{id, object_of, sha256};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};
use wharfinger::core::Role;

fn members(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

async fn a_file_is_registered_uploaded_confirmed_and_deleted(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();

    let grant = me.init("report.pdf", 5).await.expect(201);
    assert_eq!(members(&grant), ["expiresAt", "fileId", "headers", "method", "status", "uploadUrl"]);
    assert_eq!((&grant["status"], &grant["method"]), (&json!("registered"), &json!("PUT")));
    assert_eq!(grant["expiresAt"], "2025-06-15T16:06:40.000Z");
    assert_eq!(grant["headers"], json!({}));
    let file = id(&grant);
    let path = format!("/api/v2/files/{file}");
    let created = "2025-06-15T15:06:40.000Z";
    let mut expected = json!({
        "fileId": file, "fileName": "report.pdf", "size": 5, "contentType": null, "checksumSha256": null,
        "status": "registered", "retryCount": 0, "batchId": null, "error": null, "metadata": null,
        "textStatus": null, "stages": null,
        "createdAt": created, "updatedAt": created, "confirmedAt": null, "readyAt": null,
    });
    assert_eq!(me.get(&path).await.expect(200), expected);
    let quota = me.get("/api/v2/quota").await.expect(200);
    assert_eq!(quota, json!({ "tenant": "t", "used": 5, "limit": 10_737_418_240_u64, "reserved": 5 }));
    assert!(!object_of(&env, &file).exists());

    let put = server.put_bytes(&grant, b"bytes").await;
    assert!(put.headers.contains_key("etag"));
    put.expect(200);
    assert_eq!(std::fs::read(object_of(&env, &file)).expect("the object"), b"bytes");

    env.advance(1_500);
    let confirmed = "2025-06-15T15:06:41.500Z";
    for _ in 0..2 {
        assert_eq!(me.confirm(&file).await.expect(200), json!({ "fileId": file, "status": "ready" }));
        env.advance(1);
    }
    for (member, value) in
        [("status", "ready"), ("updatedAt", confirmed), ("confirmedAt", confirmed), ("readyAt", confirmed)]
    {
        expected[member] = value.into();
    }
    expected["stages"] = json!([]);
    assert_eq!(me.get(&path).await.expect(200), expected);
    let quota = me.get("/api/v2/quota").await.expect(200);
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(5), &json!(0)));

    let history = me.get(&format!("{path}/history")).await.expect(200);
    assert_eq!(
        history,
        json!({ "events": [
            { "at": created, "from": null, "to": "registered", "reason": "registered", "actor": "user:u" },
            { "at": confirmed, "from": "registered", "to": "uploaded", "reason": "confirmed", "actor": "user:u" },
            { "at": confirmed, "from": "uploaded", "to": "ready", "reason": "no stages", "actor": "user:u" },
        ]})
    );
    me.post(&format!("{path}/url"), json!({})).await.expect_problem(409, "already_confirmed");
    oracle::all_is_healed(&env, &server).await;

    assert_eq!(me.delete(&path).await.expect(204), "");
    for (method, path) in [
        (Method::DELETE, path.clone()),
        (Method::GET, path.clone()),
        (Method::GET, format!("{path}/history")),
        (Method::GET, format!("{path}/download")),
        (Method::POST, format!("{path}/confirm")),
        (Method::POST, format!("{path}/url")),
    ] {
        me.send(me.request(method, &path)).await.expect_problem(404, "not_found");
    }
    assert_eq!(me.get("/api/v2/files").await.expect(200), json!({ "files": [], "nextCursor": null }));
    assert_eq!(me.used().await, 0);
    server.settle().await;
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
    oracle::all_is_healed(&env, &server).await;
}

async fn short_and_old_paths_make_the_same_calls(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.post("/files/init", json!({ "fileName": "a", "size": 3 })).await.expect(201);
    let file = id(&grant);
    me.post(&format!("/files/{file}/confirm"), json!({})).await.expect_problem(409, "object_missing");
    server.put_bytes(&grant, b"abc").await.expect(200);
    let confirmed = me.post(&format!("/files/{file}/confirm"), json!({})).await.expect(200);
    assert_eq!(confirmed, json!({ "fileId": file, "status": "ready" }));

    let old_name = format!("/api/v1/documents/{file}");
    assert_eq!(me.delete(&old_name).await.expect(204), "");
    me.delete(&old_name).await.expect_problem(404, "not_found");
    me.get(&format!("/api/v2/files/{file}")).await.expect_problem(404, "not_found");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn an_empty_file_is_accepted(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("empty", 0).await.expect(201);
    me.confirm(&id(&grant)).await.expect_problem(409, "object_missing");
    server.put_bytes(&grant, b"").await.expect(200);
    assert_eq!(me.confirm(&id(&grant)).await.expect(200)["status"], "ready");
    assert_eq!(me.used().await, 0);
    let url = me.get(&format!("/api/v2/files/{}/download", id(&grant))).await;
    let body = server.http.get(url.headers["location"].to_str().expect("a URL")).send().await;
    let body = body.expect("an answer");
    assert_eq!(body.status(), 200);
    assert_eq!(body.bytes().await.expect("no bytes").len(), 0);
    oracle::all_is_healed(&env, &server).await;
}

async fn type_checksum_and_metadata_are_returned_unchanged(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let metadata = r#"{"z":1.10, "a" : [1e2, "\u00fc", null],"big":123456789012345678901234567890, "z":"again",
        "esc":"\\u0000 is not a NUL"}"#;
    let sum = sha256(b"pixels");
    let body = format!(
        r#"{{"fileName":"i.png","size":6,"contentType":"image/png","checksumSha256":"{sum}","metadata":{metadata}}}"#
    );
    let init = me.request(Method::POST, "/api/v2/files/init").header("content-type", "application/json");
    let grant = me.send(init.body(body)).await.expect(201);
    assert_eq!(grant["headers"], json!({ "content-type": "image/png" }));
    server.put_bytes(&grant, b"pixels").await.expect(200);
    me.confirm(&id(&grant)).await.expect(200);

    let path = format!("/api/v2/files/{}", id(&grant));
    let text = me.request(Method::GET, &path).send().await.expect("an answer").text().await.expect("text");
    assert!(text.contains(&format!(r#""metadata":{metadata},"#)), "{text}");
    let listed = me.request(Method::GET, "/api/v2/files").send().await.expect("an answer");
    assert!(listed.text().await.expect("text").contains(metadata));
    let file = me.get(&path).await.expect(200);
    assert_eq!((&file["contentType"], &file["checksumSha256"]), (&json!("image/png"), &Value::String(sum)));
    oracle::all_is_healed(&env, &server).await;
}

async fn names_are_returned_unchanged_and_do_not_become_paths(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let names = [
        "日本語.txt",
        "re\u{301}sume\u{301}",
        "résumé",
        "👩‍🚀.png",
        "..a",
        "a%2F..%2Fb",
        "a?b#c&d=\"e\"",
        " x ",
    ];
    let me = server.as_user("../../etc", "ü/..?#%", Role::User);
    let mut wanted = Vec::new();
    for name in names {
        let file = me.upload(name, name.as_bytes()).await;
        assert_eq!(me.get(&format!("/api/v2/files/{file}")).await.expect(200)["fileName"], name);
        wanted.push(format!("uploads/%2E%2E%2F%2E%2E%2Fetc/%C3%BC%2F%2E%2E%3F%23%25/{file}"));
    }
    wanted.sort();
    let stored: Vec<String> = oracle::files_below(&env.blob_dir()).into_iter().collect();
    assert_eq!(stored, wanted);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    a_file_is_registered_uploaded_confirmed_and_deleted,
    short_and_old_paths_make_the_same_calls,
    an_empty_file_is_accepted,
    type_checksum_and_metadata_are_returned_unchanged,
    names_are_returned_unchanged_and_do_not_become_paths,
);
