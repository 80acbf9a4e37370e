//! Receiving: a due message is delivered to one consumer, and again until it is acknowledged.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;

use super::site::{
    assert_no_message, delayed, delete_queue, fetch, next, open, plain_channel, publish,
    publish_with_retries, take, take_one, vhost,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_message_becomes_a_dead_letter() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    let mut due = rabbit.due(1);
    publish(&rabbit, &[delayed("rejected", 0), delayed("fine", 0)]).await;
    let rejected = next(&mut due).await;
    assert_eq!(rejected.id, "rejected");
    rejected.reject().await.expect("rejected");
    assert_eq!(take(&mut due, 1).await, ["fine"]);
    assert_eq!(fetch(&url, "wharfinger.resource.cleanup.dlq").await, "body of rejected");
    assert_no_message(&mut due, Duration::from_millis(300)).await;
}

/// Only the caller knows which bodies it can read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_message_is_delivered_as_it_is_and_can_be_rejected() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    let (_connection, channel) = plain_channel(&url).await;
    for body in [&b"\xff\xfe"[..], b"foreign, but text"] {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        channel
            .basic_publish("".into(), "wharfinger.resource.cleanup".into(), options, body, properties)
            .await
            .expect("published");
    }
    let mut due = rabbit.due(1);
    let first = next(&mut due).await;
    assert_eq!((first.body.as_slice(), first.id.as_str()), (&b"\xff\xfe"[..], ""));
    first.ack().await.expect("acknowledged");
    let second = next(&mut due).await;
    assert_eq!(second.body, b"foreign, but text");
    second.reject().await.expect("rejected");
    assert_eq!(fetch(&url, "wharfinger.resource.cleanup.dlq").await, "foreign, but text");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_goes_to_only_one_consumer() {
    let url = vhost().await;
    let (one, other) = (open(&url).await, open(&url).await);
    let (mut first_due, mut second_due) = (one.due(1), other.due(1));
    publish(&one, &[delayed("first", 0), delayed("second", 0)]).await;
    // Both messages arrive before the first acknowledgement, so each consumer must receive one.
    let (first, second) = tokio::join!(next(&mut first_due), next(&mut second_due));
    let ids: HashSet<_> = [first.id.clone(), second.id.clone()].into();
    assert_eq!(ids.len(), 2, "both consumers received the same message");
    first.ack().await.expect("acknowledged");
    second.ack().await.expect("acknowledged");
    assert_no_message(&mut first_due, Duration::from_millis(300)).await;
    assert_no_message(&mut second_due, Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unacknowledged_message_is_delivered_again() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("again", 0)]).await;
    let mut due = rabbit.due(1);
    let message = next(&mut due).await;
    assert!(!message.redelivered);
    let started = Instant::now();
    drop(message);
    let message = next(&mut due).await;
    assert!(message.redelivered && message.id == "again");
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "it was delivered again only after the silence timeout"
    );
    drop((due, message));
    let mut due = rabbit.due(1);
    let message = next(&mut due).await;
    assert!(message.redelivered && message.id == "again");
    message.ack().await.expect("acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiving_can_be_cancelled_at_any_time() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(5);
    let messages: Vec<_> = (0..60).map(|n| delayed(n, 1_000 * (n % 3))).collect();
    publish(&rabbit, &messages).await;
    let mut received = HashSet::new();
    let mut wait_ms = 1;
    let taking = async {
        while received.len() < messages.len() {
            wait_ms = wait_ms % 7 + 1;
            let waiting = tokio::time::timeout(Duration::from_millis(wait_ms), due.next());
            if let Ok(message) = waiting.await {
                received.insert(message.id.clone());
                message.ack().await.expect("acknowledged");
            }
        }
    };
    tokio::time::timeout(super::site::EVENTUALLY, taking).await.expect("all messages arrive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_is_declared_again() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    let mut due = rabbit.due(5);
    publish(&rabbit, &[delayed("before", 0)]).await;
    take_one(&mut due, "before").await;
    delete_queue(&url, "wharfinger.resource.cleanup").await;
    // Immediately after the delete: RabbitMQ then does not notify the consumers.
    super::site::with_retries(|| rabbit.check()).await;
    publish_with_retries(&rabbit, delayed("after", 0)).await;
    take_one(&mut due, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_close_no_message_is_sent_or_received() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("first", 0), delayed("second", 0)]).await;
    let mut due = rabbit.due(10);
    take_one(&mut due, "first").await;
    rabbit.close().await;
    assert_no_message(&mut due, Duration::from_millis(300)).await;
    assert!(super::site::publish_one(&rabbit, &delayed("late", 0)).await.is_err());
    assert!(rabbit.check().await.is_err() && rabbit.wake(b"late").await.is_err());
    // The prefetched message goes to the next consumer.
    let other = open(&url).await;
    assert_eq!(take(&mut other.due(10), 1).await, ["second"]);
}
