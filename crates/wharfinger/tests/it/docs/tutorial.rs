//! The tutorial "Uploads for a web app": its settings, its app, and a browser that uses it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use harness::{browser, free_address};

use crate::cli::program::Place;
use crate::page;

/// Ends with the test.
struct App(Child);

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tutorials() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorials")
}

/// The settings that the shell blocks of the tutorial export, with the address of the test's app.
fn exported(address: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(tutorials().join("web-app.md")).expect("the tutorial");
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let exports = blocks.flat_map(|(block, _)| block.lines()).filter(|line| line.starts_with("export "));
    let script: Vec<String> = exports.map(|line| line.replace("127.0.0.1:5000", address)).collect();
    let output = Command::new("bash")
        .args(["-euc", &format!("{}\nenv -0", script.join("\n"))])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = String::from_utf8(output.stdout).expect("text");
    let pairs = all.split('\0').filter_map(|pair| pair.split_once('='));
    let ours = pairs
        .filter(|(name, _)| ["WHARFINGER_", "WEBHOOK_", "UPLOAD_"].iter().any(|it| name.starts_with(it)));
    ours.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_web_app_of_the_tutorial_works_in_a_browser() {
    let (place, address) = (Place::new(), free_address());
    let settings = exported(&address);
    assert!(settings.len() >= 6, "{settings:?}");
    let mut settings: Vec<(&str, &str)> =
        settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // The default stages: a picture has no text, and becomes ready.
    settings.push(("PIPELINE_STAGES", "scan,extract,chunk,embed"));
    let server = place.serve(&settings);
    let table = place.path().join("app.db");
    let port = address.rsplit(':').next().expect("a port");
    let mut app = Command::new("python3")
        .arg(tutorials().join("web-app/app.py"))
        .envs(settings.iter().copied())
        .env("WHARFINGER_URL", &server.url)
        .env("PORT", port)
        .env("DATABASE", &table)
        .env("no_proxy", "127.0.0.1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut first = String::new();
    BufReader::new(app.stdout.take().expect("a pipe")).read_line(&mut first).expect("a line");
    let _app = App(app);
    assert!(first.contains(&address), "{first}");

    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let mut node = browser::script(&tests.join("tutorial.mjs"));
    let output = node
        .env("SCENARIO", "tutorial")
        .env("BASE", &server.url)
        .env("APP", format!("http://{address}"))
        .env("TABLE", &table)
        .env("PLACE", place.path())
        .env("TOKENS", "{}")
        .env("SCREENSHOTS", page::screenshots())
        .output()
        .expect("node runs");
    assert!(
        output.status.success(),
        "{}{}\nlog:\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        place.log(),
    );
}
