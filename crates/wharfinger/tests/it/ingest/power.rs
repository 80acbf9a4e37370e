//! A power failure while events are accepted: acknowledged events are on the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{EventServer, EventStore, Mount, run};

/// Stops a file system at once, without writing back: `FS_IOC_SHUTDOWN` with `NOLOGFLUSH`.
const POWER_FAILURE: &str = "import fcntl, os, struct, sys; \
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

async fn send_until_killed(sender: super::Sender, next: Arc<AtomicU64>) -> Vec<u64> {
    let mut accepted = Vec::new();
    loop {
        let first = next.fetch_add(20, Ordering::SeqCst);
        if !sender.try_ids(first..first + 20).await {
            return accepted;
        }
        accepted.extend(first..first + 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_events_survive_a_power_failure() {
    if !Mount::is_allowed("acknowledged_events_survive_a_power_failure") {
        return;
    }
    let mut server = EventServer::new(&[("INGEST_BATCH_EVENTS", "500"), ("INGEST_BATCH_AGE_MS", "2000")]);
    let image = server.place.path().join("image");
    Mount::format(&image);
    let disk = server.place.path().join("disk");
    // The store is on another machine, which keeps its power. Batches close late, so most events are only on this disk.
    let store = server.place.path().join("store");
    server.store = EventStore::Disk(store.clone());
    server.set("WHARFINGER_DATA_DIR", disk.join("data").display());
    server.set("WHARFINGER_BLOB_URL", format!("file:{}", store.display()));
    let next = Arc::new(AtomicU64::new(0));
    let mut accepted = Vec::new();
    for _ in 0..4 {
        let mount = Mount::in_file(&disk, &image);
        server.start();
        let token = {
            let data = disk.join("data").display().to_string();
            let arguments = ["token", "--tenant", "acme", "--user", "anna"];
            server
                .place
                .run_with(&[("WHARFINGER_DATA_DIR", &data)], &arguments)
                .expect(0)
                .stdout
                .trim()
                .to_owned()
        };
        let sender = super::Sender { http: reqwest::Client::new(), url: server.url().to_owned(), token };
        let clients: Vec<_> =
            (0..4).map(|_| tokio::spawn(send_until_killed(sender.clone(), next.clone()))).collect();
        // A moment in the middle of the load. No condition is needed.
        tokio::time::sleep(Duration::from_millis(700)).await;
        // The process must stop before the disk: a running `fsync` must not see a disk that is partly stopped.
        server.freeze();
        run("python3", &["-c", POWER_FAILURE, &disk.display().to_string()]);
        server.kill();
        for client in clients {
            accepted.extend(client.await.expect("a client"));
        }
        drop(mount);
    }
    assert!(accepted.len() > 200, "too few events for a meaningful test: {}", accepted.len());
    let _mount = Mount::in_file(&disk, &image);
    server.start();
    accepted.sort_unstable();
    let started = Instant::now();
    loop {
        let ids = server.ids().await;
        let missing: Vec<&u64> = accepted.iter().filter(|id| ids.binary_search(id).is_err()).collect();
        if missing.is_empty() {
            assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "some events are stored twice");
            break;
        }
        assert!(
            started.elapsed() < super::TIMEOUT,
            "{missing:?} of {} are missing; log: {}",
            accepted.len(),
            server.place.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.terminate();
}
