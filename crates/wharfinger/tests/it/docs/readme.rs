//! Runs the three calls of README.md in a shell.

use std::process::{Command, Stdio};

use crate::cli::program::Place;

/// The block of shell lines that contains `marker`.
fn block(marker: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(path).expect("README.md");
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let found = blocks.map(|(block, _)| block).find(|block| block.contains(marker));
    found.unwrap_or_else(|| panic!("README.md has no block with {marker}")).to_owned()
}

#[test]
fn the_three_calls_of_the_readme_upload_a_file() {
    let place = Place::new();
    let server = place.serve(&[]);
    let lines = block("$url/init").replace("http://127.0.0.1:8080", &server.url);
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_wharfinger")).parent().expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-euc", &lines])
        .current_dir(place.path())
        .env_clear()
        .env("PATH", path)
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("\"status\":\"queued\"") || stdout.contains("\"status\":\"ready\""), "{stdout}");
}
