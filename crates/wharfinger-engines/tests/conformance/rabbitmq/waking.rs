//! A wake-up reaches all listeners.

use std::time::Duration;

use lapin::options::ExchangeDeleteOptions;
use wharfinger_engines::rabbitmq::WakeupListener;

use super::site::{EVENTUALLY, JOBS, fetch, open, plain_channel, vhost, with_retries};

async fn next_body(wakes: &mut WakeupListener) -> Vec<u8> {
    tokio::time::timeout(EVENTUALLY, wakes.next()).await.expect("a wake-up")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wakeup_reaches_all_listeners() {
    let url = vhost().await;
    let (one, other) = (open(&url).await, open(&url).await);
    let mut listeners = [one.wakeups(), one.wakeups(), other.wakeups()];
    for listener in &mut listeners {
        listener.listen().await;
    }
    // The permission check of a starting process sends a wake-up without a body, which listeners ignore.
    let third = open(&url).await;
    with_retries(|| third.wake(JOBS)).await;
    for listener in &mut listeners {
        assert_eq!(next_body(listener).await, JOBS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wakeup_without_listeners_succeeds() {
    let rabbit = open(&vhost().await).await;
    with_retries(|| rabbit.wake(JOBS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_is_deleted_is_declared_again() {
    let url = vhost().await;
    let (rabbit, listening) = (open(&url).await, open(&url).await);
    let (_connection, channel) = plain_channel(&url).await;
    channel
        .exchange_delete("wharfinger.wake".into(), ExchangeDeleteOptions::default())
        .await
        .expect("deleted");
    let waking = async {
        let mut wakes = listening.wakeups();
        loop {
            // The first wake-up fails and detects the missing exchange. The next ones are sent.
            let _ = rabbit.wake(JOBS).await;
            if tokio::time::timeout(Duration::from_millis(300), wakes.next()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(EVENTUALLY, waking).await.expect("a wake-up at last");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wakeup_that_cannot_be_read_can_be_added_to_the_dead_letters() {
    let url = vhost().await;
    let rabbit = open(&url).await;
    with_retries(|| rabbit.dead_letter(b"what is this")).await;
    assert_eq!(fetch(&url, "wharfinger.resource.cleanup.dlq").await, "what is this");
}
