//! What is due is delivered to one of those who ask for it, until it is acknowledged.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;

use super::site::{
    delayed, delete_queue, fetch, next, open, plain_channel, publish, publish_at_last, stays_silent, take,
    take_one, vhost,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_a_dead_letter() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    let mut due = rabbit.due(1);
    publish(&rabbit, &[delayed("poison", 0), delayed("fine", 0)]).await;
    let poison = next(&mut due).await;
    assert_eq!(poison.id, "poison");
    poison.reject().await.expect("refused");
    assert_eq!(take(&mut due, 1).await, ["fine"]);
    assert_eq!(fetch(&url, "resource.cleanup.dlq").await, "body of poison");
    stays_silent(&mut due, Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_text_is_a_dead_letter() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    let (_connection, channel) = plain_channel(&url).await;
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    channel
        .basic_publish("".into(), "resource.cleanup".into(), options, b"\xff\xfe", properties.clone())
        .await
        .expect("published");
    channel
        .basic_publish("".into(), "resource.cleanup".into(), options, b"foreign, but text", properties)
        .await
        .expect("published");
    let mut due = rabbit.due(1);
    let message = next(&mut due).await;
    assert_eq!((message.body.as_str(), message.id.as_str()), ("foreign, but text", ""));
    message.ack().await.expect("acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_receive_share() {
    let url = vhost().await;
    let (one, other) = (open(&url).await, open(&url).await);
    let (mut ones, mut others) = (one.due(1), other.due(1));
    publish(&one, &[delayed("first", 0), delayed("second", 0)]).await;
    // Neither is acknowledged before both are here, so that each has to take one.
    let (first, second) = tokio::join!(next(&mut ones), next(&mut others));
    let ids: HashSet<_> = [first.id.clone(), second.id.clone()].into();
    assert_eq!(ids.len(), 2, "one message went to both");
    first.ack().await.expect("acknowledged");
    second.ack().await.expect("acknowledged");
    stays_silent(&mut ones, Duration::from_millis(300)).await;
    stays_silent(&mut others, Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_acknowledged_comes_again() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("again", 0)]).await;
    let mut due = rabbit.due(1);
    let message = next(&mut due).await;
    assert!(!message.redelivered);
    let begun = Instant::now();
    drop(message);
    let message = next(&mut due).await;
    assert!(message.redelivered && message.id == "again");
    assert!(begun.elapsed() < Duration::from_secs(20), "only a long silence brought it back");
    drop((due, message));
    let mut due = rabbit.due(1);
    let message = next(&mut due).await;
    assert!(message.redelivered && message.id == "again");
    message.ack().await.expect("acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_can_be_abandoned_at_any_time() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(5);
    let messages: Vec<_> = (0..60).map(|n| delayed(n, 1_000 * (n % 3))).collect();
    publish(&rabbit, &messages).await;
    let mut came = HashSet::new();
    let mut patience = 1;
    let taking = async {
        while came.len() < messages.len() {
            patience = patience % 7 + 1;
            let waiting = tokio::time::timeout(Duration::from_millis(patience), due.next());
            if let Ok(message) = waiting.await {
                came.insert(message.id.clone());
                message.ack().await.expect("acknowledged");
            }
        }
    };
    tokio::time::timeout(super::site::EVENTUALLY, taking).await.expect("all of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_is_declared_again() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    let mut due = rabbit.due(5);
    publish(&rabbit, &[delayed("before", 0)]).await;
    take_one(&mut due, "before").await;
    delete_queue(&url, "resource.cleanup").await;
    // So soon after, that RabbitMQ forgets to tell those who consume.
    super::site::at_last(|| rabbit.check()).await;
    publish_at_last(&rabbit, delayed("after", 0)).await;
    take_one(&mut due, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_end_nothing_is_sent_or_received() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("first", 0), delayed("second", 0)]).await;
    let mut due = rabbit.due(10);
    take_one(&mut due, "first").await;
    rabbit.close().await;
    stays_silent(&mut due, Duration::from_millis(300)).await;
    assert!(super::site::publish_one(&rabbit, &delayed("late", 0)).await.is_err());
    assert!(rabbit.check().await.is_err() && rabbit.wake("late").await.is_err());
    // What had been delivered ahead goes to the next one that asks.
    let other = open(&url).await;
    assert_eq!(take(&mut other.due(10), 1).await, ["second"]);
}
