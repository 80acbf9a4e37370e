//! `wharfinger put`: files and folders of every shape, each uploaded once and told of.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::Value;

use super::program::{Place, Ran};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

/// Runs `put` against a server of this process, as user `u` of tenant `t`.
fn put(place: &Place, server: &TestApp, arguments: &[&str]) -> Ran {
    let token = server.me().token;
    let environment = [("WHARFINGER_SERVER", server.url.as_str()), ("WHARFINGER_TOKEN", token.as_str())];
    place.run_with(&environment, &[&["put"], arguments].concat())
}

/// What the server holds: the path in a file's metadata (or its name), and its bytes.
async fn held(env: &TestEnv, server: &TestApp) -> BTreeMap<String, Vec<u8>> {
    let files = server.me().get("/api/v2/files?limit=1000").await.expect(200)["files"].take();
    let files = files.as_array().expect("a list").clone();
    let count = files.len();
    let held: BTreeMap<String, Vec<u8>> = files
        .into_iter()
        .map(|file| {
            assert_eq!(file["status"], "ready", "{file}");
            let id = file["fileId"].as_str().expect("an id");
            let bytes = std::fs::read(env.blob_dir().join("uploads/t/u").join(id)).expect("an object");
            assert_eq!(file["size"], bytes.len());
            assert_eq!(file["checksumSha256"], crate::uploads::sha256(&bytes));
            let path =
                file["metadata"]["path"].as_str().unwrap_or(file["fileName"].as_str().expect("a name"));
            assert_eq!(path.rsplit('/').next(), file["fileName"].as_str());
            (path.to_owned(), bytes)
        })
        .collect();
    assert_eq!(held.len(), count, "each exactly once");
    held
}

