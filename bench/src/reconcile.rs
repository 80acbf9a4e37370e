//! `wharfinger reconcile` on S3 (a Ceph gateway in memory) with the list from a file, both databases and an inventory,
//! and `rclone lsf | sort | comm`. Each runs between two bare listings. One object in a hundred has no key.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use futures::StreamExt as _;
use harness::radosgw::Radosgw;
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::s3::{bare_client, environment};
use crate::server::{base, binary};
use crate::timing::{rate, say};

const SIZES: [usize; 2] = [10_000, 1_000_000];
const FOLDERS: usize = 97;
const ONE_ORPHAN_IN: usize = 100;
/// Keys without an object. Few enough that all of them are checked again.
const MISSING: usize = 100;
const ROUNDS: usize = 3;
const PUTS_AT_ONCE: usize = 64;

pub(crate) async fn run() {
    let sizes: Vec<usize> = std::env::args().skip(2).filter_map(|size| size.parse().ok()).collect();
    for objects in if sizes.is_empty() { SIZES.to_vec() } else { sizes } {
        measure(objects).await;
    }
}

fn key(n: usize) -> String {
    format!("files/d{:02}/{n:09}.bin", n % FOLDERS)
}

/// The expression for [`key`] in SQL.
fn key_in_sql(is_sqlite: bool) -> String {
    match is_sqlite {
        true => format!("printf('files/d%02d/%09d.bin', i % {FOLDERS}, i)"),
        false => format!(
            "'files/d' || lpad((i % {FOLDERS})::text, 2, '0') || '/' || lpad(i::text, 9, '0') || '.bin'"
        ),
    }
}

fn is_known(n: usize) -> bool {
    !n.is_multiple_of(ONE_ORPHAN_IN)
}

async fn measure(objects: usize) {
    let gateway = Radosgw::start().expect("a gateway");
    let bucket = gateway.create_bucket();
    let bare = bare_client(&gateway);
    fill(&bare, &bucket, objects).await;
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let sources = sources(folder.path(), &bucket, objects).await;

    say(format!("{objects} objects and about as many keys, {ROUNDS} rounds:"));
    let mut before = list(&bare, &bucket, objects).await;
    for _ in 0..ROUNDS {
        for (name, arguments) in &sources {
            let (took, peak_kib) = reconcile(&gateway, &bucket, folder.path(), arguments, objects);
            let after = list(&bare, &bucket, objects).await;
            line(name, objects, took, Some(peak_kib), [before, after]);
            before = after;
        }
        match rclone(&gateway, &bucket, folder.path(), objects) {
            Some(took) => {
                let after = list(&bare, &bucket, objects).await;
                line("rclone lsf | sort | comm", objects, took, None, [before, after]);
                before = after;
            }
            None => say("  rclone is not installed"),
        }
    }
}

/// Prints a run beside the bare listings before and after it, because the speed of the machine changes.
fn line(name: &str, objects: usize, took: Duration, peak_kib: Option<u64>, bare: [Duration; 2]) {
    let [before, after] = bare.map(|listing| listing.as_secs_f64());
    let peak = peak_kib.map_or_else(|| "       ".to_owned(), |kib| format!("{:>3} MiB", kib / 1024));
    say(format!(
        "  {name:<28} {:>8.0} objects/s  {:>7.2} s  {peak}  bare {before:>6.2} and {after:>6.2} s: {:.2}",
        rate(objects, took),
        took.as_secs_f64(),
        took.as_secs_f64() / ((before + after) / 2.0),
    ));
}

async fn fill(bare: &Client, bucket: &str, objects: usize) {
    let started = Instant::now();
    let puts = (0..objects).map(|n| {
        let put = bare.put_object().bucket(bucket).key(key(n)).body(ByteStream::from_static(b"hello"));
        async move { put.send().await.expect("put") }
    });
    futures::stream::iter(puts).buffer_unordered(PUTS_AT_ONCE).for_each(|_| std::future::ready(())).await;
    // When the lists are written, the youngest object must be older than the grace.
    tokio::time::sleep(Duration::from_secs(2)).await;
    say(format!("{objects} objects were put in {:.0} s", started.elapsed().as_secs_f64()));
}

