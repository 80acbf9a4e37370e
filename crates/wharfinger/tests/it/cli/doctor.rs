//! `wharfinger doctor` and `migrate`: each problem is reported with what to do.

use serde_json::{Value, json};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use super::program::{Place, Ran};

fn checks(ran: &Ran) -> Vec<(String, bool)> {
    let [report] = &ran.json()[..] else { panic!("one object: {ran:?}") };
    let list = report["checks"].as_array().expect("a list");
    let all = list.iter().map(|check| {
        assert!(check["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{check}");
        (check["check"].as_str().expect("a name").to_owned(), check["ok"].as_bool().expect("a boolean"))
    });
    let all: Vec<_> = all.collect();
    assert_eq!(report["ok"], Value::Bool(all.iter().all(|(_, ok)| *ok)));
    all
}

fn failed_checks(ran: &Ran) -> Vec<String> {
    checks(ran).into_iter().filter(|(_, ok)| !ok).map(|(name, _)| name).collect()
}

#[test]
fn a_healthy_installation_passes_every_check() {
    let place = Place::new();
    place.run(&["migrate"]).expect(0);
    let ran = place.run(&["doctor", "--json"]).expect(0);
    let names: Vec<String> = checks(&ran).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["settings", "tokens", "catalog", "blobs", "search", "audit", "cleanups", "stages"]);
    assert_eq!(failed_checks(&ran), Vec::<String>::new());
    let plain = place.run(&["doctor"]).expect(0).stdout;
    assert_eq!(plain.lines().filter(|line| line.starts_with("ok ")).count(), 8, "{plain}");
}

/// If doctor created a database or a store on an unmounted mount point, it would later pass for the real one.
#[test]
fn doctor_creates_nothing_in_an_empty_folder() {
    let place = Place::new();
    let ran = place.run(&["doctor", "--json"]).expect(0);
    assert_eq!(failed_checks(&ran), Vec::<String>::new());
    assert!(!place.data().join("wharfinger.db").exists() && !place.data().join("blobs").exists());
}

#[test]
fn a_postgresql_database_is_checked_too() {
    let place = Place::new();
    let url = harness::postgres::shared().create_database();
    let environment = [
        ("WHARFINGER_DATABASE_URL", url.as_str()),
        ("WHARFINGER_JWT_SECRET", "0123456789abcdef0123456789abcdef"),
    ];
    let ran = place.run_with(&environment, &["doctor", "--json"]).expect(0);
    assert!(checks(&ran).contains(&("clock".to_owned(), true)), "{ran:?}");

    let unreachable = [("WHARFINGER_DATABASE_URL", "postgres://unknown@127.0.0.1:1/none"), environment[1]];
    let ran = place.run_with(&unreachable, &["doctor", "--json"]).expect(1);
    assert_eq!(failed_checks(&ran), ["catalog"]);
    assert!(ran.stdout.contains("WHARFINGER_DATABASE_URL: postgres://unknown@127.0.0.1:1/none"), "{ran:?}");
}

#[test]
fn problems_are_reported_with_exit_code_1() {
    let place = Place::new();
    let blobs = place.write("not-a-folder", b"x");
    let environment = [("WHARFINGER_BLOB_URL", format!("file:{}", blobs.display()))];
    let environment = [(environment[0].0, environment[0].1.as_str())];
    let ran = place.run_with(&environment, &["doctor", "--json"]).expect(1);
    assert_eq!(failed_checks(&ran), ["blobs"]);
    let refused = place.run_with(&environment, &["serve", "--listen", "127.0.0.1:0"]).expect(1);
    assert!(
        refused.stderr.contains("WHARFINGER_BLOB_URL") && refused.stderr.contains("not-a-folder"),
        "{refused:?}"
    );
    let plain = place.run_with(&environment, &["doctor"]).expect(1);
    assert!(plain.stdout.contains("FAIL") && plain.stdout.contains("not-a-folder"), "{plain:?}");
    assert_eq!(plain.stderr.lines().count(), 1, "{plain:?}");

    std::fs::write(place.data().join("wharfinger.db"), b"this is no database at all").expect("a file");
    for leftover in ["wharfinger.db-wal", "wharfinger.db-shm"] {
        let _ = std::fs::remove_file(place.data().join(leftover));
    }
    let ran = place.run(&["doctor", "--json"]).expect(1);
    assert_eq!(failed_checks(&ran), ["catalog"]);
    place.run(&["migrate"]).expect(1);
    place.run(&["quota", "show", "t"]).expect(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_cleanups_are_reported() {
    let place = Place::new();
    place.run(&["migrate"]).expect(0);
    let file = SqliteConnectOptions::new().filename(place.data().join("wharfinger.db"));
    let mut connection = file.connect().await.expect("a connection");
    let exhausted = "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, tenant_id, document_id, size, \
        attempts, max_attempts, created_at, next_attempt_at, finish_at, exhausted, lease_token, lease_until) \
        VALUES ('018f4e6e-7f3a-7000-8000-000000000001', 'uploads/t/u/x', 'disk', 'deleted', 't', 'x', 1, 5, 5, 0, \
        0, 0, 1, 0, 0)";
    sqlx::query(exhausted).execute(&mut connection).await.expect("a row");
    let ran = place.run(&["doctor", "--json"]).expect(1);
    assert_eq!(failed_checks(&ran), ["cleanups"]);
    assert!(ran.stdout.contains("1 exhausted") && ran.stdout.contains("cleanup/pending"), "{ran:?}");
}

#[test]
fn a_schema_is_created_once() {
    let postgres = harness::postgres::shared().create_database();
    for url in ["sqlite:", &postgres] {
        let place = Place::new();
        let first = place.run(&["--database-url", url, "migrate", "--json"]).expect(0).json();
        assert_eq!(first[0]["applied"].as_array().map(Vec::is_empty), Some(false), "{first:?}");
        let again = place.run(&["migrate", "--database-url", url, "--json"]).expect(0).json();
        assert_eq!(again, [json!({ "schema": first[0]["schema"], "applied": [] })]);
        assert!(place.run(&["migrate", "--database-url", url]).expect(0).stdout.contains("up to date"));
    }
}
