//! The web page in a real browser. Each test runs a script of `tests/browser` against the real program. An unexpected
//! error in the browser fails it: on the console, a failed request, or a violation of the content security policy.

use std::path::{Path, PathBuf};

use harness::{browser, radosgw};
use serde_json::json;

use crate::cli::program::Place;

const STAGES: (&str, &str) = ("PIPELINE_STAGES", "scan,extract,chunk,embed");
/// The scan stage is left to outside workers, which the scenario starts and kills.
const WITHOUT_SCAN: (&str, &str) = ("PIPELINE_BUILTIN_STAGES", "extract,chunk,embed");
/// The sweep does not run during the test: only the page retries stuck files.
const NO_RECOVERY_SWEEP: (&str, &str) = ("STUCK_RECOVERY_SCHEDULE", "0 0 1 1 *");
const SHORT_LEASE: (&str, &str) = ("JOB_LEASE_MS", "1500");
/// A process with the role worker would recover the file of a killed worker by itself.
const WITHOUT_WORKERS: &str = "api,sweeper,ingest";

fn run(scenario: &str, settings: &[(&str, &str)]) {
    run_with_roles("api,worker,sweeper,ingest", scenario, settings);
}

fn run_with_roles(roles: &str, scenario: &str, settings: &[(&str, &str)]) {
    let place = Place::new();
    let server = place.serve_as(roles, &[&[STAGES], settings].concat());
    let token = |tenant: &str, user: &str, role: &str| {
        let arguments = ["token", "--tenant", tenant, "--user", user, "--role", role, "--expires", "12h"];
        place.run(&arguments).expect(0).stdout.trim().to_owned()
    };
    let tokens = json!({
        "user": token("acme", "ada", "user"),
        "admin": token("acme", "amos", "admin"),
        "operator": token("ops", "olga", "operator"),
        "worker": token("ops", "wim", "worker"),
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
fn a_user_signs_in_with_a_token_and_is_signed_out_when_it_expires() {
    run("sign_in", &[]);
}

#[test]
fn a_dropped_file_becomes_ready_without_a_reload() {
    run("upload", &[]);
}

#[test]
fn the_stuck_file_of_a_killed_worker_is_retried_from_the_page() {
    let short_threshold = ("STUCK_FILE_THRESHOLD_MS", "1500");
    run_with_roles(WITHOUT_WORKERS, "stuck_file", &[NO_RECOVERY_SWEEP, SHORT_LEASE, short_threshold]);
}

#[test]
fn a_failed_file_is_processed_again_from_the_page() {
    run("dead_letter", &[WITHOUT_SCAN, NO_RECOVERY_SWEEP]);
}

#[test]
fn an_operator_releases_a_quarantined_file_from_the_page() {
    run("quarantine", &[]);
}

#[test]
fn an_upload_continues_after_a_reload_and_in_one_tab_at_a_time() {
    run("resume_upload", &[("PIPELINE_STAGES", "")]);
}

#[test]
fn a_large_upload_sends_only_its_missing_parts_after_a_reload() {
    run("large_upload", &[("PIPELINE_STAGES", ""), ("MULTIPART_THRESHOLD_BYTES", "20MiB")]);
}

#[test]
fn each_role_calls_only_what_it_is_allowed_to() {
    run("roles", &[]);
}

#[test]
fn an_operator_runs_sweeps_sets_limits_and_retries_deletes() {
    let one_attempt = ("CLEANUP_MAX_ATTEMPTS", "1");
    let no_cleanup_sweep = ("CLEANUP_SWEEP_SCHEDULE", "0 0 1 1 *");
    let no_limit = ("ORPHAN_DELETE_LIMIT_PERCENT", "0");
    let events = ("INGEST_BLOB_URL", "file:./archive");
    run("maintenance", &[one_attempt, no_cleanup_sweep, no_limit, events]);
}

#[test]
fn every_page_is_accessible_in_both_themes_and_on_a_phone() {
    let short_threshold = ("STUCK_FILE_THRESHOLD_MS", "6000");
    run_with_roles(WITHOUT_WORKERS, "appearance", &[NO_RECOVERY_SWEEP, SHORT_LEASE, short_threshold]);
}

/// CORS rules of the bucket: without them the browser blocks uploads from the page.
const CORS: &str = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>PUT</AllowedMethod>\
    <AllowedMethod>GET</AllowedMethod><AllowedHeader>*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
    </CORSRule></CORSConfiguration>";

/// Runs it with a fresh bucket that permits requests of browsers.
fn run_on_s3(scenario: &str) {
    let gateway = radosgw::shared();
    let bucket = gateway.create_bucket();
    let allowed = gateway.request("PUT", &format!("/{bucket}?cors="), CORS.as_bytes()).expect("an answer");
    assert_eq!(allowed.status, 200, "{}", String::from_utf8_lossy(&allowed.body));
    let (url, endpoint) = (format!("s3://{bucket}/files"), gateway.endpoint());
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
    run(scenario, &settings);
}

#[test]
fn bytes_are_sent_directly_to_a_store_of_another_origin() {
    run_on_s3("store_on_other_origin");
}

#[test]
fn pages_of_other_origins_show_pictures_and_no_uploaded_file_runs() {
    run("inline", &[("PIPELINE_STAGES", "")]);
}

#[test]
fn pages_of_other_origins_show_pictures_that_s3_sends() {
    run_on_s3("inline");
}
