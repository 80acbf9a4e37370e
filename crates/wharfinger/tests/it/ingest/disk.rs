//! Disks that are full or read-only, and clocks that are set back.

use std::time::{Duration, Instant};

use harness::proxy::Proxy;
use reqwest::StatusCode;
use wharfinger::clock::Clock;
use wharfinger::worker::Supervisor;

use super::{EventServer, Mount, below, of_ids, run};
use crate::test_app::{Database, START, TestEnv};

/// Sends twenty thousand events while the store is down and the disk of the spool is too small.
async fn send_more_than_fits(server: &mut EventServer, proxy: &Proxy) -> Mount {
    let spool = server.place.path().join("small");
    let mount = Mount::tmpfs(&spool, "64k");
    server.set("DLQ_DIR", spool.display());
    proxy.cut();
    server.start();
    let sender = server.sender();
    for id in (0..20_000).step_by(1_000) {
        sender.ids(id..id + 1_000).await;
    }
    mount
}

/// The acknowledged events stay in their segments, on another disk than the spool.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_disk_loses_no_event_in_a_segment() {
    if !Mount::is_allowed("a_full_spool_disk_loses_no_event_in_a_segment") {
        return;
    }
    let (mut server, proxy) = EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "1000")]).await;
    let _mount = send_more_than_fits(&mut server, &proxy).await;
    server.until_logged("waits in its segment").await;
    proxy.repair().expect("the network");
    assert_eq!(server.ids_once(20_000).await, (0..20_000).collect::<Vec<_>>());
    assert_eq!(server.metric("dlq_events_dropped_total").await, 0.0);
    server.terminate();
    assert_eq!(server.ids().await.len(), 20_000, "no duplicates");
}

/// With `INGEST_ACK=memory`, events that fit neither in the store nor on the disk are dropped.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_events_are_counted_and_logged() {
    if !Mount::is_allowed("dropped_events_are_counted_and_logged") {
        return;
    }
    let (mut server, proxy) =
        EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "1000"), ("INGEST_ACK", "memory")]).await;
    let _mount = send_more_than_fits(&mut server, &proxy).await;
    server.until("dlq_events_dropped_total", |events| events > 0.0).await;
    server.until("wharfinger_ingest_memory_bytes_free", |free| free == f64::from(256 << 20)).await;
    let dropped = server.metric("dlq_events_dropped_total").await as usize;
    assert!(server.place.log().contains("\"level\":\"ERROR\""));
    assert!(server.place.log().contains("its events are dropped"));
    proxy.repair().expect("the network");
    let kept = server.ids_once(20_000 - dropped).await;
    server.terminate();
    assert_eq!(kept.len(), 20_000 - dropped, "every event is stored or counted as dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_acknowledged_while_the_disk_of_the_segments_is_full() {
    if !Mount::is_allowed("no_event_is_acknowledged_while_the_disk_of_the_segments_is_full") {
        return;
    }
    let mut server =
        EventServer::new(&[("INGEST_BATCH_AGE_MS", "3600000"), ("INGEST_BATCH_EVENTS", "1000000")]);
    let store = server.place.path().join("store");
    server.store = super::EventStore::Disk(store.clone());
    server.set("WHARFINGER_BLOB_URL", format!("file:{}", store.display()));
    let segments = server.place.data().join("ingest");
    let _mount = Mount::tmpfs(&segments, "512k");
    server.start();
    let sender = server.sender();
    let mut accepted = Vec::new();
    let mut refused = 0;
    for id in (0..20_000).step_by(500) {
        let answer = sender.send(of_ids(id..id + 500), &[]).await;
        match answer.status() {
            StatusCode::ACCEPTED => accepted.extend(id..id + 500),
            StatusCode::SERVICE_UNAVAILABLE => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(accepted.len() >= 1_000 && refused > 5, "{} accepted, {refused} refused", accepted.len());
    server.terminate();
    assert_eq!(server.ids().await, accepted, "exactly the accepted events are stored");
    // The stored batches have left the disk, so events are accepted again.
    server.start();
    server.sender().ids(50_000..50_010).await;
    server.terminate();
    assert_eq!(server.ids().await.len(), accepted.len() + 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_wait_in_their_segments_while_the_spool_is_read_only() {
    if !Mount::is_allowed("batches_wait_in_their_segments_while_the_spool_is_read_only") {
        return;
    }
    let (mut server, proxy) = EventServer::in_bucket(&[]).await;
    let image = server.place.path().join("image");
    Mount::format(&image);
    let disk = server.place.path().join("disk");
    let _mount = Mount::in_file(&disk, &image);
    let spool = disk.join("spool");
    server.set("DLQ_DIR", spool.display());
    proxy.cut();
    server.start();
    // With this attribute not even root can create files there.
    run("chattr", &["+i", &spool.display().to_string()]);
    server.sender().ids(0..100).await;
    server.until_logged("waits in its segment").await;
    run("chattr", &["-i", &spool.display().to_string()]);
    server.until("dlq_events_enqueued_total", |events| events == 100.0).await;
    let segments = || below(&server.place.data().join("ingest"));
    let started = Instant::now();
    while segments().keys().any(|name| name.ends_with(".jsonl")) {
        assert!(
            started.elapsed() < super::TIMEOUT,
            "the batch is in the spool, but its segment is not removed"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.repair().expect("the network");
    assert_eq!(server.ids_once(100).await, (0..100).collect::<Vec<_>>());
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spool_path_that_is_a_file_stops_the_start_with_the_name_of_the_setting() {
    let server = EventServer::new(&[]);
    let file = server.place.write("file", "not a folder");
    let ran = server.place.run_with(
        &[("DLQ_DIR", &file.display().to_string())],
        &["serve", "--role", "ingest", "--listen", "127.0.0.1:0"],
    );
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("DLQ_DIR"), "{ran:?}");
    let file = file.display().to_string();
    let elsewhere = [
        ("DLQ_DIR", file.as_str()),
        ("INGEST_BLOB_URL", "s3://nowhere/x"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
    ];
    let output = server.place.run_with(&elsewhere, &["doctor"]).expect(1).stdout;
    assert!(output.contains("DLQ_DIR") && output.contains("INGEST_BLOB_URL: s3://nowhere/x"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_overwrites_no_batch() {
    let mut env = TestEnv::with(Database::Sqlite, &[("INGEST_BATCH_AGE_MS", "20")]);
    let mut id = 0;
    for clock in [START, START - 86_400_000, START, START] {
        env.clock = Clock::manual(clock);
        let server = env.start().await;
        server.app.start_ingest().await.expect("ingest starts");
        let supervisor = Supervisor::start(&server.app).await;
        for _ in 0..5 {
            server.me().post("/api/v2/events", serde_json::json!({ "id": id })).await.expect(202);
            id += 1;
        }
        supervisor.stop().await;
    }
    let mut ids: Vec<u64> = below(&env.blob_dir().join("RAW"))
        .values()
        .flat_map(|gz| super::lines(gz))
        .map(|line| line["body"]["id"].as_u64().expect("an id"))
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..id).collect::<Vec<_>>());
}
