//! When a batch closes, and what it is called.

use wharfinger_lifecycle::key::EventsFolder;

use super::{EventServer, below, of_ids};

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_closes_by_count_and_by_bytes_and_never_holds_more() {
    let mut server = EventServer::new(&[("INGEST_BATCH_EVENTS", "100"), ("INGEST_BATCH_AGE_MS", "3600000")]);
    server.start();
    let sender = server.sender();
    sender.ids(0..250).await;
    for id in 250..300 {
        sender.ids(id..id + 1).await;
    }
    assert_eq!(server.ids_once(300).await, (0..300).collect::<Vec<_>>(), "full batches wait for nothing");
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
async fn a_batch_closes_by_age_and_its_segment_goes_when_it_is_stored() {
    let mut server = EventServer::new(&[("INGEST_BATCH_AGE_MS", "300")]);
    server.start();
    let sender = server.sender();
    sender.ids(0..1).await;
    let segments = server.place.data().join("ingest");
    let of_segments = || below(&segments).into_iter().find(|(name, _)| name.ends_with(".jsonl"));
    if let Some((_, lines)) = of_segments() {
        assert!(
            String::from_utf8_lossy(&lines).contains("\"body\":{\"id\":0,"),
            "it is on disk when it is answered"
        );
    }
    assert_eq!(server.ids_once(1).await, [0]);
    server.until("s3_events_stored_total", |stored| stored == 1.0).await;
    server.terminate();
    assert_eq!(of_segments(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_waits_for_no_age_in_any_mode() {
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
    assert_eq!(server.ids().await, (0..10).collect::<Vec<_>>(), "stored when it is answered");
    server.terminate();
}

/// Two servers of one name on one folder, as after a mistake: neither writes over the other's batches.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_folder_do_not_meet() {
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
