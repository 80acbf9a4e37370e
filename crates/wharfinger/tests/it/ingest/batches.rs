//! When a batch is closed, and its name.

use wharfinger_lifecycle::key::EventsFolder;

use super::{EventServer, below, of_ids};

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_closed_at_its_maximum_of_events_or_bytes() {
    let mut server = EventServer::new(&[("INGEST_BATCH_EVENTS", "100"), ("INGEST_BATCH_AGE_MS", "3600000")]);
    server.start();
    let sender = server.sender();
    sender.ids(0..250).await;
    for id in 250..300 {
        sender.ids(id..id + 1).await;
    }
    assert_eq!(server.ids_once(300).await, (0..300).collect::<Vec<_>>(), "full batches are stored at once");
    let counts: Vec<usize> = server.stored().await.values().map(Vec::len).collect();
    assert_eq!(counts, [100, 100, 100]);
    server.terminate();

    let mut server = EventServer::new(&[("INGEST_BATCH_BYTES", "4KiB"), ("INGEST_BATCH_AGE_MS", "3600000")]);
    server.start();
    server.sender().ids(0..1_000).await;
    server.terminate();
    assert_eq!(server.ids().await.len(), 1_000);
    for (name, gz) in server.objects(EventsFolder::Raw).await {
        let bytes: usize = super::lines(&gz).iter().map(|line| line.to_string().len() + 1).sum();
        assert!(bytes <= 4 << 10, "{name} has {bytes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_closed_by_age_and_its_segment_is_removed_when_it_is_stored() {
    let mut server = EventServer::new(&[("INGEST_BATCH_AGE_MS", "300")]);
    server.start();
    let sender = server.sender();
    sender.ids(0..1).await;
    let segments = server.place.data().join("ingest");
    let first_segment = || below(&segments).into_iter().find(|(name, _)| name.ends_with(".jsonl"));
    if let Some((_, lines)) = first_segment() {
        assert!(
            String::from_utf8_lossy(&lines).contains("\"body\":{\"id\":0,"),
            "the event is on disk before the response"
        );
    }
    assert_eq!(server.ids_once(1).await, [0]);
    server.until("s3_events_stored_total", |stored| stored == 1.0).await;
    server.terminate();
    assert_eq!(first_segment(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_stores_open_batches_at_once_in_every_mode() {
    for ack in ["memory", "disk"] {
        let mut server = EventServer::new(&[("INGEST_ACK", ack), ("INGEST_BATCH_AGE_MS", "3600000")]);
        server.start();
        server.sender().ids(0..10).await;
        server.terminate();
        assert_eq!(server.ids().await, (0..10).collect::<Vec<_>>(), "{ack}");
    }
    let mut server = EventServer::new(&[("INGEST_ACK", "stored"), ("INGEST_BATCH_AGE_MS", "100")]);
    server.start();
    server.sender().ids(0..10).await;
    assert_eq!(server.ids().await, (0..10).collect::<Vec<_>>(), "the events are stored before the response");
    server.terminate();
}

/// By mistake two servers may have one name and one folder.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_folder_do_not_overwrite_each_others_batches() {
    let mut server = EventServer::new(&[("INSTANCE_ID", "twin"), ("INGEST_BATCH_EVENTS", "10")]);
    server.start();
    let first = server.sender();
    let second_server =
        server.place.serve_as("ingest", &[("INSTANCE_ID", "twin"), ("INGEST_BATCH_EVENTS", "10")]);
    let second = super::Sender { url: second_server.url.clone(), ..first.clone() };
    let send = async |sender: super::Sender, from: u64| {
        for id in (from..from + 500).step_by(5) {
            let answer = sender.send(of_ids(id..id + 5), &[]).await;
            assert!(answer.status().is_success());
        }
    };
    tokio::join!(send(first, 0), send(second, 500));
    assert!(second_server.terminate().success());
    server.terminate();
    assert_eq!(server.ids().await, (0..1_000).collect::<Vec<_>>());
}
