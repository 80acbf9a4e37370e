//! The demo as a user starts it: every panel of the page gets data, and every fault is repaired.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::program::Place;
use crate::cli::serve::shell;
use crate::page;

/// Enough for the traffic and the repairs after it on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(900);

struct Demo {
    child: Child,
    url: String,
    token: String,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Demo {
    fn start(place: &Place) -> Demo {
        let address = harness::free_address();
        let child = Command::new(env!("CARGO_BIN_EXE_wharfinger"))
            .args(["demo", "--speed", "3", "--listen", &address])
            .current_dir(place.path())
            .env("TMPDIR", place.path())
            // The demo must ignore the settings of a real server.
            .env("WHARFINGER_DATABASE_URL", "postgres://nobody@127.0.0.1:9/real")
            .env("WHARFINGER_BLOB_URL", "s3://real")
            .env("WHARFINGER_PUBLIC_URL", "http://127.0.0.1:9")
            .env("DLQ_DIR", "/nowhere")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut demo = Demo { child, url: format!("http://{address}"), token: String::new() };
        let output = demo.child.stdout.take().expect("its output");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let command = lines
            .by_ref()
            .find_map(|line| line.split_once("a token from: ").map(|(_, command)| command.to_owned()));
        let minted = shell(&command.expect("a command that creates a token")).output().expect("sh runs");
        demo.token = String::from_utf8(minted.stdout).expect("a token").trim().to_owned();
        // The output must be read, or the program blocks when the pipe is full.
        std::thread::spawn(move || lines.for_each(drop));
        demo
    }

    async fn get(&self, path: &str) -> Value {
        let request = reqwest::Client::new().get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        match request.send().await {
            Ok(answer) => answer.json().await.unwrap_or_default(),
            Err(_) => Value::Null,
        }
    }
}

/// The panels of the page, each with the call and the field that show its data.
const PANELS: [(&str, &str, &str); 14] = [
    ("ready files", "/api/v2/uploads/dashboard", "/statusDistribution/ready"),
    ("quarantined files", "/api/v2/uploads/dashboard", "/statusDistribution/quarantined"),
    ("recent errors", "/api/v2/uploads/dashboard", "/recentErrors/0"),
    ("throughput", "/api/v2/uploads/dashboard", "/metrics/throughput24h"),
    ("batches", "/api/v2/uploads/dashboard", "/activeBatches"),
    ("a queue", "/api/v2/uploads/dashboard", "/queueDepths/file-embed"),
    ("stuck files", "/api/v2/uploads/stuck", "/total"),
    ("dead letters", "/api/v2/dlq", "/jobs/0"),
    ("orphans", "/api/v2/uploads/orphans", "/orphanBlobs/count"),
    ("missing blobs", "/api/v2/uploads/orphans", "/missingBlobs/count"),
    ("exhausted cleanups", "/api/v1/maintenance/cleanup/status", "/exhausted"),
    ("tenants", "/api/v2/tenants", "/tenants/3"),
    ("the spool", "/api/v2/maintenance/spool", "/spool/files"),
    ("notifications", "/api/v2/notifications", "/notifications/0"),
];

fn has_data(answer: &Value, figure: &str) -> bool {
    answer.pointer(figure).is_some_and(|value| value.as_u64().map_or(!value.is_null(), |number| number > 0))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_data_and_every_fault_is_repaired() {
    // Installed before the traffic starts, because the installation may take longer than the traffic.
    harness::browser::ready();
    let place = Place::new();
    let demo = Demo::start(&place);
    let started = Instant::now();
    let deadline = started + TIMEOUT;
    let mut empty: Vec<_> = PANELS.into();
    let mut screenshot = None;
    while !empty.is_empty() {
        assert!(Instant::now() < deadline, "panels without data: {empty:?}");
        for (panel, path, figure) in empty.clone() {
            if has_data(&demo.get(path).await, figure) {
                empty.retain(|(name, ..)| *name != panel);
                println!("{panel} after {:?}", started.elapsed());
                // At the last fault the page shows the most problems. The other panels are checked meanwhile.
                if panel == "missing blobs" {
                    screenshot = Some(tokio::task::spawn_blocking(take_screenshot(&place, &demo)));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    screenshot.expect("missing blobs were seen").await.expect("the screenshot is taken");

    for (what, path, figure) in [
        ("stuck files", "/api/v2/uploads/stuck", "/total"),
        ("exhausted cleanups", "/api/v1/maintenance/cleanup/status", "/exhausted"),
        ("the spool", "/api/v2/maintenance/spool", "/spool/files"),
        ("orphans", "/api/v2/uploads/orphans", "/orphanBlobs/count"),
    ] {
        while demo.get(path).await.pointer(figure).and_then(Value::as_u64) != Some(0) {
            assert!(Instant::now() < deadline, "{what}: not repaired");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("{what} repaired after {:?}", started.elapsed());
    }
    let interrupted = Command::new("kill").args(["-INT", &demo.child.id().to_string()]).status();
    assert!(interrupted.expect("kill runs").success());
    let mut demo = demo;
    assert!(demo.child.wait().expect("the demo ends").success());
    let left: Vec<_> = std::fs::read_dir(place.path()).expect("its folder").collect();
    assert!(left.is_empty(), "files of the demo are left: {left:?}");
}

/// Returns the function that takes the screenshot.
fn take_screenshot(place: &Place, demo: &Demo) -> impl FnOnce() + Send + 'static {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/demo.mjs");
    let mut browser = harness::browser::script(&script);
    browser
        .env("SCENARIO", "demo")
        .env("BASE", &demo.url)
        .env("PLACE", place.path())
        .env("PROGRAM", env!("CARGO_BIN_EXE_wharfinger"))
        .env("TOKENS", json!({ "operator": demo.token }).to_string())
        .env("SCREENSHOTS", page::screenshots())
        .env("WORKER", "");
    move || {
        let output = browser.output().expect("node runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}{errors}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn the_demo_refuses_folders_with_data_and_addresses_in_use() {
    let place = Place::new();
    place.write("kept/data", b"mine");
    place.run(&["demo", "--data-dir", "kept"]).expect_usage("--data-dir");
    place.run(&["demo", "--listen", "127.0.0.1:0"]).expect_usage("--listen");
    assert_eq!(std::fs::read(place.path().join("kept/data")).expect("the file still exists"), b"mine");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let ran = place.run(&["demo", "--listen", &address]).expect(1);
    assert!(ran.stderr.contains("cannot listen on"), "{}", ran.stderr);
}
