//! Real bytes through the stages of a server: the speed of each stage, and the memory of the server and its child
//! processes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::server::{Server, base, binary, client};
use crate::timing::say;

const MIB: u64 = 1 << 20;

pub(crate) async fn run() {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    for (mib, stages) in
        [(16, "scan,extract,chunk,embed"), (64, "scan,extract,chunk,embed"), (2_048, "scan,extract,chunk")]
    {
        let file = folder.path().join(format!("{mib}.txt"));
        write_text(&file, mib * MIB);
        measure(&file, mib, stages).await;
        std::fs::remove_file(&file).expect("removed");
    }
}

pub(crate) fn write_text(path: &Path, bytes: u64) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("a file"));
    let (mut written, mut line) = (0, 0);
    while written < bytes {
        let text =
            format!("Line {line}: berth {} holds {} crates of coffee for overseas.\n", line % 97, line * 7);
        file.write_all(text.as_bytes()).expect("space on the disk");
        written += text.len() as u64;
        line += 1;
    }
    file.flush().expect("space on the disk");
}

async fn measure(file: &Path, mib: u64, stages: &str) {
    let settings = [
        ("PIPELINE_STAGES", stages.to_owned()),
        ("EXTRACT_TEXT_BYTES_MAX", "4GiB".to_owned()),
        ("CHUNK_SIZE", "4000".to_owned()),
    ];
    let server = Server::start_with(None, &settings).await;
    let idle = server.resident_kib();
    let put = Command::new(binary())
        .arg("put")
        .arg(file)
        .env("WHARFINGER_URL", &server.url)
        .env("WHARFINGER_TOKEN", &server.token)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(put.expect("put runs").success());
    let http = client();
    let get = async |path: &str| {
        let request = http.get(format!("{}{path}", server.url)).bearer_auth(&server.token);
        request.send().await.expect("an answer").json::<Value>().await.expect("JSON")
    };
    let mut child_peak = 0;
    let id = loop {
        child_peak = child_peak.max(server.children_peak_kib());
        let files = get("/api/v2/files").await;
        match files["files"][0]["status"].as_str() {
            Some("ready") => break files["files"][0]["fileId"].as_str().expect("an id").to_owned(),
            Some("failed") => return say(format!("{mib} MiB: {}", files["files"][0]["error"])),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let history = get(&format!("/api/v2/files/{id}/history")).await;
    let events = history["events"].as_array().expect("a list");
    let mut line = format!("{mib} MiB of text:");
    for pair in events.windows(2) {
        let stage = pair[0]["to"].as_str().unwrap_or_default();
        if ["scanning", "extracting", "chunking", "embedding"].contains(&stage) {
            let seconds = (ms(&pair[1]["at"]) - ms(&pair[0]["at"])) / 1e3;
            line += &format!(" {stage} {:.0} MB/s,", (mib * MIB) as f64 / 1e6 / seconds.max(1e-3));
        }
    }
    say(format!(
        "{line} at most {:.0} MiB in the server (idle {:.0}) and {:.0} in a child",
        server.peak_kib() as f64 / 1024.0,
        idle as f64 / 1024.0,
        child_peak as f64 / 1024.0
    ));
}

/// The milliseconds since midnight of an API timestamp.
fn ms(at: &Value) -> f64 {
    let text = at.as_str().unwrap_or_default();
    let clock = text.split('T').nth(1).unwrap_or_default().trim_end_matches('Z');
    let parts: Vec<f64> = clock.split(':').filter_map(|part| part.parse().ok()).collect();
    match parts[..] {
        [hours, minutes, seconds] => ((hours * 60.0 + minutes) * 60.0 + seconds) * 1e3,
        _ => 0.0,
    }
}
