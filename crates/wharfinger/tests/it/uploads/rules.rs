//! What an operator allows: types (as declared, and by the first bytes), sizes and the rate of requests.

use serde_json::{Value, json};

use super::{GRACE_MS, WINDOW_MS, id};
use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database};
use wharfinger::core::Role;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";
const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0";
const HTML: &[u8] = b"<!doctype html><script>alert(1)</script>";
const POLICY: &str = "/api/v2/tenants/t/policy";

fn typed(name: &str, content_type: &str, bytes: &[u8]) -> Value {
    json!({ "fileName": name, "size": bytes.len(), "contentType": content_type })
}

/// Announced and uploaded, but not confirmed.
async fn uploaded(me: &Client<'_>, name: &str, content_type: &str, bytes: &[u8]) -> String {
    let grant = me.post("/api/v2/files/init", typed(name, content_type, bytes)).await.expect(201);
    me.server.put_bytes(&grant, bytes).await.expect(200);
    id(&grant)
}

async fn a_list_of_types_holds_for_names_and_for_bytes(env: TestEnv) {
    let server = env.start().await;
    let me = server.me();
    // Nothing is reserved for another type, alone or in a batch.
    let problem = me.post("/api/v2/files/init", typed("a.html", "text/html", HTML)).await;
    let problem = problem.expect_problem(415, "type_not_allowed");
    assert_eq!(problem["allowedTypes"], json!(["image/*", "text/plain"]));
    assert_eq!(problem["errors"][0]["field"], "contentType");
    let problem = me.init("a.png", 3).await.expect_problem(415, "type_not_allowed");
    assert!(problem["detail"].as_str().expect("a text").contains("`contentType` is missing"), "{problem}");
    let batch = json!({ "files": [typed("a.png", "image/png", PNG), typed("b", "text/html", HTML)] });
    let problem = me.post("/api/v2/batches", batch).await.expect_problem(415, "type_not_allowed");
    assert_eq!(problem["errors"][0]["field"], "files[1].contentType");
    assert_eq!(me.used().await, 0);

    for (name, content_type, bytes) in [
        ("a.png", "image/png", PNG),
        ("b.jpg", "IMAGE/PNG", JPEG),
        ("c.txt", "text/plain; charset=utf-8", b"a < b".as_slice()),
    ] {
        let file = uploaded(&me, name, content_type, bytes).await;
        me.confirm(&file).await.expect(200);
    }
    // Almost the whole head is white space.
    let late_page = [&[b' '; 8_000][..], HTML].concat();
    for (name, content_type, bytes, found) in [
        ("page.png", "image/png", HTML, json!("text/html")),
        ("late.txt", "text/plain", &late_page, json!("text/html")),
        ("page.txt", "text/plain", HTML, json!("text/html")),
        ("noise.png", "image/png", b"\0\x01\x02".as_slice(), Value::Null),
        ("archive.txt", "text/plain", b"PK\x03\x04\0\0\0\0", json!("application/zip")),
    ] {
        let file = uploaded(&me, name, content_type, bytes).await;
        let problem = me.confirm(&file).await.expect_problem(415, "type_not_allowed");
        assert_eq!(problem["foundType"], found, "{problem}");
        assert_eq!(me.file(&file).await["status"], "registered", "{name}");
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    let batch = json!({ "files": [typed("a.png", "image/png", PNG), typed("b.png", "image/png", HTML)] });
    let batch = me.post("/api/v2/batches", batch).await.expect(201);
    server.put_bytes(&batch["files"][0], PNG).await.expect(200);
    server.put_bytes(&batch["files"][1], HTML).await.expect(200);
    let path = format!("/api/v2/batches/{}", batch["batchId"].as_str().expect("an id"));
    let problem =
        me.post(&format!("{path}/complete"), json!({})).await.expect_problem(409, "batch_incomplete");
    assert_eq!(problem["files"][0]["status"], "ready");
    assert_eq!(problem["files"][1]["code"], "type_not_allowed", "{problem}");
    me.post(&format!("{path}/cancel"), json!({})).await.expect(200);

    // Nobody confirms these. The check of the window does, or removes them.
    let good = uploaded(&me, "a.png", "image/png", PNG).await;
    let bad = uploaded(&me, "b.png", "image/png", HTML).await;
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    assert_eq!(me.file(&good).await["status"], "ready");
    me.get(&format!("/api/v2/files/{bad}")).await.expect_problem(410, "gone");
    server.settle().await;
    oracle::catalog_is_sound(&server).await;
}

const RULES: [(&str, &str); 2] =
    [("UPLOAD_ALLOWED_TYPES", "image/*, text/plain"), ("UPLOAD_WINDOW_POLICY", "rescue")];

async fn on_local_disk(database: Database) {
    a_list_of_types_holds_for_names_and_for_bytes(TestEnv::with(database, &RULES)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_s3() {
    a_list_of_types_holds_for_names_and_for_bytes(TestEnv::on_s3(Database::Sqlite, &RULES)).await;
}

async fn operators_set_rules_of_single_tenants(database: Database) {
    let env =
        TestEnv::with(database, &[("UPLOAD_ALLOWED_TYPES", "image/*"), ("MAX_FILE_SIZE_BYTES", "1000")]);
    let (server, another) = (env.start().await, env.start().await);
    let (me, operator) = (server.me(), server.operator());
    for role in [Role::User, Role::Admin, Role::Worker] {
        let outsider = server.as_user("t", "u", role);
        outsider.get(POLICY).await.expect_problem(403, "forbidden");
        outsider.put(POLICY, json!({})).await.expect_problem(403, "forbidden");
    }
    for (body, field) in [
        (json!({ "allowedTypes": [] }), "allowedTypes"),
        (json!({ "allowedTypes": ["png"] }), "allowedTypes"),
        (json!({ "allowedTypes": "image/*" }), "allowedTypes"),
        (json!({ "maxFileSizeBytes": 0 }), "maxFileSizeBytes"),
        (json!({ "maxFileSizeBytes": 1_001 }), "maxFileSizeBytes"),
        (json!({ "requestsPerSecond": 1_000_001 }), "requestsPerSecond"),
        (json!({ "requestsPerSecond": -1 }), "requestsPerSecond"),
        (json!({ "quota": 1 }), "quota"),
    ] {
        let problem = operator.put(POLICY, body.clone()).await.expect_problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{body}");
    }
    let effective = json!({ "allowedTypes": ["image/*"], "maxFileSizeBytes": 1_000, "requestsPerSecond": 0 });
    let unset = json!({ "tenant": "t", "allowedTypes": null, "maxFileSizeBytes": null, "requestsPerSecond": null,
        "effective": effective });
    assert_eq!(operator.get(POLICY).await.expect(200), unset);

    // The other process has the old rules in its cache for five seconds.
    let elsewhere = another.me();
    let zip = || typed("a.zip", "application/zip", b"PK");
    elsewhere.post("/api/v2/files/init", zip()).await.expect_problem(415, "type_not_allowed");
    let set =
        operator.put(POLICY, json!({ "allowedTypes": ["Application/Zip"], "maxFileSizeBytes": 10 })).await;
    let set = set.expect(200);
    assert_eq!(set["allowedTypes"], json!(["application/zip"]));
    assert_eq!(set["effective"]["maxFileSizeBytes"], 10);
    me.post("/api/v2/files/init", zip()).await.expect(201);
    env.advance(5_000);
    elsewhere.post("/api/v2/files/init", zip()).await.expect(201);
    // The list replaces the default, and other tenants have the default.
    for client in [&me, &elsewhere] {
        let png = typed("a.png", "image/png", PNG);
        client.post("/api/v2/files/init", png).await.expect_problem(413, "too_large");
        let png = typed("a.png", "image/png", &PNG[..9]);
        client.post("/api/v2/files/init", png).await.expect_problem(415, "type_not_allowed");
    }
    let neighbour = server.as_user("t2", "u", Role::User);
    neighbour.post("/api/v2/files/init", typed("a.png", "image/png", PNG)).await.expect(201);

    // A list with `*/*` lifts the default, also for files of no type.
    operator.put(POLICY, json!({ "allowedTypes": ["*/*"] })).await.expect(200);
    let untyped = me.init("untyped", 3).await.expect(201);
    server.put_bytes(&untyped, b"abc").await.expect(200);
    me.confirm(&id(&untyped)).await.expect(200);
    operator.put(POLICY, json!({ "allowedTypes": ["application/zip"] })).await.expect(200);

    // An absent field is kept, `null` clears it.
    let set = operator.put(POLICY, json!({ "maxFileSizeBytes": null })).await.expect(200);
    assert_eq!((&set["allowedTypes"], &set["maxFileSizeBytes"]), (&json!(["application/zip"]), &Value::Null));
    operator.put(POLICY, json!({ "allowedTypes": null })).await.expect(200);
    assert_eq!(operator.get(POLICY).await.expect(200), unset);
    me.post("/api/v2/files/init", typed("a.png", "image/png", PNG)).await.expect(201);
    oracle::catalog_is_sound(&server).await;
}

async fn a_tenant_sends_only_so_many_requests(database: Database) {
    let env = TestEnv::with(database, &[("TENANT_REQUESTS_PER_SECOND", "3")]);
    let server = env.start().await;
    let (me, operator) = (server.me(), server.operator());
    let grant = me.init("a", 3).await.expect(201);
    // Transfers need no token and do not count.
    server.put_bytes(&grant, b"abc").await.expect(200);
    let quota = "/api/v2/quota";
    let admin = server.as_user("t", "other", Role::Admin);
    admin.get(quota).await.expect(200);
    me.confirm(&id(&grant)).await.expect(200);
    for _ in 0..3 {
        let refused = me.get(quota).await;
        assert_eq!(refused.headers["retry-after"], "1");
        refused.expect_problem(429, "rate_limited");
        // With a body, it is refused before the body is read.
        admin.init("b", 3).await.expect_problem(429, "rate_limited");
    }
    // Others are not affected, and an operator is never.
    server.as_user("t2", "u", Role::User).get(quota).await.expect(200);
    for _ in 0..5 {
        server.as_user("t", "boss", Role::Operator).get(quota).await.expect(200);
    }
    env.advance(334);
    me.get(quota).await.expect(200);
    me.get(quota).await.expect_problem(429, "rate_limited");

    operator.put(POLICY, json!({ "requestsPerSecond": 1 })).await.expect(200);
    env.advance(60_000);
    me.get(quota).await.expect(200);
    me.get(quota).await.expect_problem(429, "rate_limited");
    operator.put(POLICY, json!({ "requestsPerSecond": 0 })).await.expect(200);
    for _ in 0..10 {
        me.get(quota).await.expect(200);
    }
}

/// Many requests at once: while one of them reads the tenant's rules, the others must not get the default.
async fn a_tenants_first_requests_have_its_own_rate(database: Database) {
    let env = TestEnv::with(database, &[("TENANT_REQUESTS_PER_SECOND", "1")]);
    env.start().await.operator().put(POLICY, json!({ "requestsPerSecond": 100 })).await.expect(200);
    let statuses = async |me: &Client<'_>| {
        let answers = futures::future::join_all((0..40).map(|_| me.get("/api/v2/quota"))).await;
        answers.into_iter().map(|answer| answer.status.as_u16()).collect::<Vec<_>>()
    };
    let server = env.start().await;
    let me = server.me();
    assert_eq!(statuses(&me).await, [200; 40], "after a start");
    env.advance(1_000);
    // The cached rules are too old.
    env.advance(5_000);
    assert_eq!(statuses(&me).await, [200; 40], "after five seconds");
    env.advance(1_000);
    server.operator().put(POLICY, json!({ "maxFileSizeBytes": 10 })).await.expect(200);
    assert_eq!(statuses(&me).await, [200; 40], "after a change");
    env.advance(1_000);
    server.operator().put(POLICY, json!({ "requestsPerSecond": 3 })).await.expect(200);
    let allowed = statuses(&me).await.into_iter().filter(|status| *status == 200).count();
    assert_eq!(allowed, 3, "a lower rate applies at once");
}

on_each_database!(
    on_local_disk,
    operators_set_rules_of_single_tenants,
    a_tenant_sends_only_so_many_requests,
    a_tenants_first_requests_have_its_own_rate,
);
