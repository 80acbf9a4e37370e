//! Receiving what is due. A message that came off a step with some of its delay left is sent on from here, and
//! nobody outside notices.

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
use super::error::BrokerError;
use super::hops::{Hop, Hops, settle};
use super::link::CONNECT_TIME;
use super::publish::LEFT_MS;
use super::topology::CLEANUP;
use super::{Delayed, Inner};
use wharfinger_calls::faults::Faults;

/// A queue that is deleted and declared again at once forgets who consumed it, and RabbitMQ tells nobody: after so
/// long a silence it is asked again.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Due messages, for ever: what is lost is made again. Those that are not acknowledged come again, here or
/// elsewhere.
pub struct DueMessages {
    rabbit: Arc<Inner>,
    prefetch: u16,
    consuming: Option<Consuming>,
    /// Kept here, so that it gets on however often `next` is abandoned.
    opening: Option<BoxFuture<'static, Result<Consuming, BrokerError>>>,
    backoff: Backoff,
    hops: Hops,
}

/// A message whose delay is over. It is to be acknowledged at once and not after the work: the broker takes back
/// what is held for long, and what it carries is only a hint.
#[must_use = "a message that is neither acknowledged nor refused comes again"]
pub struct Due {
    pub id: String,
    pub body: String,
    /// Whether it was delivered before, to anybody.
    pub redelivered: bool,
    held: Held,
}

/// What the broker waits for an answer to. Without one it would wait half an hour, and count the message among
/// those that may be under way at once: so the channel is closed, and the message comes again.
struct Held {
    acker: Acker,
    settled: bool,
    given_up: CancellationToken,
    faults: Faults,
}

struct Consuming {
    consumer: Consumer,
    /// Closes when it is dropped.
    _channel: Channel,
    /// A message was let go of.
    given_up: CancellationToken,
    silent_until: Instant,
}

impl Consuming {
    fn new(consumer: Consumer, channel: Channel) -> Consuming {
        let (given_up, silent_until) = (CancellationToken::new(), Instant::now() + SILENCE_MAX);
        Consuming { consumer, _channel: channel, given_up, silent_until }
    }
}

impl DueMessages {
    pub(super) fn new(rabbit: Arc<Inner>, prefetch: u16) -> DueMessages {
        let (backoff, hops) = (Backoff::default(), Hops::default());
        DueMessages { rabbit, prefetch, consuming: None, opening: None, backoff, hops }
    }

    /// The next one. Nothing is lost when this is abandoned. It ends no more once the broker was closed.
    pub async fn next(&mut self) -> Due {
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
            // In this order, so that a message which is here already is never taken for silence.
            let delivery = tokio::select! {
                biased;
                () = closed.cancelled() => continue,
                delivery = consuming.consumer.next() => delivery,
                never = self.hops.send_on(&self.rabbit) => match never {},
                () = consuming.given_up.cancelled() => {
                    self.lose(&BrokerError::Unavailable("a message was not acknowledged".to_owned()));
                    continue;
                }
                () = sleep_until(consuming.silent_until), if self.hops.is_empty() => {
                    self.consuming = None;
                    continue;
                }
            };
            consuming.silent_until = Instant::now() + SILENCE_MAX;
            match delivery {
                Some(Ok(delivery)) => {
                    let given_up = consuming.given_up.clone();
                    if let Some(due) = self.take(delivery, given_up) {
                        return due;
                    }
                }
                Some(Err(error)) => self.lose(&BrokerError::from(error)),
                // What the broker says when a queue is deleted.
                None => {
                    self.rabbit.consuming.declare_again();
                    self.lose(&BrokerError::Unavailable("the broker ended the delivery".to_owned()));
                }
            }
        }
    }

    fn lose(&mut self, error: &BrokerError) {
        if !self.rabbit.shared.closed.is_cancelled() {
            tracing::warn!(%error, "due messages stopped; they come again");
        }
        self.consuming = None;
        self.hops.forget();
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

    /// Nothing, if it is not due or not ours.
    fn take(&mut self, delivery: Delivery, given_up: CancellationToken) -> Option<Due> {
        let Delivery { properties, data, acker, redelivered, .. } = delivery;
        let id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        let left_ms = left_ms(properties.headers().as_ref());
        let next = match String::from_utf8(data) {
            Ok(body) if left_ms == 0 => {
                let faults = self.rabbit.shared.options.faults.clone();
                let held = Held { acker, settled: false, given_up, faults };
                return Some(Due { id, body, redelivered, held });
            }
            Ok(body) => Some(Delayed { id, body, delay_ms: left_ms }),
            Err(_) => {
                tracing::warn!(id, "a message that is no text: it is not ours, and is refused");
                None
            }
        };
        self.hops.waiting.push(Hop { next, acker });
        None
    }
}

async fn open(rabbit: Arc<Inner>, prefetch: u16) -> Result<Consuming, BrokerError> {
    let (connection, channel) = rabbit.consuming.channel().await?;
    let opening = async {
        channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        Ok(channel.basic_consume(CLEANUP.into(), "".into(), options, FieldTable::default()).await?)
    };
    let opening = rabbit.shared.options.faults.around("broker consume", opening);
    match timeout(CONNECT_TIME, opening).await {
        Ok(Ok(consumer)) => Ok(Consuming::new(consumer, channel)),
        Ok(Err(error)) => {
            rabbit.consuming.declare_again();
            Err(BrokerError::doing(error, &format!("consuming queue {CLEANUP}")))
        }
        Err(_) => {
            rabbit.consuming.give_up(&connection);
            Err(BrokerError::late("asking for due messages"))
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

impl Due {
    /// Done with. Where this fails, the message comes again.
    pub async fn ack(self) -> Result<(), BrokerError> {
        self.held.settle("broker ack", true).await
    }

    /// Never to be delivered again: it goes to the dead letters, for a person to look at.
    pub async fn refuse(self) -> Result<(), BrokerError> {
        self.held.settle("broker refuse", false).await
    }
}

impl Held {
    async fn settle(mut self, call: &'static str, done: bool) -> Result<(), BrokerError> {
        self.faults.around(call, settle(&self.acker, done)).await?;
        self.settled = true;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.settled {
            self.given_up.cancel();
        }
    }
}
