//! The OpenAPI document describes what the server does, and its page loads nothing from other servers.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::Value;

use crate::test_app::{Database, TestApp, TestEnv};

async fn document(server: &TestApp) -> Value {
    let text = server.http.get(format!("{}/openapi.json", server.url)).send().await.expect("an answer");
    assert_eq!(text.status(), 200);
    serde_json::from_str(&text.text().await.expect("text")).expect("JSON")
}

/// Method, path and description of each operation.
fn operations(document: &Value) -> Vec<(Method, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let method = method.to_uppercase().parse().expect("a method");
            all.push((method, path.clone(), operation.clone()));
        }
    }
    all
}

fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_call_of_the_contract_is_described() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let document = document(&server).await;
    let version = document["openapi"].as_str().expect("a version");
    assert!(version.starts_with("3.1."), "{version}");
    let described: BTreeSet<String> =
        operations(&document).iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    for call in [
        "POST /api/v2/files/init",
        "POST /api/v2/files/{id}/url",
        "POST /api/v2/files/{id}/confirm",
        "GET /api/v2/files",
        "GET /api/v2/files/{id}",
        "GET /api/v2/files/{id}/history",
        "GET /api/v2/files/{id}/chunks",
        "POST /api/v2/search",
        "GET /api/v2/files/{id}/download",
        "POST /api/v2/files/{id}/release",
        "DELETE /api/v2/files/{id}",
        "POST /api/v2/batches",
        "GET /api/v2/batches/{id}",
        "POST /api/v2/batches/{id}/complete",
        "POST /api/v2/batches/{id}/cancel",
        "GET /api/v2/quota",
        "PUT /api/v2/tenants/{tenant}/policy",
        "PUT /api/v2/tenants/{tenant}/quota",
        "GET /api/v2/uploads/orphans",
        "POST /api/v2/uploads/orphans/scan",
        "GET /api/v2/maintenance/deletions",
        "GET /api/v2/maintenance/sweeps/{name}/runs",
        "POST /api/v1/maintenance/cleanup/trigger",
        "GET /api/v1/maintenance/cleanup/status",
        "GET /api/v1/maintenance/cleanup/pending",
        "GET /api/v2/notifications",
        "POST /api/v2/workers/lease",
        "POST /api/v2/workers/jobs/{jobId}/complete",
        "GET /api/v2/uploads/stuck",
        "POST /api/v2/uploads/stuck/{fileId}/retry",
        "POST /api/v2/uploads/stuck/retry-all",
        "GET /api/v2/dlq",
        "POST /api/v2/dlq/{id}/redrive",
        "DELETE /api/v2/dlq/{id}",
        "GET /api/v2/uploads/dashboard",
        "POST /api/v2/events",
        "POST /api/v2/workers/jobs/{jobId}/heartbeat",
        "POST /api/v2/workers/jobs/{jobId}/fail",
        "POST /files/init",
        "POST /files/{id}/confirm",
        "DELETE /api/v1/documents/{id}",
        "GET /metrics",
        "GET /api/v2/keys",
        "GET /api/v2/session",
        "GET /healthz",
        "GET /readyz",
    ] {
        assert!(described.contains(call), "{call} in {described:?}");
    }
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a reference into this document");
        assert!(document.pointer(pointer).is_some(), "{reference} does not exist");
    }
}

#[tokio::test]
async fn every_call_that_takes_a_body_describes_it() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let document = document(&server).await;
    let mut with_bodies = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let responses = operation["responses"].as_object().expect("responses");
        assert!(!responses.is_empty(), "{method} {path}");
        let Some(body) = operation.get("requestBody") else { continue };
        let schema = &body["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path}: {body}");
        // An event can be any JSON object, and the senders of hooks have formats of their own.
        if path == "/api/v2/events" || path == "/hooks/object-created" {
            continue;
        }
        let mut named = Vec::new();
        references(schema, &mut named);
        let [name] = named[..] else { panic!("{method} {path} names one schema: {schema}") };
        let described = document.pointer(&name[1..]).expect("a schema");
        assert!(described["properties"].as_object().is_some_and(|p| !p.is_empty()), "{described}");
        with_bodies.insert(format!("{method} {path}"));
    }
    let expected = [
        "POST /api/v2/batches",
        "POST /api/v2/files/init",
        "POST /api/v2/files/{id}/confirm",
        "POST /api/v2/files/{id}/release",
        "POST /api/v2/maintenance/sweeps/{name}/run",
        "POST /api/v2/search",
        "POST /api/v2/workers/jobs/{jobId}/complete",
        "POST /api/v2/workers/jobs/{jobId}/fail",
        "POST /api/v2/workers/jobs/{jobId}/heartbeat",
        "POST /api/v2/workers/lease",
        "POST /files/init",
        "POST /files/{id}/confirm",
        "PUT /api/v2/tenants/{tenant}/policy",
        "PUT /api/v2/tenants/{tenant}/quota",
    ];
    assert_eq!(with_bodies, expected.map(str::to_owned).into());
    let init = &document["components"]["schemas"]["InitRequest"]["properties"];
    for field in ["fileName", "size", "contentType", "checksumSha256", "batchId", "metadata"] {
        assert!(init.get(field).is_some(), "{field} in {init}");
    }
}

