//! The page in a real browser: each scenario is a script of `tests/browser`, played against the real program. What the
//! browser complains of (an error in the console, a request that failed, the policy) fails it.

use std::path::{Path, PathBuf};

use harness::{browser, radosgw};
use serde_json::json;

use crate::cli::program::Place;

const STAGES: (&str, &str) = ("PIPELINE_STAGES", "scan,extract,chunk,embed");
/// The scan is left to workers from outside, which the scenario starts and kills.
const WITHOUT_SCAN: (&str, &str) = ("PIPELINE_BUILTIN_STAGES", "extract,chunk,embed");
/// Nobody but the page sends a stuck file on.
const NEVER: (&str, &str) = ("STUCK_RECOVERY_SCHEDULE", "0 0 1 1 *");
const SHORT_LEASE: (&str, &str) = ("JOB_LEASE_MS", "1500");
/// Processes that work on files take back what a killed worker held. Where none runs, somebody has to look after it.
const WITHOUT_WORKERS: &str = "api,sweeper,ingest";

fn play(scenario: &str, settings: &[(&str, &str)]) {
    play_with("api,worker,sweeper,ingest", scenario, settings);
}

fn play_with(roles: &str, scenario: &str, settings: &[(&str, &str)]) {
    let place = Place::new();
    let server = place.serve_as(roles, &[&[STAGES], settings].concat());
    let token = |tenant: &str, user: &str, role: &str| {
        let arguments = ["token", "--tenant", tenant, "--user", user, "--role", role, "--expires", "12h"];
        place.run(&arguments).expect(0).stdout.trim().to_owned()
    };
    let tokens = json!({
        "user": token("acme", "ada", "user"),
        "admin": token("acme", "amos", "admin"),
        "operator": token("harbour", "olga", "operator"),
        "worker": token("harbour", "wim", "worker"),
    });
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let mut node = browser::script(&tests.join(format!("{scenario}.mjs")));
    node.env("SCENARIO", scenario)
        .env("BASE", &server.url)
        .env("PLACE", place.path())
        .env("PROGRAM", env!("CARGO_BIN_EXE_wharfinger"))
        .env("TOKENS", tokens.to_string())
        .env("SCREENSHOTS", screenshots())
        .env("WORKER", tests.join("../../../../docs/examples/worker.py"))
        .envs(settings.iter().copied());
    let output = node.output().expect("node runs");
    assert!(
        output.status.success(),
        "{scenario} ({}):\n{}{}\nlog:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        place.log(),
    );
}

pub fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots")
}

#[test]
fn people_come_in_with_a_token_and_go_when_it_is_over() {
    play("signing_in", &[]);
}

#[test]
fn a_file_that_is_dropped_becomes_ready_without_a_reload() {
    play("uploading", &[]);
}

#[test]
fn the_stuck_file_of_a_killed_worker_is_retried_from_the_page() {
    let soon = ("STUCK_FILE_THRESHOLD_MS", "1500");
    play_with(WITHOUT_WORKERS, "stuck_file", &[NEVER, SHORT_LEASE, soon]);
}

#[test]
fn a_dead_letter_is_redriven_from_the_page() {
    play("dead_letter", &[WITHOUT_SCAN, NEVER]);
}

#[test]
fn an_upload_goes_on_after_a_reload_and_in_one_tab_at_a_time() {
    play("resuming", &[("PIPELINE_STAGES", "")]);
}

#[test]
fn nobody_calls_what_is_for_others() {
    play("roles", &[]);
}

#[test]
fn an_operator_keeps_the_place_in_order() {
    let one_attempt = ("CLEANUP_MAX_ATTEMPTS", "1");
    let hardly_ever = ("CLEANUP_SWEEP_SCHEDULE", "0 0 1 1 *");
    play("upkeep", &[one_attempt, hardly_ever, ("INGEST_BLOB_URL", "file:./archive")]);
}

#[test]
fn it_looks_well_to_everybody() {
    let soon = ("STUCK_FILE_THRESHOLD_MS", "6000");
    play_with(WITHOUT_WORKERS, "looks", &[NEVER, SHORT_LEASE, soon]);
}

/// What the operator of a bucket allows to pages of the program's origin.
const CORS: &str = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>PUT</AllowedMethod>\
    <AllowedMethod>GET</AllowedMethod><AllowedHeader>*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
    </CORSRule></CORSConfiguration>";

#[test]
fn bytes_go_straight_to_a_store_of_another_origin() {
    let gateway = radosgw::shared();
    let bucket = gateway.create_bucket();
    let allowed = gateway.request("PUT", &format!("/{bucket}?cors="), CORS.as_bytes()).expect("an answer");
    assert_eq!(allowed.status, 200, "{}", String::from_utf8_lossy(&allowed.body));
    let (url, endpoint) = (format!("s3://{bucket}/wharf"), gateway.endpoint());
    let settings = [
        ("PIPELINE_STAGES", ""),
        ("MULTIPART_THRESHOLD_BYTES", "20MiB"),
        ("WHARFINGER_BLOB_URL", url.as_str()),
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", gateway.access_key()),
        ("AWS_SECRET_ACCESS_KEY", gateway.secret_key()),
        ("AWS_REGION", gateway.region()),
        ("STORE", endpoint.as_str()),
    ];
    play("store_apart", &settings);
}
