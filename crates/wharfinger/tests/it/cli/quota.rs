//! `wharfinger quota`: sets and shows limits, and corrects counters.

use serde_json::json;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use super::program::Place;
use crate::test_app::Database;

/// A working folder, and the environment that selects the database.
fn setup(database: Database) -> (Place, Vec<(&'static str, String)>) {
    let environment = match database {
        Database::Sqlite => Vec::new(),
        Database::Postgres | Database::Pgvector => vec![
            ("WHARFINGER_DATABASE_URL", harness::postgres::shared().create_database()),
            ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more".to_owned()),
        ],
    };
    (Place::new(), environment)
}

#[test]
fn a_limit_is_set_and_shown() {
    for database in [Database::Sqlite, Database::Postgres] {
        let (place, environment) = setup(database);
        let environment: Vec<(&str, &str)> = environment.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let run = |arguments: &[&str]| place.run_with(&environment, arguments);
        let shown = run(&["quota", "show", "acme", "--json"]).expect(0).json();
        assert_eq!(
            shown,
            [json!({ "tenant": "acme", "used": 0, "limit": 10_737_418_240_u64, "reserved": 0 })],
            "the default"
        );
        let set = run(&["quota", "set", "acme", "3MiB", "--json"]).expect(0).json();
        assert_eq!(set, [json!({ "tenant": "acme", "used": 0, "limit": 3_145_728, "reserved": 0 })]);
        assert_eq!(run(&["quota", "--json", "show", "acme"]).expect(0).json(), set);
        let shown = run(&["quota", "show", "acme"]).expect(0).stdout;
        assert!(shown.contains("acme") && shown.contains("3.0 MiB") && shown.contains("3145728"), "{shown}");
        run(&["quota", "set", "acme", "0"]).expect(0);
        assert_eq!(run(&["quota", "show", "acme", "--json"]).expect(0).json()[0]["limit"], 0);
    }
}

#[test]
fn wrong_limits_and_names_are_wrong_usage() {
    let place = Place::new();
    for arguments in [
        &["quota"][..],
        &["quota", "set", "acme"],
        &["quota", "set", "acme", "much"],
        &["quota", "set", "acme", "-1"],
        &["quota", "set", "acme", "1.5GiB"],
        &["quota", "set", "acme", "9999999TiB"],
        &["quota", "set", "", "1"],
        &["quota", "show", "a\nb"],
        &["quota", "sync", ""],
    ] {
        let ran = place.run(arguments).expect(2);
        assert!(!ran.stderr.is_empty() && ran.stdout.is_empty(), "{arguments:?}: {ran:?}");
    }
    let ran = place.run(&["quota", "sync", "no-such-tenant"]).expect(1);
    assert!(ran.stderr.contains("no-such-tenant"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_counters_are_found_and_corrected() {
    let place = Place::new();
    for tenant in ["acme", "other"] {
        place.run(&["quota", "set", tenant, "1GiB"]).expect(0);
    }
    let exact = place.run(&["quota", "sync", "--json"]).expect(0).json();
    assert_eq!(exact, [json!({ "tenants": 2, "driftBytes": 0, "rebuilt": 0, "failed": 0 })]);
    place.run(&["doctor"]).expect(0);

    let file = SqliteConnectOptions::new().filename(place.data().join("wharfinger.db"));
    let mut connection = file.connect().await.expect("a connection");
    let corrupt = "UPDATE quotas SET used_bytes = 1234 WHERE tenant_id = 'acme'";
    sqlx::query(corrupt).execute(&mut connection).await.expect("changed");
    let report = place.run(&["doctor"]).expect(1);
    assert!(report.stdout.contains("FAIL") && report.stdout.contains("acme"), "{report:?}");
    assert!(report.stdout.contains("wharfinger quota sync"), "doctor does not name the command: {report:?}");

    let synced = place.run(&["quota", "sync", "--json"]).expect(0).json();
    assert_eq!(synced, [json!({ "tenants": 2, "driftBytes": 1234, "rebuilt": 0, "failed": 0 })]);
    assert_eq!(place.run(&["quota", "show", "acme", "--json"]).expect(0).json()[0]["used"], 0);
    place.run(&["doctor"]).expect(0);
    sqlx::query(corrupt).execute(&mut connection).await.expect("changed again");
    let synced = place.run(&["quota", "sync", "acme"]).expect(0).stdout;
    assert!(synced.contains("1234"), "{synced}");
    assert!(place.run(&["quota", "sync"]).expect(0).stdout.contains("exact"));
}
