//! Keys from a database query: read in any order and without writes, and rejected if they are not keys.

use std::str::FromStr as _;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::{StoreFixture, refused, report, samples};

/// A table whose keys a collation sorts in another order than their bytes.
const TABLE: &str = "CREATE TABLE files (id INTEGER, path TEXT, size BIGINT);
    INSERT INTO files VALUES (1, 'b/Z', 3), (2, 'b/a', 3), (3, 'ä', 2), (4, 'a-1', 3), (5, 'a/1', 999),
    (6, NULL, 1), (7, '', 1), (8, 'b/a', 3), (9, 'absent', 1);";
const KEPT: [&str; 5] = ["a-1", "a/1", "b/Z", "b/a", "ä"];

async fn sqlite(fixture: &StoreFixture) -> String {
    let path = fixture.place.path().join("app.db");
    let options = SqliteConnectOptions::from_str(&format!("sqlite:{}", path.display())).expect("a URL");
    let mut connection = options.create_if_missing(true).connect().await.expect("a database");
    sqlx::raw_sql(AssertSqlSafe(TABLE)).execute(&mut connection).await.expect("a table");
    format!("sqlite:{}", path.display())
}

fn postgres() -> String {
    let server = harness::postgres::shared();
    let url = server.create_database();
    server.psql(&url, TABLE).expect("a table");
    url
}

async fn databases(fixture: &StoreFixture) -> [String; 2] {
    [sqlite(fixture).await, postgres()]
}

fn fixture() -> StoreFixture {
    let fixture = StoreFixture::with(&KEPT);
    fixture.put("orphan", 3);
    fixture
}

/// A row that was added during the interruption protects its object.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_deletion_runs_the_query_again() {
    for n in 0..2 {
        let fixture = fixture();
        fixture.put("orphan", 4);
        fixture.put("orphan-2", 4);
        let url = databases(&fixture).await[n].clone();
        let delete = |log: &str| {
            let asked = ["--sql", "SELECT path FROM files", "--database", &url, "--json"];
            let wide = ["--delete", "--yes", "--limit-percent", "50", "--deleted-to", log];
            fixture.run(&[&asked[..], &wide].concat())
        };
        refused(delete("no-such-folder/log"), &["no-such-folder", "Run the same command again to resume"]);
        let row = "INSERT INTO files VALUES (10, 'orphan', 6)";
        match n {
            0 => {
                let options = SqliteConnectOptions::from_str(&url).expect("a URL");
                let mut connection = options.connect().await.expect("a database");
                sqlx::raw_sql(row).execute(&mut connection).await.expect("a row");
            }
            _ => drop(harness::postgres::shared().psql(&url, row).expect("a row")),
        }
        let ran = delete("log").expect(0);
        assert!(ran.stderr.contains("resuming the interrupted run"), "{ran:?}");
        let deletion = report(&ran)["deletion"].clone();
        assert_eq!((&deletion["objects"], &deletion["keyAdded"]), (&1.into(), &1.into()), "{deletion}");
        assert!(fixture.has("orphan") && !fixture.has("orphan-2"));
    }
}

/// An old copy of a database lacks the objects that were stored later.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_if_the_database_may_be_an_old_copy() {
    let fixture = StoreFixture::new();
    KEPT.iter().for_each(|key| fixture.put(key, 10));
    fixture.put("stored-since", 3);
    for url in databases(&fixture).await {
        let delete = [
            "--sql",
            "SELECT path FROM files",
            "--database",
            &url,
            "--delete",
            "--yes",
            "--limit-percent",
            "90",
        ];
        refused(fixture.run(&delete), &["older than it seems", "--as-of"]);
    }
    assert!(fixture.has("stored-since"));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_sizes_are_read_from_a_query() {
    let fixture = fixture();
    for url in databases(&fixture).await {
        let query = "SELECT path, size FROM files ORDER BY path DESC";
        let found = report(&fixture.run(&["--sql", query, "--database", &url, "--json"]).expect(0));
        assert_eq!(samples(&found["orphans"]), ["orphan"], "{url}");
        assert_eq!(samples(&found["missing"]), ["absent"]);
        let keys = &found["keys"];
        assert_eq!(
            (&keys["count"], &keys["duplicates"], &keys["skipped"]),
            (&6.into(), &1.into(), &2.into())
        );
        assert_eq!(samples(&found["resized"]), ["a/1"], "its size differs from the table");
        // The URL, with its password, can be in the environment.
        let environment = [("WHARFINGER_RECONCILE_DATABASE", url.as_str())];
        let bucket = fixture.url();
        let arguments = ["reconcile", "--bucket", &bucket, "--sql", "SELECT path FROM files", "--json"];
        let again = report(&fixture.place.run_with(&environment, &arguments).expect(0));
        assert_eq!((&again["orphans"], &again["resized"]["objects"]), (&found["orphans"], &0.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_cannot_write() {
    let fixture = fixture();
    for url in databases(&fixture).await {
        for statement in [
            "DELETE FROM files RETURNING path",
            "INSERT INTO files (path) VALUES ('x') RETURNING path",
            "DROP TABLE files",
            "SELECT path FROM files; DELETE FROM files",
            // These do not change the database, but they would write a file.
            "VACUUM INTO 'copy.db'",
            "PRAGMA query_only=OFF; VACUUM INTO 'copy.db'",
            "SELECT path FROM files) AS x; VACUUM INTO 'copy.db'; SELECT * FROM (SELECT path FROM files",
            "COPY (SELECT path FROM files) TO '/tmp/wharfinger-copy'",
            "ATTACH 'copy.db' AS copy",
        ] {
            refused(fixture.run(&["--sql", statement, "--database", &url]), &["wharfinger: "]);
        }
        assert!(!fixture.place.path().join("copy.db").exists(), "no file is written");
        for same in [
            "SELECT path FROM files;",
            "SELECT path FROM files -- all;",
            "WITH f AS (SELECT path FROM files) SELECT * FROM f ;",
        ] {
            let found = report(&fixture.run(&["--sql", same, "--database", &url, "--json"]).expect(0));
            assert_eq!(found["keys"]["count"], 6, "{same}");
        }
        let count = report(
            &fixture.run(&["--sql", "SELECT path FROM files", "--database", &url, "--json"]).expect(0),
        );
        assert_eq!(count["keys"]["count"], 6, "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_without_keys_is_rejected() {
    let fixture = fixture();
    let rejected = |url: &str, query: &str, word: &str| {
        refused(fixture.run(&["--sql", query, "--database", url, "--delete", "--yes"]), &[word]);
    };
    for url in databases(&fixture).await {
        rejected(&url, "SELECT path FROM files WHERE 1 = 0", "the list of keys is empty");
        rejected(&url, "SELECT NULL FROM files WHERE path IS NULL", "");
        rejected(&url, "SELECT id, path FROM files", "a key is text");
        rejected(&url, "SELECT path, path FROM files WHERE path = 'a-1'", "a size is an integer");
        rejected(&url, "SELECT nothing FROM files", "rejected the query");
    }
    rejected("sqlite:not-there.db", "SELECT 1", "not-there.db");
    assert!(!fixture.place.path().join("not-there.db").exists(), "no database is created");
    rejected("postgres://user@127.0.0.1:1/none", "SELECT 1", "cannot connect to the database");
    assert!(fixture.has("orphan"));
}
