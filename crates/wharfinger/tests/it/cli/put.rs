//! `wharfinger put`: files and folders with unusual names and sizes are uploaded once and reported.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::Value;

use super::program::{Place, Ran};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

/// Runs `put` against a server of this process, as user `u` of tenant `t`.
fn put(place: &Place, server: &TestApp, arguments: &[&str]) -> Ran {
    let token = server.me().token;
    let environment = [("WHARFINGER_URL", server.url.as_str()), ("WHARFINGER_TOKEN", token.as_str())];
    place.run_with(&environment, &[&["put"], arguments].concat())
}

/// All files of the server: the path in the metadata, or the name, with the bytes.
async fn stored_files(env: &TestEnv, server: &TestApp) -> BTreeMap<String, Vec<u8>> {
    let files = server.me().get("/api/v2/files?limit=1000").await.expect(200)["files"].take();
    let files = files.as_array().expect("a list").clone();
    let count = files.len();
    let stored: BTreeMap<String, Vec<u8>> = files
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
    assert_eq!(stored.len(), count, "a file is there twice");
    stored
}

/// A folder with unusual names, empty files, empty folders and a link.
fn unusual_folder(place: &Place) -> BTreeMap<String, Vec<u8>> {
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

async fn a_folder_is_uploaded_once_and_only_changes_are_uploaded_later(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let place = Place::new();
    let wanted = unusual_folder(&place);
    let first = put(&place, &server, &["folder"]).expect(0);
    assert!(first.stdout.ends_with("13 uploaded, 0 unchanged, 0 failed\n"), "{}", first.stdout);
    assert_eq!(stored_files(&env, &server).await, wanted);

    let again = put(&place, &server, &["folder", "--json"]).expect(0).json();
    let (summary, each) = again.split_last().expect("a summary");
    assert_eq!(summary, &serde_json::json!({ "uploaded": 0, "unchanged": 13, "failed": 0 }));
    assert!(each.iter().all(|line| line["outcome"] == "unchanged" && line["status"] == "ready"), "{each:?}");
    assert_eq!(stored_files(&env, &server).await, wanted);
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

async fn a_file_is_uploaded_again_after_a_delete_or_with_the_again_flag(database: Database) {
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
async fn failed_files_are_reported_and_do_not_stop_the_others() {
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
        .map(|line| (line["path"].as_str().expect("a path"), line["error"].as_str().expect("a text")))
        .collect();
    assert_eq!(failed.len(), 5, "{failed:?}");
    assert!(failed["nowhere"].contains("No such file"), "{failed:?}");
    assert!(failed["folder/too large"].contains("413"), "{failed:?}");
    assert!(failed["folder/line\nbreak"].contains("fileName"), "{failed:?}");
    assert!(failed["folder/socket"].contains("not a regular file"), "{failed:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("5 of 7"), "{ran:?}");
    let names: Vec<String> = stored_files(&env, &server).await.into_keys().collect();
    assert_eq!(names, ["good", "zlast"]);

    let plain = put(&place, &server, &["nowhere", "zlast"]).expect(1);
    assert!(plain.stdout.lines().any(|line| line.starts_with("FAILED  nowhere")), "{plain:?}");
    oracle::all_is_healed(&env, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_refusals_are_not_retried() {
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
async fn identical_files_are_uploaded_once_and_all_succeed() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let place = Place::new();
    let bytes = "same".repeat(100_000);
    for folder in ["a", "b", "c"] {
        place.write(&format!("{folder}/name"), &bytes);
    }
    // Single files have no folder path, so the server cannot distinguish these three.
    let ran = put(&place, &server, &["a/name", "b/name", "c/name"]).expect(0);
    assert!(ran.stdout.ends_with("1 uploaded, 2 unchanged, 0 failed\n"), "{ran:?}");
    assert_eq!(stored_files(&env, &server).await.into_keys().collect::<Vec<_>>(), ["name"]);
    oracle::all_is_healed(&env, &server).await;
}

#[test]
fn put_without_files_or_a_token_is_wrong_usage() {
    let place = Place::new();
    place.write("a", "abc");
    assert!(!place.run(&["put"]).expect(2).stderr.is_empty());
    place.run(&["put", "a"]).expect_usage("--token");
    for jobs in ["0", "65", "many"] {
        assert!(!place.run(&["put", "a", "--jobs", jobs]).expect(2).stderr.is_empty());
    }
    assert!(!place.data().exists(), "a client creates no server secrets");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_output_has_one_object_per_file() {
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
    assert_eq!(
        server.me().get(&path).await.expect(200)["metadata"],
        Value::Null,
        "a single file has no folder path"
    );
}

on_each_database!(
    a_folder_is_uploaded_once_and_only_changes_are_uploaded_later,
    a_file_is_uploaded_again_after_a_delete_or_with_the_again_flag,
);
