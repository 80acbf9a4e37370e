//! The power goes while events are taken: what is not on the platter is gone, and nothing of it was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{EventServer, EventStore, Mount, run};

/// Stops a file system where it stands, without writing back anything: `FS_IOC_SHUTDOWN` with `NOLOGFLUSH`.
const PULL_THE_PLUG: &str = "import fcntl, os, struct, sys; \
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

async fn send_on(sender: super::Sender, next: Arc<AtomicU64>) -> Vec<u64> {
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
async fn what_was_acknowledged_is_there_when_the_power_is_back() {
    if !Mount::is_allowed("what_was_acknowledged_is_there_when_the_power_is_back") {
        return;
    }
    let mut server = EventServer::new(&[("INGEST_BATCH_EVENTS", "500"), ("INGEST_BATCH_AGE_MS", "2000")]);
    let image = server.place.path().join("image");
    Mount::format(&image);
    let disk = server.place.path().join("disk");
    // The store is another machine's: its power stays on. Nothing gets there, so that all is left to this disk.
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
        let clients: Vec<_> = (0..4).map(|_| tokio::spawn(send_on(sender.clone(), next.clone()))).collect();
        // Any moment will do.
        tokio::time::sleep(Duration::from_millis(700)).await;
        // Nothing of it runs on while the power goes: an `fsync` that is under way must not see a disk that is half gone.
        server.freeze();
        run("python3", &["-c", PULL_THE_PLUG, &disk.display().to_string()]);
        server.kill();
        for client in clients {
            accepted.extend(client.await.expect("a client"));
        }
        drop(mount);
    }
    assert!(accepted.len() > 200, "the run proves something: {}", accepted.len());
    let _mount = Mount::in_file(&disk, &image);
    server.start();
    accepted.sort_unstable();
    let started = Instant::now();
    loop {
        let ids = server.ids().await;
        let missing: Vec<&u64> = accepted.iter().filter(|id| ids.binary_search(id).is_err()).collect();
        if missing.is_empty() {
            assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "some are there twice");
            break;
        }
        assert!(
            started.elapsed() < super::PATIENCE,
            "{missing:?} of {} are missing; log: {}",
            accepted.len(),
            server.place.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.terminate();
}
