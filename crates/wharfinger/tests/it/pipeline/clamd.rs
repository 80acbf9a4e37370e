//! A real clamd in the scan stage: infected files, a file that is too large for it, and an outage.

use harness::clamd::{self, Clamd, Options};

use super::{eicar, statuses};
use crate::oracle;
use crate::test_app::{Database, TestEnv};

#[tokio::test(flavor = "multi_thread")]
async fn infected_files_are_quarantined_and_clean_files_continue() {
    let clamd = clamd::shared();
    for url in [clamd.tcp_url(), clamd.unix_url()] {
        let env = TestEnv::with_stages(Database::Sqlite, "scan", &[("CLAMD_URL", &url)]);
        let server = env.start().await;
        let me = server.me();
        let mut hidden = vec![b'.'; 200_000];
        hidden.extend_from_slice(clamd::PATTERN);
        hidden.extend_from_slice(&[b'.'; 1_000]);
        let clean = me.enqueue("clean", &vec![b'.'; 300_000]).await;
        let infected = [me.enqueue("eicar", &eicar()).await, me.enqueue("hidden", &hidden).await];
        server.settle().await;
        assert_eq!(me.file(&clean).await["status"], "ready");
        for file in &infected {
            let found = me.file(file).await;
            assert_eq!(found["status"], "quarantined", "{found}");
            assert!(found["error"].as_str().expect("a reason").starts_with("infected: "), "{found}");
        }
        oracle::catalog_is_sound(&server).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_too_large_for_clamd_fails_with_a_reason() {
    let clamd = Clamd::start(Options { stream_bytes_max: 1 << 20, ..Options::default() }).expect("clamd");
    let env = TestEnv::with_stages(Database::Sqlite, "scan", &[("CLAMD_URL", &clamd.tcp_url())]);
    let server = env.start().await;
    let me = server.me();
    let large = me.enqueue("large", &vec![b'.'; 3 << 20]).await;
    server.settle().await;
    let failed = me.file(&large).await;
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed["error"].as_str().expect("a reason").contains("too large to be scanned"), "{failed}");
}

/// An outage uses no attempts, however long it takes.
#[tokio::test(flavor = "multi_thread")]
async fn files_wait_while_clamd_is_down() {
    let mut clamd = Clamd::start(Options::default()).expect("clamd");
    let settings = [("CLAMD_URL", clamd.tcp_url())];
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let env = TestEnv::with_stages(Database::Sqlite, "scan", &settings);
    let server = env.start().await;
    let me = server.me();
    clamd.stop().expect("it stops");
    let (clean, infected) = (me.enqueue("clean", b"clean").await, me.enqueue("eicar", &eicar()).await);
    for _ in 0..12 {
        server.settle().await;
        for file in [&clean, &infected] {
            assert_eq!(me.file(file).await["status"], "queued");
        }
        env.advance(60_000);
    }
    assert!(statuses(&me, &clean).await.len() > 10, "the scan was retried");
    clamd.start_again().expect("it starts");
    server.settle().await;
    assert_eq!(me.file(&clean).await["status"], "ready");
    assert_eq!(me.file(&infected).await["status"], "quarantined");
}
