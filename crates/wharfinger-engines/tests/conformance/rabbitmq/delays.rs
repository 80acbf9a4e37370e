//! A message comes out once its delay is over and not before.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::site::{delayed, fetch, next, open, publish, stays_silent, vhost};

/// The broker counts in whole milliseconds, by a clock of its own.
const ROUNDING: Duration = Duration::from_millis(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_comes_before_its_delay_is_over() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(10);
    // None at all, less than a step, a step, between steps, and several steps of two kinds.
    let delays = [0, 1, 1_000, 1_400, 3_000, 6_200];
    let messages = delays.map(|delay| delayed(delay, delay));
    let begun = Instant::now();
    publish(&rabbit, &messages).await;
    let mut came = HashMap::new();
    while came.len() < delays.len() {
        let message = next(&mut due).await;
        assert_eq!(message.body, format!("body of {}", message.id), "the body goes all the way");
        came.entry(message.id.clone()).or_insert_with(|| begun.elapsed());
        message.ack().await.expect("acknowledged");
    }
    for delay in delays {
        let waited = came[&delay.to_string()];
        println!("a delay of {delay} ms took {waited:?}");
        assert!(waited + ROUNDING >= Duration::from_millis(delay), "{delay} ms came after {waited:?}");
    }
    stays_silent(&mut due, Duration::from_millis(300)).await;
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
async fn a_long_delay_waits_on_the_largest_step_below_it() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    publish(&rabbit, &[delayed("window", 3_600_000 + 900_000)]).await;
    assert_eq!(fetch(&url, "resource.delayed.3600000").await, "body of window");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_are_sent_on_at_once_all_arrive() {
    let rabbit = open(&vhost().await).await;
    let mut due = rabbit.due(50);
    let messages: Vec<_> = (0..400).map(|n| delayed(n, 2_000)).collect();
    let begun = Instant::now();
    publish(&rabbit, &messages).await;
    let mut came = super::site::take(&mut due, messages.len()).await;
    println!("400 messages over two hops of 1 s took {:?}", begun.elapsed());
    assert!(begun.elapsed() + ROUNDING >= Duration::from_secs(2));
    came.sort();
    came.dedup();
    assert_eq!(came.len(), messages.len());
}
