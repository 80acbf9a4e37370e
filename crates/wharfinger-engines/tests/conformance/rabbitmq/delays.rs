//! A message is delivered after its delay, and never before.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::site::{assert_no_message, delayed, fetch, next, open, publish, vhost};

/// The broker counts whole milliseconds with its own clock.
const ROUNDING: Duration = Duration::from_millis(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_not_delivered_before_its_delay_is_over() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(10);
    // No delay, less than a step, one step, between two steps, and several different steps.
    let delays = [0, 1, 1_000, 1_400, 3_000, 6_200];
    let messages = delays.map(|delay| delayed(delay, delay));
    let started = Instant::now();
    publish(&rabbit, &messages).await;
    let mut received = HashMap::new();
    while received.len() < delays.len() {
        let message = next(&mut due).await;
        assert_eq!(message.body, format!("body of {}", message.id).into_bytes(), "the body is unchanged");
        received.entry(message.id.clone()).or_insert_with(|| started.elapsed());
        message.ack().await.expect("acknowledged");
    }
    for delay in delays {
        let waited = received[&delay.to_string()];
        println!("a delay of {delay} ms took {waited:?}");
        assert!(waited + ROUNDING >= Duration::from_millis(delay), "{delay} ms received after {waited:?}");
    }
    assert_no_message(&mut due, Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_delay_does_not_wait_behind_a_long_one() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(10);
    publish(&rabbit, &[delayed("long", 60_000), delayed("middle", 15_000), delayed("short", 1_000)]).await;
    for expected in ["short", "middle"] {
        let message = next(&mut due).await;
        assert_eq!(message.id, expected);
        message.ack().await.expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_delay_waits_in_the_queue_with_the_largest_step_below_it() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("window", 3_600_000 + 900_000)]).await;
    assert_eq!(fetch(&url, "wharfinger.resource.delayed.3600000").await, "body of window");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_that_are_forwarded_together_all_arrive() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(50);
    let messages: Vec<_> = (0..400).map(|n| delayed(n, 2_000)).collect();
    let started = Instant::now();
    publish(&rabbit, &messages).await;
    let mut received = super::site::take(&mut due, messages.len()).await;
    println!("400 messages with two steps of 1 s took {:?}", started.elapsed());
    assert!(started.elapsed() + ROUNDING >= Duration::from_secs(2));
    received.sort();
    received.dedup();
    assert_eq!(received.len(), messages.len());
}
