//! A store outage loses no events: batches wait on disk and are uploaded afterwards.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use wharfinger_lifecycle::key::EventsFolder;

use super::{EventServer, below, lines, of_ids, spooled};

fn up_to(count: u64) -> Vec<u64> {
    (0..count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_event_is_stored_once_after_an_outage() {
    const EACH: u64 = 5_000;
    const CLIENTS: u64 = 4;
    let (mut server, proxy) = EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "200")]).await;
    server.start();
    server.sender().ids(0..100).await;
    assert_eq!(server.ids_once(100).await, up_to(100));
    proxy.cut();
    let send = |from: u64, sender: super::Sender| async move {
        for id in (from..from + EACH).step_by(50) {
            sender.ids(id..id + 50).await;
        }
    };
    let sender = server.sender();
    let clients = (0..CLIENTS).map(|client| tokio::spawn(send(100 + client * EACH, sender.clone())));
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("all are accepted");
    }
    server.until("dlq_files_current", |files| files > 0.0).await;
    assert!(!spooled(&server.spool()).is_empty());
    // The server also starts and accepts events without the store.
    server.terminate();
    server.start();
    let all = 100 + CLIENTS * EACH + 100;
    server.sender().ids(all - 100..all).await;
    assert!(server.metric("dlq_oldest_age_seconds").await >= 0.0);
    proxy.repair().expect("the network");
    assert_eq!(server.ids_once(all as usize).await, up_to(all));
    server.until("dlq_files_current", |files| files == 0.0).await;
    assert_eq!(server.metric("dlq_events_dropped_total").await, 0.0);
    assert_eq!(server.metric("dlq_size_bytes").await, 0.0);
    assert_eq!(server.metric("wharfinger_ingest_store_up").await, 1.0);
    server.terminate();
    assert_eq!(server.ids().await, up_to(all), "no duplicates");
    assert_eq!(below(&server.spool()).keys().filter(|name| name.contains(".jsonl")).count(), 0);
}

/// Every retry uses the same key.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_and_broken_connections_lose_and_duplicate_nothing() {
    let (mut server, proxy) = EventServer::in_bucket(&[]).await;
    server.start();
    let sender = server.sender();
    // The store accepts the batch and its answer is lost: the second try overwrites the first.
    proxy.drop_answers(true);
    sender.ids(0..10).await;
    server.until("s3_put_errors_total", |errors| errors > 0.0).await;
    proxy.drop_answers(false);
    assert_eq!(server.ids_once(10).await, up_to(10));
    // Connections that end in the middle of a batch.
    proxy.cut_after(600);
    sender.ids(10..2_000).await;
    let errors = server.metric("s3_put_errors_total").await;
    server.until("s3_put_errors_total", |now| now > errors).await;
    proxy.cut_after(None);
    assert_eq!(server.ids_once(2_000).await, up_to(2_000));
    // A store that never answers.
    proxy.stall(true);
    sender.ids(2_000..2_010).await;
    let errors = server.metric("s3_put_errors_total").await;
    server.until("s3_put_errors_total", |now| now > errors).await;
    proxy.stall(false);
    assert_eq!(server.ids_once(2_010).await, up_to(2_010));
    server.terminate();
    assert_eq!(server.ids().await, up_to(2_010));
}

/// The operator may correct a wrong key or a missing bucket later.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_the_store_rejects_is_tried_again() {
    let (mut server, _proxy) = EventServer::in_bucket(&[]).await;
    let secret = harness::radosgw::shared().secret_key();
    server.set("AWS_SECRET_ACCESS_KEY", "a wrong secret");
    server.start();
    server.sender().ids(0..10).await;
    server.until("dlq_events_enqueued_total", |events| events == 10.0).await;
    server.terminate();
    server.set("AWS_SECRET_ACCESS_KEY", secret);
    server.start();
    assert_eq!(server.ids_once(10).await, up_to(10));
    server.terminate();

    let bucket = format!("late-{}", std::process::id());
    server.set("INGEST_BLOB_URL", format!("s3://{bucket}/x"));
    server.start();
    server.sender().ids(10..20).await;
    server.until("dlq_events_enqueued_total", |events| events == 10.0).await;
    let created = harness::radosgw::shared().request("PUT", &format!("/{bucket}"), b"").expect("an answer");
    assert!(created.status < 300, "{created:?}");
    server.until("dlq_events_reuploaded_total", |events| events == 10.0).await;
    server.until("dlq_files_current", |files| files == 0.0).await;
    server.terminate();
    assert_eq!(server.ids().await, up_to(10), "the later events are in the other bucket");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_batches_are_uploaded_under_constant_load() {
    let (mut server, proxy) = EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "20")]).await;
    proxy.cut();
    server.start();
    let sender = server.sender();
    for id in (0..400).step_by(20) {
        sender.ids(id..id + 20).await;
    }
    server.until("dlq_files_current", |files| files >= 10.0).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let clients: Vec<_> = (0..2_u64)
        .map(|client| {
            let (sender, stop) = (sender.clone(), stop.clone());
            tokio::spawn(async move {
                let mut id = 1_000_000 * (client + 1);
                while !stop.is_cancelled() {
                    sender.ids(id..id + 20).await;
                    id += 20;
                    // About as fast as the disk accepts events: the store is always busy, but not overloaded.
                    tokio::time::sleep(Duration::from_millis(8)).await;
                }
                id - 1_000_000 * (client + 1)
            })
        })
        .collect();
    proxy.repair().expect("the network");
    server.until("dlq_files_current", |files| files == 0.0).await;
    stop.cancel();
    let mut sent = 400;
    for client in clients {
        sent += client.await.expect("all accepted");
    }
    server.terminate();
    server.start();
    let ids = server.ids_once(sent as usize).await;
    assert_eq!(ids.len(), sent as usize, "no duplicates");
    assert_eq!(ids[..400], up_to(400));
}

