//! Receives due messages. A message that leaves a delay queue with a remaining delay is forwarded to the next queue;
//! callers never see it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Acker, Channel, Consumer};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::connection::CONNECT_TIMEOUT;
use super::error::BrokerError;
use super::forwarding::{Forward, Forwards, settle};
use super::publish::LEFT_MS;
use super::{DelayedMessage, Inner};
use wharfinger_calls::faults::Faults;

/// A queue that is deleted and declared again loses its consumers, and RabbitMQ does not always notify them. After this
/// time without a message, the consumer subscribes again.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// An endless stream of due messages. A lost connection is opened again. Unacknowledged messages are delivered again,
/// to this process or another one.
pub struct DueMessages {
    rabbit: Arc<Inner>,
    prefetch: u16,
    consuming: Option<Consuming>,
    /// Stored here, so that it continues when `next` is cancelled.
    opening: Option<BoxFuture<'static, Result<Consuming, BrokerError>>>,
    backoff: Backoff,
    forwards: Forwards,
}

/// A message whose delay is over. Acknowledge it before the work: the broker takes back messages that are held for
/// long, and the catalog knows the work anyway.
#[must_use = "a message that is neither acknowledged nor rejected is delivered again"]
pub struct DueMessage {
    pub id: String,
    pub body: Vec<u8>,
    /// Whether it was delivered before, to any consumer.
    pub redelivered: bool,
    pending: PendingAck,
}

/// The pending acknowledgement of a message. If it is dropped without an answer, the channel is closed and the message
/// is delivered again. Otherwise the broker would wait half an hour, and the message would count against the prefetch
/// limit.
struct PendingAck {
    acker: Acker,
    settled: bool,
    dropped: CancellationToken,
    faults: Faults,
}

struct Consuming {
    consumer: Consumer,
    /// Closes when it is dropped.
    _channel: Channel,
    /// Cancelled when a message was dropped without an answer.
    dropped: CancellationToken,
    silent_until: Instant,
}

impl Consuming {
    fn new(consumer: Consumer, channel: Channel) -> Consuming {
        let (dropped, silent_until) = (CancellationToken::new(), Instant::now() + SILENCE_MAX);
        Consuming { consumer, _channel: channel, dropped, silent_until }
    }
}

impl DueMessages {
    pub(super) fn new(rabbit: Arc<Inner>, prefetch: u16) -> DueMessages {
        let (backoff, forwards) = (Backoff::default(), Forwards::default());
        DueMessages { rabbit, prefetch, consuming: None, opening: None, backoff, forwards }
    }

    /// Returns the next message. Cancelling it loses nothing. After `close`, it never returns.
    pub async fn next(&mut self) -> DueMessage {
        loop {
            let closed = self.rabbit.shared.closed.clone();
            if closed.is_cancelled() {
                self.consuming = None;
                pending::<Infallible>().await;
            }
            let Some(consuming) = &mut self.consuming else {
                self.consume().await;
                continue;
            };
            // In this order, so that a message that has already arrived wins over the timeout.
            let delivery = tokio::select! {
                biased;
                () = closed.cancelled() => continue,
                delivery = consuming.consumer.next() => delivery,
                never = self.forwards.forward(&self.rabbit) => match never {},
                () = consuming.dropped.cancelled() => {
                    self.lose(&BrokerError::Unavailable("a message was dropped without an acknowledgement".to_owned()));
                    continue;
                }
                () = sleep_until(consuming.silent_until), if self.forwards.is_empty() => {
                    self.consuming = None;
                    continue;
                }
            };
            consuming.silent_until = Instant::now() + SILENCE_MAX;
            match delivery {
                Some(Ok(delivery)) => {
                    let dropped = consuming.dropped.clone();
                    if let Some(due) = self.accept(delivery, dropped) {
                        return due;
                    }
                }
                Some(Err(error)) => self.lose(&BrokerError::from(error)),
                // The broker cancels the consumer when the queue is deleted.
                None => {
                    self.rabbit.consuming.declare_again();
                    self.lose(&BrokerError::Unavailable("the broker cancelled the consumer".to_owned()));
                }
            }
        }
    }

    fn lose(&mut self, error: &BrokerError) {
        if !self.rabbit.shared.closed.is_cancelled() {
            tracing::warn!(%error, "lost the consumer of due messages, reconnecting");
        }
        self.consuming = None;
        self.forwards.drop_lost();
        self.backoff.fail();
    }

    async fn consume(&mut self) {
        self.backoff.wait().await;
        let (rabbit, prefetch) = (&self.rabbit, self.prefetch);
        let opening = self.opening.get_or_insert_with(|| Box::pin(open(Arc::clone(rabbit), prefetch)));
        let opened = opening.await;
        self.opening = None;
        match opened {
            Ok(consuming) => {
                self.consuming = Some(consuming);
                self.backoff.succeed();
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Returns the message if it is due. Forwards it if a delay remains.
    fn accept(&mut self, delivery: Delivery, dropped: CancellationToken) -> Option<DueMessage> {
        let Delivery { properties, data, acker, redelivered, .. } = delivery;
        let id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        let left_ms = left_ms(properties.headers().as_ref());
        if left_ms == 0 {
            let faults = self.rabbit.shared.options.faults.clone();
            let pending = PendingAck { acker, settled: false, dropped, faults };
            return Some(DueMessage { id, body: data, redelivered, pending });
        }
        let next = DelayedMessage { id, body: data, delay_ms: left_ms };
        self.forwards.waiting.push(Forward { next, acker });
        None
    }
}

async fn open(rabbit: Arc<Inner>, prefetch: u16) -> Result<Consuming, BrokerError> {
    let (connection, channel) = rabbit.consuming.channel().await?;
    let queue = rabbit.shared.names.cleanup.as_str();
    let opening = async {
        channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        Ok(channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?)
    };
    let opening = rabbit.shared.options.faults.around("broker consume", opening);
    match timeout(CONNECT_TIMEOUT, opening).await {
        Ok(Ok(consumer)) => Ok(Consuming::new(consumer, channel)),
        Ok(Err(error)) => {
            rabbit.consuming.declare_again();
            Err(BrokerError::context(error, &format!("consuming queue {queue}")))
        }
        Err(_) => {
            rabbit.consuming.discard(&connection);
            Err(BrokerError::late("subscribing to due messages"))
        }
    }
}

fn left_ms(headers: Option<&FieldTable>) -> u64 {
    let left = match headers.and_then(|headers| headers.inner().get(LEFT_MS)) {
        Some(AMQPValue::LongLongInt(left)) => *left,
        Some(AMQPValue::LongInt(left)) => i64::from(*left),
        _ => 0,
    };
    u64::try_from(left).unwrap_or(0)
}

impl DueMessage {
    /// Acknowledges the message. After an error it is delivered again.
    pub async fn ack(self) -> Result<(), BrokerError> {
        self.pending.settle("broker ack", true).await
    }

    /// Moves the message to the dead letters. It is not delivered again.
    pub async fn reject(self) -> Result<(), BrokerError> {
        self.pending.settle("broker reject", false).await
    }
}

impl PendingAck {
    async fn settle(mut self, call: &'static str, done: bool) -> Result<(), BrokerError> {
        self.faults.around(call, settle(&self.acker, done)).await?;
        self.settled = true;
        Ok(())
    }
}

impl Drop for PendingAck {
    fn drop(&mut self) {
        if !self.settled {
            self.dropped.cancel();
        }
    }
}
