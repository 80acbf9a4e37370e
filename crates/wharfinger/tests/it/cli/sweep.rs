//! `wharfinger sweep`: beside a server or alone, dry or not, for people and for machines.

use serde_json::json;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use super::program::Place;

/// A server has been there.
fn served(place: &Place) {
    assert!(place.serve(&[]).terminate().success());
}

#[test]
fn one_sweep_is_run_and_told() {
    let place = Place::new();
    // Opening changes nothing: a schema that is not there is not made.
    let told = place.run(&["sweep", "orphan-cleanup", "--dry-run"]).expect(1).stderr;
    assert!(told.contains("WHARFINGER_DATABASE_URL") && told.contains("wharfinger migrate"), "{told}");
    served(&place);
    let ran = place.run(&["sweep", "orphan-cleanup", "--json"]).expect(0).json();
    assert_eq!(ran.len(), 1, "{ran:?}");
    assert_eq!((&ran[0]["name"], &ran[0]["dryRun"]), (&json!("orphan-cleanup"), &json!(false)));
    assert_eq!(ran[0]["result"]["oldFailures"]["deleted"], 0);
    assert_eq!(ran[0]["error"], serde_json::Value::Null);
    let told = place.run(&["sweep", "batch-timeout", "--dry-run"]).expect(0).stdout;
    assert!(told.contains("nothing was changed") && told.contains("  expiredBatches: 0"), "{told}");
    let told = place.run(&["sweep", "quota-sync"]).expect(0).stdout;
    assert!(told.contains("quota-sync: done") && told.contains("  driftBytes: 0"), "{told}");
}

#[test]
fn an_unknown_sweep_is_wrong_usage_and_the_names_are_told() {
    let place = Place::new();
    for arguments in [&["sweep"][..], &["sweep", "spring"], &["sweep", "upload-window", "--wet"]] {
        let ran = place.run(arguments).expect(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{arguments:?}: {ran:?}");
    }
    let told = place.run(&["sweep", "spring"]).expect(2).stderr;
    assert!(told.contains("orphan-cleanup") && told.contains("upload-window"), "{told}");
}

/// A command that was started without the server's settings does not undo what these ask for.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_webhook_is_left_to_the_server() {
    let place = Place::new();
    let environment = [
        ("WEBHOOK_URL", "https://hooks.example.com/in"),
        ("WEBHOOK_SECRET", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"),
    ];
    served(&place);
    place.run_with(&environment, &["sweep", "upload-window"]).expect(0);
    let line = "INSERT INTO outbox (id, destination, tenant_id, notification_id, subject, place, attempts, created_at, \
                next_attempt_at) VALUES ('1', 'webhook', 't', 'n', 's', 1, 0, 0, 0)";
    let file = SqliteConnectOptions::new().filename(place.data().join("wharfinger.db"));
    let mut connection = file.connect().await.expect("a connection");
    sqlx::query(line).execute(&mut connection).await.expect("a line");
    place.run(&["sweep", "upload-window"]).expect(0);
    let left: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM outbox").fetch_one(&mut connection).await.expect("a number");
    assert_eq!(left, 1);
}
