//! Test support: a virtual host for each test, connections to it, and a plain AMQP connection for direct checks.

use std::time::Duration;

use harness::rabbitmq::{RabbitMq, shared};
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use wharfinger_calls::faults::Faults;
use wharfinger_engines::rabbitmq::{
    BrokerError, DelayedMessage, DueMessage, DueMessages, Rabbit, RabbitOptions,
};

/// A timeout for events that must happen, even on a busy machine.
pub(super) const EVENTUALLY: Duration = Duration::from_secs(90);

/// The body of a wake-up.
pub(super) const JOBS: &[u8] = br#"{"action":"JOBS"}"#;

pub(super) fn options(url: &str) -> RabbitOptions {
    RabbitOptions {
        url: url.to_owned(),
        prefix: "wharfinger".to_owned(),
        delayed_exchange: false,
        instance: "test".to_owned(),
        faults: Faults::none(),
    }
}

/// The server's tools are separate programs, so this waits on a blocking thread.
pub(super) async fn with_shared<T: Send + 'static>(work: impl FnOnce(&RabbitMq) -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(move || work(shared())).await.expect("the server's tools")
}

pub(super) async fn vhost() -> String {
    with_shared(RabbitMq::create_vhost).await
}

pub(super) async fn open(url: &str) -> Rabbit {
    with_retries(|| Rabbit::open(options(url))).await
}

pub(super) fn delayed(id: impl ToString, delay_ms: u64) -> DelayedMessage {
    DelayedMessage { id: id.to_string(), body: format!("body of {}", id.to_string()).into(), delay_ms }
}

pub(super) async fn publish(rabbit: &Rabbit, messages: &[DelayedMessage]) {
    for outcome in rabbit.publish_delayed(messages).await {
        outcome.expect("published");
    }
}

/// Publishes with retries, like the program.
pub(super) async fn publish_with_retries(rabbit: &Rabbit, message: DelayedMessage) {
    with_retries(|| publish_one(rabbit, &message)).await;
}

/// Retries until success. Panics on an error that is not retryable.
pub(super) async fn with_retries<T, F: Future<Output = Result<T, BrokerError>>>(call: impl Fn() -> F) -> T {
    let asking = async {
        loop {
            match call().await {
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(200)).await,
                answer => return answer.expect("usable"),
            }
        }
    };
    tokio::time::timeout(EVENTUALLY, asking).await.expect("success before the timeout")
}

pub(super) async fn publish_one(rabbit: &Rabbit, message: &DelayedMessage) -> Result<(), BrokerError> {
    rabbit.publish_delayed(std::slice::from_ref(message)).await.pop().expect("an outcome")
}

pub(super) async fn next(due: &mut DueMessages) -> DueMessage {
    tokio::time::timeout(EVENTUALLY, due.next()).await.expect("a due message")
}

/// Receives and acknowledges `count` messages. Returns their ids.
pub(super) async fn take(due: &mut DueMessages, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while ids.len() < count {
        let message = next(due).await;
        ids.push(message.id.clone());
        message.ack().await.expect("acknowledged");
    }
    ids
}

/// Receives until this message arrives. Skips other messages, because a message can be delivered twice.
pub(super) async fn take_one(due: &mut DueMessages, id: &str) {
    while take(due, 1).await != [id] {}
}

/// Checks that no message arrives for a while.
pub(super) async fn assert_no_message(due: &mut DueMessages, long: Duration) {
    let received = tokio::time::timeout(long, due.next()).await.map(|message| message.id.clone());
    assert!(received.is_err(), "{received:?} arrived");
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

/// Waits for the first message of a queue.
pub(super) async fn fetch(url: &str, queue: &str) -> String {
    let (_connection, channel) = plain_channel(url).await;
    let fetching = async {
        loop {
            if let Some(got) =
                channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("a reply")
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
