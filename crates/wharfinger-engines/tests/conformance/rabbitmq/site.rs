//! A virtual host for each case, handles on it, and a plain connection to look behind the broker's back.

use std::time::Duration;

use harness::rabbitmq::{RabbitMq, shared};
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use wharfinger_calls::faults::Faults;
use wharfinger_engines::rabbitmq::{
    BrokerError, DelayedMessage, DueMessage, DueMessages, Rabbit, RabbitOptions,
};

/// For what must come, on a machine that has other things to do.
pub(super) const EVENTUALLY: Duration = Duration::from_secs(90);

pub(super) fn options(url: &str) -> RabbitOptions {
    RabbitOptions {
        url: url.to_owned(),
        delayed_exchange: false,
        instance: "test".to_owned(),
        faults: Faults::none(),
    }
}

/// The server's tools are programs of their own, that have to be waited for.
pub(super) async fn with_shared<T: Send + 'static>(work: impl FnOnce(&RabbitMq) -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(move || work(shared())).await.expect("the server's tools")
}

pub(super) async fn vhost() -> String {
    with_shared(RabbitMq::create_vhost).await
}

pub(super) async fn open(url: &str) -> Rabbit {
    at_last(|| Rabbit::open(options(url))).await
}

pub(super) fn delayed(id: impl ToString, delay_ms: u64) -> DelayedMessage {
    DelayedMessage { id: id.to_string(), body: format!("body of {}", id.to_string()), delay_ms }
}

pub(super) async fn publish(rabbit: &Rabbit, messages: &[DelayedMessage]) {
    for outcome in rabbit.publish_delayed(messages).await {
        outcome.expect("published");
    }
}

/// Tries until the broker takes it, as the program would.
pub(super) async fn publish_at_last(rabbit: &Rabbit, message: DelayedMessage) {
    at_last(|| publish_one(rabbit, &message)).await;
}

/// Asks until there is an answer that trying again would not change.
pub(super) async fn at_last<T, F: Future<Output = Result<T, BrokerError>>>(ask: impl Fn() -> F) -> T {
    let asking = async {
        loop {
            match ask().await {
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(200)).await,
                answer => return answer.expect("usable"),
            }
        }
    };
    tokio::time::timeout(EVENTUALLY, asking).await.expect("in the end")
}

pub(super) async fn publish_one(rabbit: &Rabbit, message: &DelayedMessage) -> Result<(), BrokerError> {
    rabbit.publish_delayed(std::slice::from_ref(message)).await.pop().expect("an outcome")
}

pub(super) async fn next(due: &mut DueMessages) -> DueMessage {
    tokio::time::timeout(EVENTUALLY, due.next()).await.expect("a due message")
}

/// The ids of so many, each acknowledged.
pub(super) async fn take(due: &mut DueMessages, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while ids.len() < count {
        let message = next(due).await;
        ids.push(message.id.clone());
        message.ack().await.expect("acknowledged");
    }
    ids
}

/// Waits until this one came; others are let pass, for a message may come twice.
pub(super) async fn take_one(due: &mut DueMessages, id: &str) {
    while take(due, 1).await != [id] {}
}

/// Nothing comes for a while.
pub(super) async fn stays_silent(due: &mut DueMessages, long: Duration) {
    let heard = tokio::time::timeout(long, due.next()).await.map(|message| message.id.clone());
    assert!(heard.is_err(), "{heard:?} came");
}

pub(super) async fn plain_channel(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

pub(super) async fn delete_queue(url: &str, name: &str) {
    let (_connection, channel) = plain_channel(url).await;
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.expect("deleted");
}

/// The first message of a queue, waited for.
pub(super) async fn fetch(url: &str, queue: &str) -> String {
    let (_connection, channel) = plain_channel(url).await;
    let fetching = async {
        loop {
            if let Some(got) =
                channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("asked")
            {
                got.delivery.acker.ack(BasicAckOptions::default()).await.expect("acknowledged");
                return String::from_utf8(got.delivery.data).expect("text");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(EVENTUALLY, fetching).await.expect("a message")
}

pub(super) async fn exists(url: &str, queue: &str) -> bool {
    let (_connection, channel) = plain_channel(url).await;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.is_ok()
}
