//! `docs/examples/api.sh` as a reader would run it, against the real program.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli::program::{Place, Served};

/// What a walk by curl cannot show: a worker's input is asked for by a URL that only large ones have.
const NOT_SHOWN: [&str; 1] = ["GET /api/v2/workers/jobs/{jobId}/input"];

fn run(place: &Place, server: &Served) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/api.sh");
    let output = Command::new("bash")
        .arg(script)
        .env("WHARFINGER_SERVER", &server.url)
        .env("WHARFINGER_TOKEN", place.token("acme", "ann", "user"))
        .env("OPERATOR_TOKEN", place.token("ops", "op", "operator"))
        .env("WORKER_TOKEN", place.token("ops", "scanner", "worker"))
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .expect("bash and curl");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wrong}\nlog: {}", place.log());
    said.into_owned()
}

/// Whether a path that was called is one of the document's, with something for each parameter.
fn is_of(called: &str, described: &str) -> bool {
    let (called, described): (Vec<_>, Vec<_>) = (called.split('/').collect(), described.split('/').collect());
    called.len() == described.len()
        && called.iter().zip(described).all(|(is, said)| said.starts_with('{') || *is == said)
}

/// The calls that it says it made: method and path.
fn calls(said: &str) -> Vec<(&str, &str)> {
    let lines = said.lines().filter_map(|line| line.split_once('→')).map(|(call, _)| call.trim());
    let pairs = lines.filter_map(|call| call.split_once(' '));
    pairs.map(|(method, path)| (method, path.trim().split('?').next().unwrap_or_default())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_through_the_api_ends_well_and_leaves_out_no_call() {
    let place = Place::new();
    // Somebody else has to scan: the walk itself.
    let server = place.serve(&[
        ("PIPELINE_STAGES", "scan,extract,chunk,embed"),
        ("PIPELINE_BUILTIN_STAGES", "extract,chunk,embed"),
    ]);
    let said = run(&place, &server);
    let called = calls(&said);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let document = client.get(format!("{}/openapi.json", server.url)).send().await.expect("an answer");
    let document: Value = serde_json::from_str(&document.text().await.expect("text")).expect("JSON");
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys().map(|method| method.to_uppercase()) {
            let call = format!("{method} {path}");
            let shown = called.iter().any(|(made, at)| **made == *method && is_of(at, path));
            assert_eq!(shown, !NOT_SHOWN.contains(&call.as_str()), "{call} in\n{said}");
        }
    }
}

/// As a server is by default, which works on every stage itself.
#[test]
fn the_walk_needs_no_special_settings() {
    let place = Place::new();
    let server = place.serve(&[("PIPELINE_STAGES", "scan,extract,chunk,embed")]);
    assert!(run(&place, &server).contains("All answers are as expected."));
}