/// A folder of files with names and shapes that trip programs up.
fn odd_folder(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let files = [
        ("plain.txt", b"plain".to_vec()),
        ("empty", Vec::new()),
        ("deep/er/est/file", b"deep".to_vec()),
        ("deep/empty too", Vec::new()),
        ("-rf", b"a dash".to_vec()),
        ("--json", b"two dashes".to_vec()),
        (".hidden", b"hidden".to_vec()),
        ("spaces and 'quotes' \"both\"", b"q".to_vec()),
        ("percent%2Fslash", b"p".to_vec()),
        ("ünï/日本語 👩‍🚀", b"u".to_vec()),
        ("same/name", b"same bytes".to_vec()),
        ("same too/name", b"same bytes".to_vec()),
        ("big", (0..1_500_000_u32).map(|n| (n % 251) as u8).collect()),
    ];
    for (name, bytes) in &files {
        place.write(&format!("folder/{name}"), bytes);
    }
    std::fs::create_dir_all(place.path().join("folder/nothing/in/here")).expect("a folder");
    std::os::unix::fs::symlink("/", place.path().join("folder/link")).expect("a link");
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

async fn a_folder_is_uploaded_whole_and_a_second_time_not_at_all(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let place = Place::new();
    let wanted = odd_folder(&place);
    let first = put(&place, &server, &["folder"]).expect(0);
    assert!(first.stdout.ends_with("13 uploaded, 0 unchanged, 0 failed\n"), "{}", first.stdout);
    assert_eq!(held(&env, &server).await, wanted);

    let again = put(&place, &server, &["folder", "--json"]).expect(0).json();
    let (summary, each) = again.split_last().expect("a summary");
    assert_eq!(summary, &serde_json::json!({ "uploaded": 0, "unchanged": 13, "failed": 0 }));
    assert!(each.iter().all(|line| line["outcome"] == "unchanged" && line["status"] == "ready"), "{each:?}");
    assert_eq!(held(&env, &server).await, wanted);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM files").await, 13);
    assert_eq!(env.scalar("SELECT COUNT(DISTINCT batch_id) FROM files").await, 1);
    assert_eq!(env.texts("SELECT status FROM upload_batches").await, ["completed"]);

    place.write("folder/plain.txt", "PLAIN");
    let changed = put(&place, &server, &["folder"]).expect(0).stdout;
    assert!(changed.ends_with("1 uploaded, 12 unchanged, 0 failed\n"), "{changed}");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM files").await, 14);
    assert_eq!(env.texts("SELECT status FROM upload_batches").await, ["completed"; 2]);
    oracle::all_is_healed(&env, &server).await;
}

async fn what_was_deleted_since_or_is_asked_for_again_is_uploaded_again(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let place = Place::new();
    place.write("a", "abc");
    let id = |ran: Ran| ran.expect(0).json()[0]["fileId"].as_str().expect("an id").to_owned();
    let first = id(put(&place, &server, &["a", "--json"]));
    for _ in 0..2 {
        me.delete(&format!("/api/v2/files/{}", id(put(&place, &server, &["a", "--json"])))).await.expect(204);
    }
    let fresh = put(&place, &server, &["a", "--json"]).expect(0).json();
    assert_eq!(fresh[0]["outcome"], "uploaded");
    assert_ne!(fresh[0]["fileId"], first.as_str());

    let again = put(&place, &server, &["a", "--again", "--json"]).expect(0).json();
    assert_eq!(again[0]["outcome"], "uploaded");
    assert_ne!(again[0]["fileId"], fresh[0]["fileId"]);
    assert_eq!(me.used().await, 6);
    let unchanged = put(&place, &server, &["a", "--json"]).expect(0).json();
    assert_eq!(
        (&unchanged[0]["outcome"], &unchanged[0]["fileId"]),
        (&"unchanged".into(), &fresh[0]["fileId"])
    );
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_uploaded_is_told_of_and_stops_nothing_else() {
    let env = TestEnv::with(Database::Sqlite, &[("MAX_FILE_SIZE_BYTES", "1000")]);
    let server = env.start().await;
    let place = Place::new();
    place.write("folder/good", "good");
    place.write("folder/too large", "x".repeat(1_001));
    place.write("folder/line\nbreak", "x");
    let not_text = place.path().join("folder").join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    std::fs::write(not_text, "x").expect("a file");
    let _socket =
        std::os::unix::net::UnixListener::bind(place.path().join("folder/socket")).expect("a socket");
    place.write("zlast", "last");
    let ran = put(&place, &server, &["nowhere", "folder", "zlast", "--json"]).expect(1);
    let lines = ran.json();
    let (summary, each) = lines.split_last().expect("a summary");
    assert_eq!(summary, &serde_json::json!({ "uploaded": 2, "unchanged": 0, "failed": 5 }));
    let failed: BTreeMap<&str, &str> = each
        .iter()
        .filter(|line| line["outcome"] == "failed")
        .map(|line| (line["path"].as_str().expect("a path"), line["error"].as_str().expect("words")))
        .collect();
    assert_eq!(failed.len(), 5, "{failed:?}");
    assert!(failed["nowhere"].contains("No such file"), "{failed:?}");
    assert!(failed["folder/too large"].contains("413"), "{failed:?}");
    assert!(failed["folder/line\nbreak"].contains("fileName"), "{failed:?}");
    assert!(failed["folder/socket"].contains("not a regular file"), "{failed:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("5 of 7"), "{ran:?}");
    let names: Vec<String> = held(&env, &server).await.into_keys().collect();
    assert_eq!(names, ["good", "zlast"]);

    let plain = put(&place, &server, &["nowhere", "zlast"]).expect(1);
    assert!(plain.stdout.lines().any(|line| line.starts_with("FAILED  nowhere")), "{plain:?}");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_that_time_does_not_mend_are_not_tried_again() {
    let env = TestEnv::with(Database::Sqlite, &[("DEFAULT_TENANT_QUOTA_BYTES", "5")]);
    let server = env.start().await;
    let place = Place::new();
    place.write("a", "five!");
    place.write("b", "too much");
    let ran = put(&place, &server, &["a", "b", "--jobs", "1"]).expect(1);
    assert!(ran.stdout.contains("FAILED  b  403"), "{ran:?}");
    assert!(ran.stdout.contains("1 uploaded, 0 unchanged, 1 failed"), "{ran:?}");
    let expired = place.run(&["put", "a", "--server", &server.url, "--token", "x.y.z"]).expect(1);
    assert!(expired.stdout.contains("FAILED  a  401"), "{expired:?}");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_files_that_are_the_same_to_the_server_are_both_well() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let place = Place::new();
    let bytes = "same".repeat(100_000);
    for folder in ["a", "b", "c"] {
        place.write(&format!("{folder}/name"), &bytes);
    }
    // Named one by one they have no folder to tell them apart, and go the same way at the same time.
    let ran = put(&place, &server, &["a/name", "b/name", "c/name"]).expect(0);
    assert!(ran.stdout.ends_with("1 uploaded, 2 unchanged, 0 failed\n"), "{ran:?}");
    assert_eq!(held(&env, &server).await.into_keys().collect::<Vec<_>>(), ["name"]);
    oracle::all_is_healed(&env, &server).await;
}

#[test]
fn without_files_or_a_token_it_is_wrong_usage() {
    let place = Place::new();
    place.write("a", "abc");
    assert!(!place.run(&["put"]).expect(2).stderr.is_empty());
    place.run(&["put", "a"]).expect_usage("--token");
    for jobs in ["0", "65", "many"] {
        assert!(!place.run(&["put", "a", "--jobs", jobs]).expect(2).stderr.is_empty());
    }
    assert!(!place.data().exists(), "a client makes no server's secrets");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_for_machines_is_one_object_for_each_file() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let place = Place::new();
    place.write("f/a", "abc");
    let ran = put(&place, &server, &["f", "--json"]).expect(0);
    assert_eq!(ran.stderr, "");
    let [line, summary] = &ran.json()[..] else { panic!("two lines: {ran:?}") };
    let file = &server.me().get("/api/v2/files").await.expect(200)["files"][0];
    assert_eq!(
        line,
        &serde_json::json!({
            "path": "f/a", "fileId": file["fileId"], "size": 3, "status": "ready", "outcome": "uploaded",
            "batchId": file["batchId"],
        })
    );
    let batch = format!("/api/v2/batches/{}", file["batchId"].as_str().expect("a batch"));
    assert_eq!(server.me().get(&batch).await.expect(200)["status"], "completed");
    assert_eq!(summary, &serde_json::json!({ "uploaded": 1, "unchanged": 0, "failed": 0 }));
    assert_eq!(file["metadata"], serde_json::json!({ "path": "a" }));
    let single = put(&place, &server, &["f/a", "--again", "--json"]).expect(0).json();
    let path = format!("/api/v2/files/{}", single[0]["fileId"].as_str().expect("an id"));
    assert_eq!(server.me().get(&path).await.expect(200)["metadata"], Value::Null, "a file has no folder");
}

on_each_database!(
    a_folder_is_uploaded_whole_and_a_second_time_not_at_all,
    what_was_deleted_since_or_is_asked_for_again_is_uploaded_again,
);
