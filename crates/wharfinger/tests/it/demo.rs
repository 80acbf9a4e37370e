//! The demo as anybody starts it: every panel of the page comes to life, and what is broken heals.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::program::Place;
use crate::cli::serve::shell;
use crate::page;

/// The traffic, what heals after it, and a machine on which all of it takes several times as long.
const PATIENCE: Duration = Duration::from_secs(900);

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
            // Somebody's own server must not come to harm.
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
        let shown =
            lines.by_ref().find_map(|line| line.split_once("a token from: ").map(|(_, how)| how.to_owned()));
        let minted = shell(&shown.expect("how to get a token")).output().expect("sh runs");
        demo.token = String::from_utf8(minted.stdout).expect("a token").trim().to_owned();
        // What it tells is for people: somebody has to read it, or it would wait.
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

/// What is on the page, each with what makes it live.
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

fn lives(answer: &Value, figure: &str) -> bool {
    answer.pointer(figure).is_some_and(|value| value.as_u64().map_or(!value.is_null(), |number| number > 0))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_lives_and_nothing_stays_broken() {
    // Before the traffic begins: to install it may take as long.
    harness::browser::ready();
    let place = Place::new();
    let demo = Demo::start(&place);
    let began = Instant::now();
    let until = began + PATIENCE;
    let mut dead: Vec<_> = PANELS.into();
    let mut picture = None;
    while !dead.is_empty() {
        assert!(Instant::now() < until, "these never lived: {dead:?}");
        for (panel, path, figure) in dead.clone() {
            if lives(&demo.get(path).await, figure) {
                dead.retain(|(name, ..)| *name != panel);
                println!("{panel} after {:?}", began.elapsed());
                // The last of what is broken on purpose: there is most to see now. Other panels live on meanwhile.
                if panel == "missing blobs" {
                    picture = Some(tokio::task::spawn_blocking(shoot(&place, &demo)));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    picture.expect("missing blobs were seen").await.expect("a picture is taken");

    for (what, path, figure) in [
        ("stuck files", "/api/v2/uploads/stuck", "/total"),
        ("exhausted cleanups", "/api/v1/maintenance/cleanup/status", "/exhausted"),
        ("the spool", "/api/v2/maintenance/spool", "/spool/files"),
        ("orphans", "/api/v2/uploads/orphans", "/orphanBlobs/count"),
    ] {
        while demo.get(path).await.pointer(figure).and_then(Value::as_u64) != Some(0) {
            assert!(Instant::now() < until, "{what} did not heal");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("{what} healed after {:?}", began.elapsed());
    }
    let interrupted = Command::new("kill").args(["-INT", &demo.child.id().to_string()]).status();
    assert!(interrupted.expect("kill runs").success());
    let mut demo = demo;
    assert!(demo.child.wait().expect("it ends").success());
    let left: Vec<_> = std::fs::read_dir(place.path()).expect("its folder").collect();
    assert!(left.is_empty(), "nothing is left of it: {left:?}");
}

/// What takes the picture.
fn shoot(place: &Place, demo: &Demo) -> impl FnOnce() + Send + 'static {
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
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}{told}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn what_is_not_its_own_is_left_alone() {
    let place = Place::new();
    place.write("kept/precious", b"mine");
    place.run(&["demo", "--data-dir", "kept"]).expect_usage("--data-dir");
    place.run(&["demo", "--listen", "127.0.0.1:0"]).expect_usage("--listen");
    assert_eq!(std::fs::read(place.path().join("kept/precious")).expect("still there"), b"mine");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let ran = place.run(&["demo", "--listen", &address]).expect(1);
    assert!(ran.stderr.contains("cannot be listened on"), "{}", ran.stderr);
}
