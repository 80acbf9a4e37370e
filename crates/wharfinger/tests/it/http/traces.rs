//! Traces by OTLP: each file is one trace, from init to ready.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;
use wharfinger::core::Role;

use crate::test_app::{Database, TestApp, TestEnv};

type Collected = Arc<Mutex<Vec<Span>>>;

/// A collector that keeps all spans. An export is protobuf in a POST request.
async fn collector() -> (String, Collected) {
    let collected = Collected::default();
    let receive = async |State(collected): State<Collected>, body: Bytes| {
        let request = ExportTraceServiceRequest::decode(body).expect("protobuf");
        let spans = request.resource_spans.into_iter().flat_map(|resource| {
            let named = resource.resource.iter().flat_map(|resource| &resource.attributes).any(|attribute| {
                let value = attribute.value.as_ref().and_then(|value| value.value.clone());
                attribute.key == "service.name" && value == Some(Any::StringValue("wharfinger".into()))
            });
            assert!(named, "the resource has the service name");
            resource.scope_spans.into_iter().flat_map(|scope| scope.spans)
        });
        collected.lock().expect("not poisoned").extend(spans);
    };
    let router = Router::new().route("/v1/traces", post(receive)).with_state(collected.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, collected)
}

/// A flush has a time limit, so it is repeated until `count` spans have arrived.
async fn flushed(server: &TestApp, collected: &Collected, count: usize) -> Vec<Span> {
    for _ in 0..10 {
        let app = server.app.clone();
        tokio::task::spawn_blocking(move || app.core.traces.flush()).await.expect("flushed");
        if collected.lock().expect("not poisoned").len() >= count {
            break;
        }
    }
    let mut spans = std::mem::take(&mut *collected.lock().expect("not poisoned"));
    spans.sort_by_key(|span| span.start_time_unix_nano);
    spans
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|found| found.value.as_ref()?.value.clone()) {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        other => panic!("{name} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_one_trace_from_init_to_ready() {
    let (url, collected) = collector().await;
    let settings = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())];
    let env = TestEnv::with_stages(Database::Sqlite, "scan,extract,chunk,embed", &settings);
    let server = env.start().await;
    let me = server.me();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = me.request(Method::POST, "/api/v2/files/init").header("traceparent", parent);
    let grant = me.send(request.json(&json!({ "fileName": "a.txt", "size": 5 }))).await.expect(201);
    server.put_bytes(&grant, b"words").await.expect(200);
    let id = grant["fileId"].as_str().expect("an id");
    env.advance(10);
    me.confirm(id).await.expect(200);
    server.settle().await;
    assert_eq!(me.file(id).await["status"], "ready");

    let spans = flushed(&server, &collected, 6).await;
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["init", "confirm", "scan", "extract", "chunk", "embed"]);
    let trace = id.replace('-', "");
    assert!(spans.iter().all(|span| hex(&span.trace_id) == trace), "the trace id is the file id");
    let (root, children) = spans.split_first().expect("a root");
    assert!(root.parent_span_id.is_empty());
    assert!(children.iter().all(|span| span.parent_span_id == root.span_id && span.span_id != root.span_id));
    let [link] = root.links.as_slice() else { panic!("one link, not {:?}", root.links) };
    assert_eq!(
        hex(&link.trace_id),
        "0af7651916cd43dd8448eb211c80319c",
        "the root links to the trace of the client"
    );
    assert!(spans.iter().all(|span| span.end_time_unix_nano >= span.start_time_unix_nano));
    assert_eq!(
        (attribute(root, "wharfinger.tenant"), attribute(root, "wharfinger.file.size")),
        ("t".into(), "5".into())
    );
    assert!(spans.iter().all(|span| attribute(span, "wharfinger.file.id") == id));
}

/// Spans of other processes and of failed attempts belong to the same trace.
#[tokio::test(flavor = "multi_thread")]
async fn external_workers_and_failures_are_traced() {
    let (url, collected) = collector().await;
    let settings = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("PIPELINE_BUILTIN_STAGES", "")];
    let env = TestEnv::with_stages(Database::Sqlite, "scan", &settings);
    let (first, second) = (env.start().await, env.start().await);
    let id = first.me().enqueue("a", b"a").await;
    let worker = second.as_user("ops", "w", Role::Worker);
    let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
    let (job, token) = (&lease["jobs"][0]["jobId"], &lease["jobs"][0]["leaseToken"]);
    let body = json!({ "leaseToken": token, "error": "cannot read the file", "retryable": false });
    worker
        .post(&format!("/api/v2/workers/jobs/{}/fail", job.as_str().expect("a job")), body)
        .await
        .expect(200);
    let mut spans = flushed(&first, &collected, 2).await;
    spans.extend(flushed(&second, &collected, 1).await);
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["init", "confirm", "scan"]);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == id.replace('-', "")));
    let scan = spans.last().expect("the stage");
    assert_eq!(scan.status.as_ref().map(|status| status.message.as_str()), Some("cannot read the file"));
    assert_eq!(attribute(scan, "wharfinger.attempt"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_does_not_delay_files() {
    let settings = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    let env = TestEnv::with(Database::Sqlite, &settings);
    let server = env.start().await;
    let id = server.me().upload("a", b"a").await;
    assert_eq!(server.me().file(&id).await["status"], "ready");
}