/// A folder has the name of one object, so the store rejects only this batch.
#[tokio::test(flavor = "multi_thread")]
async fn one_batch_that_the_store_rejects_does_not_block_the_others() {
    let mut server = EventServer::new(&[("DLQ_MAX_AGE", "3650d")]);
    std::fs::create_dir_all(server.spool()).expect("the spool");
    for number in 0..3 {
        let line = format!("{{\"body\":{{\"id\":{number}}}}}\n");
        let path = server.spool().join(format!("170000000{number}_web_1.jsonl.gz"));
        std::fs::write(path, super::gzip(line.as_bytes())).expect("a batch");
    }
    let occupied = server.place.data().join("blobs/RAW/2023/11/14/22/1700000000_web_1.jsonl.gz/occupied");
    std::fs::create_dir_all(&occupied).expect("a folder with the name of the object");
    server.start();
    let rejections = || server.place.log().matches("object store rejected a batch").count();
    server.until("dlq_files_current", |files| files == 1.0).await;
    let sender = server.sender();
    for id in 3..300 {
        sender.ids(id..id + 1).await;
        server.until("s3_events_stored_total", |stored| stored == id as f64).await;
        if rejections() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(rejections() >= 2, "the rejected batch is tried again");
    assert!(
        !server.place.log().contains("object store does not accept events"),
        "the store accepts all other batches"
    );
    assert_eq!(server.metric("dlq_events_enqueued_total").await, 0.0);
    std::fs::remove_dir_all(occupied.parent().expect("the folder")).expect("removed");
    server.until("dlq_files_current", |files| files == 0.0).await;
    assert_eq!(server.ids().await[..3], [0, 1, 2]);
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_stored_returns_503_while_the_store_is_down() {
    let (mut server, proxy) = EventServer::in_bucket(&[("INGEST_ACK", "stored")]).await;
    server.start();
    let sender = server.sender();
    sender.ids(0..10).await;
    assert_eq!(server.ids().await, up_to(10), "the events are stored before the response");
    proxy.cut();
    let answer = sender.send(of_ids(10..20), &[]).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    let problem: Value = answer.json().await.expect("a problem");
    assert_eq!(problem["code"], "unavailable");
    assert_eq!(spooled(&server.spool()), Vec::<String>::new(), "clients repeat the request themselves");
    proxy.repair().expect("the network");
    let mut tries = 0;
    while !sender.try_ids(10..20).await {
        tries += 1;
        assert!(tries < 300, "the store is up, but events are still rejected");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.ids().await, up_to(20));
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_drops_and_counts_the_oldest_events() {
    let (mut server, proxy) =
        EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "100"), ("DLQ_MAX_SIZE_BYTES", "4KiB")]).await;
    proxy.cut();
    server.start();
    let sender = server.sender();
    for id in (0..3_000).step_by(100) {
        sender.ids(id..id + 100).await;
    }
    server.until("dlq_events_enqueued_total", |events| events == 3_000.0).await;
    let dropped = server.metric("dlq_events_dropped_total").await as u64;
    assert!(dropped > 0 && dropped < 3_000 && dropped.is_multiple_of(100), "{dropped}");
    // Each batch has 100 events.
    assert_eq!(server.metric("dlq_files_expired_total").await as u64, dropped / 100);
    assert!(server.metric("dlq_size_bytes").await <= 4_096.0);
    assert!(server.place.log().contains("spool is full, oldest events dropped"));
    proxy.repair().expect("the network");
    let kept = server.ids_once(3_000 - dropped as usize).await;
    server.terminate();
    assert_eq!(kept.len() as u64, 3_000 - dropped, "all other events are stored");
}

