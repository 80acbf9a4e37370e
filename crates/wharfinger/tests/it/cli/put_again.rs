//! `wharfinger put` in difficult conditions: a server that starts late, a wrong server, and a client that is killed.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::program::{Place, Ran};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

/// Starts `put` and does not wait for it.
fn spawn(place: &Place, server: &str, token: &str, arguments: &[&str]) -> Child {
    place
        .command(&[&["put", "--server", server, "--token", token], arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn finish(child: Child) -> Ran {
    child.wait_with_output().expect("it ends").into()
}

#[test]
fn put_waits_for_a_server_that_starts_late() {
    let place = Place::new();
    place.write("a", "abc");
    let token = place.token("t", "u", "user");
    let address = harness::free_address();
    let listener = TcpListener::bind(&address).expect("a free port");
    let child = spawn(&place, &format!("http://{address}"), &token, &["a", "--json"]);
    // The first connection is closed before the server starts.
    drop(listener.accept().expect("a first try"));
    drop(listener);
    let served = place.serve_at(&address, &[]);
    let lines = finish(child).expect(0).json();
    assert_eq!(lines[0]["outcome"], "uploaded", "{lines:?}");
    assert!(served.terminate().success());
}

#[test]
fn the_answer_of_a_wrong_server_is_reported() {
    let place = Place::new();
    place.write("a", "abc");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let child = spawn(&place, &format!("http://{address}"), "token-to-hide", &["a"]);
    // Another program answers at this address. A retry does not help.
    let answering = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut connection, _) = listener.accept().expect("a try");
        let mut request = [0; 4_096];
        let _ = connection.read(&mut request).expect("a request");
        connection.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nwhat").expect("an answer");
    });
    let ran = finish(child).expect(1);
    answering.join().expect("it answered");
    assert!(ran.stdout.contains("FAILED  a  404 what"), "{ran:?}");
    assert!(!format!("{ran:?}").contains("token-to-hide"), "{ran:?}");
}

async fn after_kills_and_a_new_run_each_file_is_there_once(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let place = Place::new();
    let mut expected = BTreeMap::new();
    for n in 0..24_usize {
        let bytes = format!("{n}:").repeat(n * 1_000);
        place.write(&format!("folder/f{n}"), &bytes);
        expected.insert(format!("f{n}"), bytes.len() as u64);
    }
    // Each run is killed when it has reported this many files. Other files may be in any state.
    for lines_before_the_kill in [1, 2, 3] {
        let mut child = spawn(&place, &server.url, &me.token, &["folder", "--jobs", "3"]);
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        for _ in 0..lines_before_the_kill {
            stdout.read_line(&mut String::new()).expect("a line");
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
    let last = finish(spawn(&place, &server.url, &me.token, &["folder", "--json"])).expect(0).json();
    let summary = last.last().expect("a summary");
    assert_eq!(summary["failed"], 0, "{last:?}");
    assert!(summary["unchanged"].as_u64() >= Some(3), "a reported file was sent again: {summary}");

    let files = me.get("/api/v2/files?limit=1000").await.expect(200)["files"].take();
    let text = |file: &Value, member: &str| file[member].as_str().expect("text").to_owned();
    let mut stored = BTreeMap::new();
    for file in files.as_array().expect("a list") {
        assert_eq!(file["status"], "ready", "{file}");
        let before = stored.insert(text(file, "fileName"), file["size"].as_u64().expect("a size"));
        assert_eq!(before, None, "{} is there twice", file["fileName"]);
    }
    assert_eq!(stored, expected);
    assert_eq!(me.used().await, expected.values().sum::<u64>());
    assert_eq!(
        env.texts("SELECT status FROM upload_batches").await,
        ["completed"],
        "each run finds the same batch"
    );
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(after_kills_and_a_new_run_each_file_is_there_once);