#[tokio::test]
async fn every_described_call_exists_and_needs_a_token() {
    let env = TestEnv::with(Database::Sqlite, &[crate::hooks::WITH_SECRET]);
    let server = env.start().await;
    for (method, path, _) in operations(&document(&server).await) {
        let id = "018f4e6e-7f3a-7000-8000-000000000001";
        let path_with_ids =
            path.replace("{id}", id).replace("{jobId}", id).replace("{fileId}", id).replace("{tenant}", "t");
        let url = format!("{}{path_with_ids}", server.url);
        let answer = server.http.request(method.clone(), url).send().await.expect("an answer");
        let expected = match path.as_str() {
            "/healthz" | "/readyz" | "/metrics" => 200,
            // It needs a signed URL instead.
            "/api/v2/workers/jobs/{jobId}/input" => 400,
            _ => 401,
        };
        assert_eq!(answer.status(), expected, "{method} {path}");
    }
}

/// The values of an attribute, in the order of the page.
fn attributes<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let start = format!("{name}=\"");
    page.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[tokio::test]
async fn the_page_loads_nothing_from_other_hosts() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let redirect = server.http.get(format!("{}/docs", server.url)).send().await.expect("an answer");
    assert!(redirect.status().is_redirection(), "{}", redirect.status());
    assert_eq!(redirect.headers()["location"], "/docs/");
    let base: reqwest::Url = format!("{}/docs/", server.url).parse().expect("a URL");
    let page = server.http.get(base.clone()).send().await.expect("an answer");
    assert_eq!(page.status(), 200);
    let page = page.text().await.expect("text");
    let mut assets = attributes(&page, "src");
    assets.extend(attributes(&page, "href"));
    assert!(assets.iter().any(|asset| asset.ends_with(".js")), "{page}");
    assert!(assets.iter().any(|asset| asset.ends_with(".css")), "{page}");
    for asset in assets {
        let url = base.join(asset).expect("a URL");
        assert_eq!(url.origin(), base.origin(), "{asset} is on another host");
        let answer = server.http.get(url).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{asset}");
        if asset.contains("initializer") {
            let text = answer.text().await.expect("text");
            assert!(text.contains("/openapi.json"), "{text}");
            assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
        }
    }
}

/// Collects the fields of a schema that have no example, with nested schemas. References, enums and booleans need none.
fn without_example(schema: &Value, path: &str, found: &mut Vec<String>) {
    let is = |kind: &str| match &schema["type"] {
        Value::String(only) => only == kind,
        Value::Array(any) => any.iter().any(|one| one == kind),
        _ => false,
    };
    if ["$ref", "example", "examples", "enum", "const"].iter().any(|key| schema.get(key).is_some())
        || is("boolean")
    {
        return;
    }
    if let Some(choices) = ["oneOf", "anyOf", "allOf"].iter().find_map(|key| schema[key].as_array()) {
        let real = choices.iter().filter(|choice| choice["type"] != "null");
        real.for_each(|choice| without_example(choice, path, found));
    } else if let Some(properties) = schema["properties"].as_object() {
        properties.iter().for_each(|(name, field)| without_example(field, &format!("{path}.{name}"), found));
    } else if is("array") {
        without_example(&schema["items"], path, found);
    } else {
        found.push(path.to_owned());
    }
}

#[tokio::test]
async fn every_field_and_every_parameter_has_an_example() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let document = document(&server).await;
    let mut missing = Vec::new();
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        without_example(schema, name, &mut missing);
    }
    for (method, path, operation) in operations(&document) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if parameter.get("example").is_none() {
                without_example(
                    &parameter["schema"],
                    &format!("{method} {path}: {}", parameter["name"]),
                    &mut missing,
                );
            }
        }
        let answers = operation["responses"].as_object().expect("responses").values();
        for body in answers.chain(operation.get("requestBody")) {
            for (kind, content) in body["content"].as_object().into_iter().flatten() {
                if content.get("example").is_none() {
                    without_example(&content["schema"], &format!("{method} {path}: {kind}"), &mut missing);
                }
            }
        }
    }
    assert!(missing.is_empty(), "{} have no example: {missing:#?}", missing.len());
}

/// Two schemas with the same name become one in the document, which is wrong for one of them.
#[tokio::test]
async fn each_sweep_result_has_a_separate_schema() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let document = document(&server).await;
    let mut named = Vec::new();
    references(&document["components"]["schemas"]["Report"], &mut named);
    assert_eq!(named.iter().collect::<BTreeSet<_>>().len(), 6, "{named:?}");
    for (schema, field) in [
        ("StuckFileRecoveryResult", "reEnqueued"),
        ("OrphanCleanupResult", "executionTime"),
        ("BatchTimeoutResult", "expiredBatches"),
        ("PendingCleanupsResult", "exhausted"),
        ("QuotaSyncResult", "driftBytes"),
        ("UploadWindowResult", "rescued"),
        ("OrphanBlobsResult", "total"),
        ("AbandonedUploadsResult", "deleted"),
        ("OldFailuresResult", "warnings"),
    ] {
        let described = &document["components"]["schemas"][schema]["properties"];
        assert!(described.get(field).is_some(), "{schema}.{field} in {described}");
    }
}
