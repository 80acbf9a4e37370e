//! How one worker shares its slots: between tenants, and between files that lost their workers and other files.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use wharfinger::core::Role;

use super::until_ready;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};

const SLOW: &[u8] = b"This one takes long.";

/// A fake clamd. It answers for files that contain `SLOW` only after `answers` is cancelled.
#[derive(Clone)]
struct SlowScanner {
    url: String,
    held: Arc<AtomicUsize>,
    answers: CancellationToken,
}

impl SlowScanner {
    async fn start() -> SlowScanner {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("tcp://{}", listener.local_addr().expect("bound"));
        let scanner = SlowScanner { url, held: Arc::default(), answers: CancellationToken::new() };
        let each = scanner.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(each.clone().scan(stream));
            }
        });
        scanner
    }

    async fn scan(self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        // A chunk without bytes is the last one.
        while !bytes.ends_with(&[0; 4]) {
            if stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
                continue;
            }
            return;
        }
        if bytes.windows(SLOW.len()).any(|some| some == SLOW) {
            self.held.fetch_add(1, Ordering::SeqCst);
            self.answers.cancelled().await;
        }
        let _ = stream.write_all(b"stream: OK\0").await;
    }

    async fn until_held(&self, files: usize) {
        for _ in 0..4_000 {
            if self.held.load(Ordering::SeqCst) == files {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} files are held, expected {files}", self.held.load(Ordering::SeqCst));
    }
}

/// Two slots, and leases that are longer than these tests.
fn env(database: Database, scanner: &SlowScanner) -> TestEnv {
    let settings = [
        ("CLAMD_URL", scanner.url.as_str()),
        ("PIPELINE_CONCURRENCY", "2"),
        ("JOB_LEASE_MS", "3600000"),
        ("STAGE_TIMEOUT_MS", "7200000"),
    ];
    TestEnv::with_stages(database, "scan", &settings)
}

fn working(server: &TestApp, stop: &CancellationToken) -> tokio::task::JoinHandle<()> {
    tokio::spawn(wharfinger::pipeline::run::work(server.app.pipeline.clone(), stop.clone()))
}

/// The files of one tenant use all slots. The file of another tenant does not wait for them, and the slot for other
/// tenants is not given to the next file of the first tenant.
async fn a_tenant_without_a_slot_gets_one(database: Database) {
    let scanner = SlowScanner::start().await;
    let env = env(database, &scanner);
    let server = env.start().await;
    let (large, small) = (server.as_user("large", "u", Role::User), server.as_user("small", "u", Role::User));
    let mut held = Vec::new();
    for n in 0..4 {
        held.push(large.enqueue(&format!("held-{n}"), SLOW).await);
    }
    let stop = CancellationToken::new();
    let working = working(&server, &stop);
    scanner.until_held(2).await;
    for n in 0..2 {
        let file = small.enqueue(&format!("small-{n}"), b"A short one.").await;
        until_ready(&small, &file).await;
    }
    scanner.until_held(2).await;
    scanner.answers.cancel();
    for file in &held {
        until_ready(&large, file).await;
    }
    stop.cancel();
    working.await.expect("it ends");
}

/// A file that has lost two workers runs alone, because another file could crash the worker in its last attempt. This
/// ends after a minute.
async fn a_last_attempt_runs_alone_for_a_minute(database: Database) {
    let scanner = SlowScanner::start().await;
    let env = env(database, &scanner);
    let server = env.start().await;
    let (one, other) = (server.as_user("one", "u", Role::User), server.as_user("other", "u", Role::User));
    let last = one.enqueue("last", SLOW).await;
    env.execute("UPDATE jobs SET lost_leases = 2").await;
    let stop = CancellationToken::new();
    let working = working(&server, &stop);
    scanner.until_held(1).await;
    let beside = other.enqueue("beside", b"A short one.").await;
    for advance_ms in [0, 59_000] {
        env.advance(advance_ms);
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(other.file(&beside).await["status"], "queued", "after {advance_ms} ms");
    }
    env.advance(1_000);
    until_ready(&other, &beside).await;
    assert_eq!(one.file(&last).await["status"], "scanning");
    scanner.answers.cancel();
    until_ready(&one, &last).await;
    stop.cancel();
    working.await.expect("it ends");
}

on_each_database! {
    a_tenant_without_a_slot_gets_one,
    a_last_attempt_runs_alone_for_a_minute,
}
