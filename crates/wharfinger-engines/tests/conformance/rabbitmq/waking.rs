//! A wake-up reaches everybody who listens.

use std::time::Duration;

use lapin::options::ExchangeDeleteOptions;
use wharfinger_engines::rabbitmq::WakeupListener;

use super::site::{EVENTUALLY, at_last, open, plain_channel, vhost};

async fn heard(wakes: &mut WakeupListener) -> String {
    tokio::time::timeout(EVENTUALLY, wakes.next()).await.expect("a wake-up")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_listen_hear_it() {
    let url = vhost().await;
    let (one, other) = (open(&url).await, open(&url).await);
    let mut listeners = [one.wakeups(), one.wakeups(), other.wakeups()];
    for listener in &mut listeners {
        listener.listen().await;
    }
    // A process that starts tries out whether it may wake others, and wakes nobody by that.
    let third = open(&url).await;
    at_last(|| third.wake("jobs")).await;
    for listener in &mut listeners {
        assert_eq!(heard(listener).await, "jobs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_need_listen() {
    let rabbit = open(&vhost().await).await;
    at_last(|| rabbit.wake("jobs")).await;
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
            // The first finds out, the next ones are sent.
            let _ = rabbit.wake("jobs").await;
            if tokio::time::timeout(Duration::from_millis(300), wakes.next()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(EVENTUALLY, waking).await.expect("heard at last");
}
