//! Runs `docs/examples/api.sh` against the real program.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli::program::{Place, Served};

/// Calls that the script does not show. Only a large worker input has this URL.
const NOT_SHOWN: [&str; 2] = ["GET /api/v2/workers/jobs/{jobId}/input", "POST /hooks/object-created"];

fn run(place: &Place, server: &Served) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/api.sh");
    let output = Command::new("bash")
        .arg(script)
        .env("WHARFINGER_URL", &server.url)
        .env("WHARFINGER_TOKEN", place.token("acme", "ann", "user"))
        .env("OPERATOR_TOKEN", place.token("ops", "op", "operator"))
        .env("WORKER_TOKEN", place.token("ops", "scanner", "worker"))
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .expect("bash and curl");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}\nlog: {}", place.log());
    stdout.into_owned()
}

/// Whether a called path matches a path of the document, with any value for each parameter.
fn matches_path(called: &str, described: &str) -> bool {
    let (called, described): (Vec<_>, Vec<_>) = (called.split('/').collect(), described.split('/').collect());
    called.len() == described.len()
        && called.iter().zip(described).all(|(value, segment)| segment.starts_with('{') || *value == segment)
}

/// Method and path of each call in the output.
fn calls(output: &str) -> Vec<(&str, &str)> {
    let lines = output.lines().filter_map(|line| line.split_once('→')).map(|(call, _)| call.trim());
    let pairs = lines.filter_map(|call| call.split_once(' '));
    pairs.map(|(method, path)| (method, path.trim().split('?').next().unwrap_or_default())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_example_succeeds_and_shows_every_call() {
    let place = Place::new();
    // The script itself is the scan worker.
    let server = place.serve(&[
        ("PIPELINE_STAGES", "scan,extract,chunk,embed"),
        ("PIPELINE_BUILTIN_STAGES", "extract,chunk,embed"),
    ]);
    let output = run(&place, &server);
    let called = calls(&output);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let document = client.get(format!("{}/openapi.json", server.url)).send().await.expect("an answer");
    let document: Value = serde_json::from_str(&document.text().await.expect("text")).expect("JSON");
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys().map(|method| method.to_uppercase()) {
            let call = format!("{method} {path}");
            let shown = called.iter().any(|(called_method, called_path)| {
                **called_method == *method && matches_path(called_path, path)
            });
            assert_eq!(shown, !NOT_SHOWN.contains(&call.as_str()), "{call} in\n{output}");
        }
    }
}

/// By default, the server runs every stage itself.
#[test]
fn the_api_example_needs_no_special_settings() {
    let place = Place::new();
    let server = place.serve(&[("PIPELINE_STAGES", "scan,extract,chunk,embed")]);
    assert!(run(&place, &server).contains("All answers are as expected."));
}