/// The same list in four forms.
async fn sources(folder: &Path, bucket: &str, objects: usize) -> Vec<(&'static str, Vec<String>)> {
    let known = || (0..objects + MISSING).filter(|n| *n >= objects || is_known(*n)).map(key);
    // In the order of the numbers, which differs from the order of the keys.
    let list = folder.join("keys");
    let text: String = known().map(|key| format!("{key}\n")).collect();
    std::fs::write(&list, text).expect("a list");
    let manifest = inventory(folder, bucket, known());

    let sqlite = folder.join("keys.db");
    let last = objects + MISSING - 1;
    let wanted = format!("i >= {objects} OR i % {ONE_ORPHAN_IN} <> 0");
    let connection = sqlx::SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", sqlite.display()));
    let table = format!(
        "CREATE TABLE files (path TEXT); WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last}) \
         INSERT INTO files SELECT {} FROM n WHERE {wanted}",
        key_in_sql(true)
    );
    let mut connection = connection.await.expect("a database");
    sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&mut connection).await.expect("a table");
    connection.close().await.expect("closed");
    let postgres = harness::postgres::shared().create_database();
    let table = format!(
        "CREATE TABLE files AS SELECT {} AS path FROM generate_series(0, {last}) AS n (i) WHERE {wanted}",
        key_in_sql(false)
    );
    harness::postgres::shared().psql(&postgres, &table).expect("a table");

    let query =
        |url: String| ["--sql", "SELECT path FROM files", "--database", &url].map(str::to_owned).to_vec();
    vec![
        ("keys from a file", vec!["--keys".into(), list.display().to_string()]),
        ("keys from PostgreSQL", query(postgres)),
        ("keys from SQLite", query(format!("sqlite:{}", sqlite.display()))),
        ("keys from an inventory (CSV)", vec!["--inventory".into(), manifest]),
    ]
}

fn inventory(folder: &Path, bucket: &str, known: impl Iterator<Item = String>) -> String {
    let rows: String = known.map(|key| format!("\"{bucket}\",\"{key}\",\"5\"\n")).collect();
    let data = folder.join("data.csv");
    std::fs::write(&data, rows).expect("a file");
    assert!(Command::new("gzip").arg("-1").arg(&data).status().expect("gzip runs").success());
    let packed = folder.join("data.csv.gz");
    let sum = Command::new("md5sum").arg(&packed).output().expect("md5sum runs").stdout;
    let sum = String::from_utf8_lossy(&sum).split(' ').next().unwrap_or_default().to_owned();
    let size = std::fs::metadata(&packed).expect("a file").len();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
    let manifest = json!({
        "sourceBucket": bucket, "creationTimestamp": now.as_millis().to_string(), "fileFormat": "CSV", "fileSchema": "Bucket, Key, Size",
        "files": [{ "key": "data.csv.gz", "size": size, "MD5checksum": sum }],
    });
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).expect("a manifest");
    folder.join("manifest.json").display().to_string()
}

async fn list(bare: &Client, bucket: &str, objects: usize) -> Duration {
    let started = Instant::now();
    let mut pages = bare.list_objects_v2().bucket(bucket).into_paginator().send();
    let mut count = 0;
    while let Some(page) = pages.next().await {
        count += page.expect("a page").contents().len();
    }
    assert_eq!(count, objects);
    started.elapsed()
}

/// Returns the duration, and the maximum resident size in KiB.
fn reconcile(
    gateway: &Radosgw,
    bucket: &str,
    folder: &Path,
    source: &[String],
    objects: usize,
) -> (Duration, u64) {
    let state = folder.join("state").display().to_string();
    let bucket_url = format!("s3://{bucket}");
    let fixed = ["reconcile", "--bucket", &bucket_url, "--grace", "1s", "--json", "--state", &state];
    let started = Instant::now();
    let mut child = Command::new(binary())
        .args(fixed)
        .args(source)
        .env_clear()
        .envs(environment(gateway, bucket).into_iter().skip(1))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().expect("a child").is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
        peak_kib = peak_kib.max(kib);
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = started.elapsed();
    let ran = child.wait_with_output().expect("it ended");
    assert!(ran.status.success());
    let found: Value = serde_json::from_slice(&ran.stdout).expect("a report");
    let expected = (objects.div_ceil(ONE_ORPHAN_IN), MISSING);
    let number = |value: &Value| value.as_u64().expect("a number") as usize;
    assert_eq!((number(&found["orphans"]["objects"]), number(&found["missing"]["keys"])), expected);
    (took, peak_kib)
}

fn rclone(gateway: &Radosgw, bucket: &str, folder: &Path, objects: usize) -> Option<Duration> {
    let remote = format!(
        ":s3,provider=Ceph,endpoint='{}',access_key_id={},secret_access_key={}:{bucket}",
        gateway.endpoint(),
        gateway.access_key(),
        gateway.secret_key()
    );
    Command::new("rclone").arg("version").stdout(Stdio::null()).status().ok()?;
    // --fast-list: one recursive listing, like ours. Otherwise rclone lists each folder separately.
    let script = "LC_ALL=C sort \"$2\" > \"$2.sorted\"; \
                  rclone lsf -R --files-only --fast-list \"$1\" | LC_ALL=C sort | LC_ALL=C comm -3 - \"$2.sorted\" | wc -l";
    let started = Instant::now();
    let ran = Command::new("sh")
        .args(["-c", script, "sh", &remote])
        .arg(folder.join("keys"))
        .env_remove("AWS_CA_BUNDLE")
        .output()
        .ok()?;
    let took = started.elapsed();
    let lines: usize = String::from_utf8_lossy(&ran.stdout).trim().parse().expect("a count");
    assert_eq!(lines, objects.div_ceil(ONE_ORPHAN_IN) + MISSING);
    Some(took)
}
