//! `wharfinger sweep`: with and without `--dry-run`, as text and as JSON.

use serde_json::{Value, json};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use super::program::{Place, Served};

/// Starts and stops a server, so that the schema exists.
fn create_schema(place: &Place) {
    assert!(place.serve(&[]).terminate().success());
}

#[test]
fn a_sweep_runs_and_prints_its_result() {
    let place = Place::new();
    // The command does not create a missing schema.
    let error = place.run(&["sweep", "orphan-cleanup", "--dry-run"]).expect(1).stderr;
    assert!(error.contains("WHARFINGER_DATABASE_URL") && error.contains("wharfinger migrate"), "{error}");
    create_schema(&place);
    let ran = place.run(&["sweep", "orphan-cleanup", "--json"]).expect(0).json();
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert_eq!((&ran[0]["name"], &ran[0]["dryRun"]), (&json!("orphan-cleanup"), &json!(false)));
    assert_eq!(ran[0]["result"]["oldFailures"]["deleted"], 0);
    assert_eq!(ran[0]["error"], serde_json::Value::Null);
    let text = place.run(&["sweep", "batch-timeout", "--dry-run"]).expect(0).stdout;
    assert!(text.contains("nothing was changed") && text.contains("  expiredBatches: 0"), "{text}");
    let text = place.run(&["sweep", "quota-sync"]).expect(0).stdout;
    assert!(text.contains("quota-sync: done") && text.contains("  driftBytes: 0"), "{text}");

    let server =
        place.serve(&[("QUOTA_SYNC_SCHEDULE", "0 0 1 1 *"), ("BATCH_TIMEOUT_SCHEDULE", "0 0 1 1 *")]);
    for (sweep, is_dry_run) in [("quota-sync", false), ("batch-timeout", true)] {
        let runs = runs(&place, &server, sweep);
        let run = runs.iter().find(|run| run["by"] == "command line");
        assert_eq!(run.map(|run| run["dryRun"] == is_dry_run), Some(true), "{sweep}: {runs:?}");
    }
}

/// The history of a sweep, from the server.
fn runs(place: &Place, server: &Served, sweep: &str) -> Vec<Value> {
    let path = format!("{}/api/v2/maintenance/sweeps/{sweep}/runs", server.url);
    let bearer = format!("Authorization: Bearer {}", place.token("ops", "op", "operator"));
    let curl =
        std::process::Command::new("curl").args(["-sS", "--noproxy", "*", "-H", &bearer, &path]).output();
    let page: Value = serde_json::from_slice(&curl.expect("curl runs").stdout).expect("JSON");
    page["runs"].as_array().expect("a list").clone()
}

#[test]
fn an_unknown_sweep_is_wrong_usage_and_the_names_are_listed() {
    let place = Place::new();
    for arguments in [&["sweep"][..], &["sweep", "unknown"], &["sweep", "upload-window", "--unknown"]] {
        let ran = place.run(arguments).expect(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{arguments:?}: {ran:?}");
    }
    let error = place.run(&["sweep", "unknown"]).expect(2).stderr;
    assert!(error.contains("orphan-cleanup") && error.contains("upload-window"), "{error}");
}

/// A command without the server's webhook settings must not delete its outbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_without_webhook_settings_keeps_the_outbox() {
    let place = Place::new();
    let environment = [
        ("WEBHOOK_URL", "https://hooks.example.com/in"),
        ("WEBHOOK_SECRET", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"),
    ];
    create_schema(&place);
    place.run_with(&environment, &["sweep", "upload-window"]).expect(0);
    let insert = "INSERT INTO outbox (id, destination, tenant_id, notification_id, subject, place, attempts, created_at, \
                next_attempt_at) VALUES ('1', 'webhook', 't', 'n', 's', 1, 0, 0, 0)";
    let file = SqliteConnectOptions::new().filename(place.data().join("wharfinger.db"));
    let mut connection = file.connect().await.expect("a connection");
    sqlx::query(insert).execute(&mut connection).await.expect("inserted");
    place.run(&["sweep", "upload-window"]).expect(0);
    let rows: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM outbox").fetch_one(&mut connection).await.expect("a number");
    assert_eq!(rows, 1);
}
