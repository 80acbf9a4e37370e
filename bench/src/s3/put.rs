//! `wharfinger put` of one large file beside `rclone` and `aws s3 cp` to the same gateway, in turn, each into an empty
//! bucket. Only `put` hashes the file before the upload, and lets the server read and compare the object after it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::radosgw::{Options, Radosgw};

use super::environment;
use crate::server::{Server, base, binary};
use crate::timing::say;

const ROUNDS: usize = 3;
const DEFAULT_BYTES: u64 = 1 << 30;

pub(crate) async fn run() {
    let bytes =
        std::env::args().nth(2).map_or(DEFAULT_BYTES, |text| text.parse().expect("a number of bytes"));
    let gateway = Radosgw::start_with(Options { on_disk: true }).expect("a gateway");
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let file = folder.path().join("large.bin");
    let output = std::fs::File::create(&file).expect("a file");
    let made = Command::new("head").args(["-c", &bytes.to_string(), "/dev/urandom"]).stdout(output).status();
    assert!(made.expect("head runs").success());
    say(format!("{bytes} bytes, {ROUNDS} rounds; MB/s"));
    for _ in 0..ROUNDS {
        let ours = put(&gateway, &file).await;
        let rclone = rclone(&gateway, &file);
        let aws = aws(&gateway, &file);
        let speed = |took: Option<Duration>| {
            took.map_or("not installed".to_owned(), |took| {
                format!("{:.0}", bytes as f64 / 1e6 / took.as_secs_f64())
            })
        };
        say(format!(
            "wharfinger put {}, rclone {}, aws s3 cp {}",
            speed(Some(ours)),
            speed(rclone),
            speed(aws)
        ));
    }
}

async fn put(gateway: &Radosgw, file: &Path) -> Duration {
    let server = Server::start_with(None, &environment(gateway, &gateway.create_bucket())).await;
    let started = Instant::now();
    let put = Command::new(binary())
        .args(["put".as_ref(), file.as_os_str()])
        .env("WHARFINGER_URL", &server.url)
        .env("WHARFINGER_TOKEN", &server.token)
        .stdout(Stdio::null())
        .status();
    assert!(put.expect("put runs").success());
    started.elapsed()
}

/// With the same number of parallel parts, and the same part size.
fn rclone(gateway: &Radosgw, file: &Path) -> Option<Duration> {
    let bucket = gateway.create_bucket();
    let remote = format!(
        ":s3,provider=Ceph,endpoint='{}',access_key_id={},secret_access_key={}:{bucket}/large.bin",
        gateway.endpoint(),
        gateway.access_key(),
        gateway.secret_key()
    );
    let flags = ["--s3-upload-concurrency", "4", "--s3-chunk-size", "16M", "--s3-no-check-bucket"];
    // rclone refuses to start if this is set.
    timed(Command::new("rclone").env_remove("AWS_CA_BUNDLE").arg("copyto").args(flags).arg(file).arg(remote))
}

fn aws(gateway: &Radosgw, file: &Path) -> Option<Duration> {
    let bucket = gateway.create_bucket();
    let target = format!("s3://{bucket}/large.bin");
    let endpoint = gateway.endpoint();
    let mut command = Command::new("aws");
    command.args(["--endpoint-url", &endpoint, "s3", "cp", "--only-show-errors"]).arg(file).arg(target);
    timed(
        command.envs(environment(gateway, &bucket)).env("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required"),
    )
}

fn timed(command: &mut Command) -> Option<Duration> {
    let started = Instant::now();
    let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    ended.success().then(|| started.elapsed())
}