/// One tenant fills the spool. It gets 429 before the oldest events, perhaps of other tenants, are dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_above_its_share_of_the_spool_gets_429_and_others_do_not() {
    let (mut server, proxy) =
        EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "100"), ("DLQ_MAX_SIZE_BYTES", "16KiB")]).await;
    proxy.cut();
    server.start();
    server.sender_of("small").ids(0..100).await;
    server.until("dlq_events_enqueued_total", |events| events == 100.0).await;
    let mut sent = 100;
    let rejected = loop {
        let answer = server.sender_of("large").send(of_ids(sent..sent + 100), &[]).await;
        if answer.status() != StatusCode::ACCEPTED {
            break answer;
        }
        sent += 100;
        assert!(sent < 10_000, "the tenant is never rejected");
        let waiting = sent as f64;
        server.until("dlq_events_enqueued_total", |events| events == waiting).await;
    };
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(rejected.headers().contains_key("retry-after"));
    let problem: Value = rejected.json().await.expect("JSON");
    assert_eq!(problem["code"], "rate_limited");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("more than its share")), "{problem}");
    server.sender_of("small").ids(sent..sent + 100).await;
    server.sender_of("new").ids(sent + 100..sent + 200).await;
    server.until("dlq_events_enqueued_total", |events| events == (sent + 200) as f64).await;
    // The metadata on disk tells the next process which tenant has sent the events.
    server.kill();
    std::fs::remove_file(server.spool().join(".wharfinger-journal")).expect("the journal");
    server.start();
    let again = server.sender_of("large").send(of_ids(0..1), &[]).await;
    assert_eq!(again.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(server.metric("dlq_events_dropped_total").await, 0.0);
    proxy.repair().expect("the network");
    assert_eq!(server.ids_once(sent as usize + 200).await, up_to(sent + 200));
    server.until("dlq_files_current", |files| files == 0.0).await;
    server.sender_of("large").ids(sent + 200..sent + 201).await;
    server.terminate();
}

/// After a week without power the batches are too old, but the store is up.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_batch_is_uploaded_before_it_would_be_dropped() {
    let mut server = EventServer::new(&[("DLQ_MAX_AGE", "1h")]);
    std::fs::create_dir_all(server.spool()).expect("the spool");
    for id in 0..30 {
        let name = format!("{}_web_{id}.jsonl.gz", 1_700_000_000 + id);
        let text = format!("{{\"body\":{{\"id\":{id}}}}}\n");
        std::fs::write(server.spool().join(&name), super::gzip(text.as_bytes())).expect("a batch");
        std::fs::write(server.spool().join(format!("{name}.meta.json")), "{\"num_events\":1}")
            .expect("its metadata");
    }
    server.start();
    assert_eq!(server.ids_once(30).await, up_to(30));
    assert_eq!(server.metric("dlq_files_expired_total").await, 0.0);
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_batch_is_dropped_and_counted_while_the_store_is_down() {
    let (mut server, proxy) = EventServer::in_bucket(&[("DLQ_MAX_AGE", "1h")]).await;
    proxy.cut();
    let put = |name: String, events: u64| {
        std::fs::create_dir_all(server.spool()).expect("the spool");
        let text: String = (0..events).map(|id| format!("{{\"body\":{{\"id\":{id}}}}}\n")).collect();
        std::fs::write(server.spool().join(&name), super::gzip(text.as_bytes())).expect("a batch");
        let meta = format!("{{\"num_events\":{events}}}");
        std::fs::write(server.spool().join(format!("{name}.meta.json")), meta).expect("its metadata");
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    put(format!("{}_web_1.jsonl.gz", now - 3_700), 7);
    put("1700000000_web_2.jsonl.gz".into(), 4);
    put(format!("{}_web_3.jsonl.gz", now - 3_000), 3);
    server.start();
    server.until("dlq_files_expired_total", |files| files == 2.0).await;
    assert_eq!(server.metric("dlq_events_expired_total").await, 11.0);
    assert!(server.metric("dlq_oldest_age_seconds").await >= 3_000.0);
    proxy.repair().expect("the network");
    assert_eq!(server.ids_once(3).await, up_to(3));
    server.terminate();
    let raw = server.objects(EventsFolder::Raw).await;
    assert_eq!(raw.len(), 1);
    assert!(raw.into_iter().all(|(name, gz)| name.ends_with("_web_3.jsonl.gz") && lines(&gz).len() == 3));
}
