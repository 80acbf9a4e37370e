//! `wharfinger key`: keys created, listed and revoked, directly in the catalog.

use serde_json::Value;

use super::program::Place;
use crate::test_app::Database;

fn on(database: Database) -> (Place, Vec<(&'static str, String)>) {
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
fn a_key_is_printed_once_listed_and_revoked() {
    for database in [Database::Sqlite, Database::Postgres] {
        let (place, environment) = on(database);
        let environment: Vec<(&str, &str)> = environment.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let run = |arguments: &[&str]| place.run_with(&environment, arguments);
        assert!(run(&["key", "list"]).expect(0).stdout.contains("wharfinger key create"));
        assert_eq!(run(&["key", "list", "--json"]).expect(0).json(), [serde_json::json!({ "keys": [] })]);

        let create = [
            "key",
            "create",
            "--role",
            "user",
            "--tenant",
            "acme",
            "--user",
            "ann",
            "--expires",
            "90d",
            "--name",
            "nightly import",
        ];
        let ran = run(&create).expect(0);
        let token = ran.stdout.trim();
        assert_eq!(ran.stdout, format!("{token}\n"), "standard output has only the key");
        let id =
            token.strip_prefix("whf_").and_then(|rest| rest.split_once('_')).expect("whf_<id>_<secret>").0;
        assert!(
            ran.stderr.contains(id) && ran.stderr.contains("only now") && ran.stderr.contains("expires at")
        );
        assert!(!ran.stderr.contains(token));

        let listed = run(&["key", "list", "--json"]).expect(0).json().remove(0)["keys"][0].clone();
        for (member, expected) in
            [("keyId", id), ("role", "user"), ("tenant", "acme"), ("user", "ann"), ("name", "nightly import")]
        {
            assert_eq!(listed[member], expected, "{listed}");
        }
        let time = |member: &str| {
            let text = listed[member].as_str().expect("a time");
            chrono::DateTime::parse_from_rfc3339(text).expect("RFC 3339").timestamp_millis()
        };
        assert_eq!(time("expiresAt") - time("createdAt"), 90 * 86_400_000);
        assert_eq!((&listed["lastUsedAt"], &listed["revokedAt"]), (&Value::Null, &Value::Null));
        let table = run(&["key", "list"]).expect(0).stdout;
        assert!(
            table.contains("nightly import") && table.contains("valid") && !table.contains(token),
            "{table}"
        );

        let ran = run(&["key", "revoke", id]).expect(0);
        assert!(ran.stdout.contains("within a minute"), "{ran:?}");
        assert!(run(&["key", "list"]).expect(0).stdout.contains("revoked"));
        // Again, and by the whole key, as somebody does who has just found it in a log.
        let again = run(&["key", "revoke", token, "--json"]).expect(0).json().remove(0);
        assert_eq!(again["keyId"], id);
        let ran = run(&["key", "revoke", "0123"]).expect(1);
        assert!(ran.stderr.contains("`0123`") && ran.stderr.contains("key list"), "{ran:?}");
    }
}

#[test]
fn a_role_needs_its_tenant_and_user() {
    let place = Place::new();
    let create = |arguments: &str| {
        let words: Vec<&str> = ["key", "create"].into_iter().chain(arguments.split(' ')).collect();
        place.run(&words)
    };
    for (arguments, named) in [
        ("--role user --user u", "--tenant is needed"),
        ("--role user --tenant t", "--user is needed"),
        ("--role admin", "--tenant is needed"),
        ("--role ingest --user u", "--tenant is needed"),
        ("--role metrics --tenant t", "--tenant has no meaning"),
        ("--role metrics --user u", "--user has no meaning"),
    ] {
        create(arguments).expect_usage(named);
    }
    for arguments in
        ["--tenant t", "--role root", "--role metrics --expires never", "--role metrics --expires 0s"]
    {
        let ran = create(arguments).expect(2);
        assert!(!ran.stderr.is_empty() && ran.stdout.is_empty(), "{ran:?}");
    }
    place.run(&["key", "create", "--role", "metrics", "--name", "a\nb"]).expect_usage("--name");
    place.run(&["key", "create", "--role", "admin", "--tenant", "a\nb"]).expect_usage("--tenant");
    assert!(!place.data().join("wharfinger.db").exists(), "wrong usage touches no database");
    for arguments in [
        "--role user --tenant t --user u",
        "--role admin --tenant t",
        "--role operator",
        "--role worker",
        "--role worker --tenant t",
        "--role ingest --tenant t",
        "--role metrics",
    ] {
        create(arguments).expect(0);
    }
}
