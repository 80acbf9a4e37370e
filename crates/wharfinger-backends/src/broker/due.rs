//! Receiving what is due. A message that came off a step with some of its delay left is sent on from here, and
//! nobody outside notices.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Acker, Channel, Consumer};
use tokio::time::timeout;

use super::backoff::Backoff;
use super::error::BrokerError;
use super::link::CONNECT_TIME;
use super::publish::LEFT_MS;
use super::topology::CLEANUP;
use super::{Delayed, Inner};
use crate::faults::Faults;

const ACK_TIME: Duration = Duration::from_secs(5);

/// Due messages, for ever: what is lost is made again. Those that were not acknowledged when the connection was
/// lost, or when this is dropped, come again, here or elsewhere.
pub struct DueMessages {
    rabbit: Arc<Inner>,
    prefetch: u16,
    consuming: Option<Consuming>,
    backoff: Backoff,
    hops: Hops,
}

/// A message whose delay is over. It is to be acknowledged at once and not after the work: the broker takes back
/// what is held for long, and what it carries is only a hint.
#[must_use = "a message that is neither acknowledged nor refused holds a place for half an hour"]
pub struct Due {
    pub id: String,
    pub body: String,
    /// Whether it was delivered before, to anybody.
    pub redelivered: bool,
    acker: Acker,
    faults: Faults,
}

struct Consuming {
    consumer: Consumer,
    /// Closes when it is dropped.
    _channel: Channel,
}

/// A message that is not due yet.
struct Hop {
    next: Delayed,
    acker: Acker,
}

/// All that is to be sent on. It lives here and not in a future, so that `next` can be abandoned at any await.
#[derive(Default)]
struct Hops {
    waiting: Vec<Hop>,
    under_way: Option<BoxFuture<'static, Vec<Hop>>>,
    backoff: Backoff,
}

impl DueMessages {
    pub(super) fn new(rabbit: Arc<Inner>, prefetch: u16) -> DueMessages {
        let (backoff, hops) = (Backoff::default(), Hops::default());
        DueMessages { rabbit, prefetch, consuming: None, backoff, hops }
    }

    /// The next one. Nothing is lost when this is abandoned. It ends no more once the broker was closed.
    pub async fn next(&mut self) -> Due {
        loop {
            let closed = self.rabbit.site.closed.clone();
            if closed.is_cancelled() {
                self.consuming = None;
                pending::<Infallible>().await;
            }
            let Some(consuming) = &mut self.consuming else {
                self.consume().await;
                continue;
            };
            let delivery = tokio::select! {
                delivery = consuming.consumer.next() => delivery,
                never = self.hops.send_on(&self.rabbit) => match never {},
                () = closed.cancelled() => continue,
            };
            match delivery {
                Some(Ok(delivery)) => {
                    if let Some(due) = self.take(delivery) {
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
        if !self.rabbit.site.closed.is_cancelled() {
            tracing::warn!(%error, "due messages stopped; they come again");
        }
        self.consuming = None;
        self.hops.forget();
        self.backoff.fail();
    }

    async fn consume(&mut self) {
        self.backoff.wait().await;
        let open = open(&self.rabbit, self.prefetch);
        match self.rabbit.site.options.faults.around("broker consume", open).await {
            Ok(consuming) => {
                self.consuming = Some(consuming);
                self.backoff.succeed();
            }
            Err(error) => self.lose(&error),
        }
    }

    /// Nothing, if it is not due or not ours.
    fn take(&mut self, delivery: Delivery) -> Option<Due> {
        let Delivery { properties, data, acker, redelivered, .. } = delivery;
        let id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        let left_ms = left_ms(properties.headers().as_ref());
        // What is not text is refused where everything else is sent on, for that must not be abandoned either.
        let body = String::from_utf8(data);
        let next = match body {
            Ok(body) if left_ms == 0 => {
                return Some(Due {
                    id,
                    body,
                    redelivered,
                    acker,
                    faults: self.rabbit.site.options.faults.clone(),
                });
            }
            Ok(body) => Delayed { id, body, delay_ms: left_ms },
            Err(_) => {
                tracing::warn!(id, "a message that is no text: it was not sent by us, and is refused");
                tokio::spawn(async move { timeout(ACK_TIME, acker.nack(BasicNackOptions::default())).await });
                return None;
            }
        };
        self.hops.waiting.push(Hop { next, acker });
        None
    }
}

async fn open(rabbit: &Inner, prefetch: u16) -> Result<Consuming, BrokerError> {
    let (connection, channel) = rabbit.consuming.channel().await?;
    let opening = async {
        channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        channel.basic_consume(CLEANUP.into(), "".into(), options, FieldTable::default()).await
    };
    match timeout(CONNECT_TIME, opening).await {
        Ok(Ok(consumer)) => Ok(Consuming { consumer, _channel: channel }),
        Ok(Err(error)) => {
            rabbit.consuming.declare_again();
            Err(BrokerError::from(error).doing(&format!("consuming queue {CLEANUP}")))
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

impl Hops {
    /// Those whose connection is gone come again by themselves.
    fn forget(&mut self) {
        self.waiting.retain(|hop| hop.acker.usable());
    }

    async fn send_on(&mut self, rabbit: &Arc<Inner>) -> Infallible {
        loop {
            if self.under_way.is_none() {
                if self.waiting.is_empty() {
                    pending::<Infallible>().await;
                }
                self.backoff.wait().await;
                let batch = std::mem::take(&mut self.waiting);
                self.under_way = Some(Box::pin(send_on(Arc::clone(rabbit), batch)));
            }
            if let Some(under_way) = &mut self.under_way {
                let failed = under_way.await;
                self.under_way = None;
                if failed.is_empty() {
                    self.backoff.succeed();
                } else {
                    self.backoff.fail();
                    self.waiting.extend(failed);
                    self.forget();
                }
            }
        }
    }
}

/// First sent on, then acknowledged: between the two there are two of it, never none. Answers with those that
/// could not be sent on. They are held rather than given back, for giving back counts towards the dead letters.
async fn send_on(rabbit: Arc<Inner>, hops: Vec<Hop>) -> Vec<Hop> {
    let (messages, ackers): (Vec<Delayed>, Vec<Acker>) =
        hops.into_iter().map(|hop| (hop.next, hop.acker)).unzip();
    let outcomes = rabbit.publisher.publish_delayed(&messages).await;
    let mut failed = Vec::new();
    for ((next, acker), outcome) in messages.into_iter().zip(ackers).zip(outcomes) {
        match outcome {
            Ok(()) => {
                if let Err(error) = settle(&acker, true).await {
                    tracing::debug!(%error, "a message that was sent on comes twice");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a message could not be sent on; it is tried again");
                failed.push(Hop { next, acker });
            }
        }
    }
    failed
}

async fn settle(acker: &Acker, done: bool) -> Result<(), BrokerError> {
    let settling = async {
        if done {
            acker.ack(BasicAckOptions::default()).await
        } else {
            acker.nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() }).await
        }
    };
    match timeout(ACK_TIME, settling).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => {
            Err(BrokerError::Unavailable("the connection was lost; the message comes again".to_owned()))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(BrokerError::late("an acknowledgement")),
    }
}

impl Due {
    /// Done with. Where this fails, the message comes again.
    pub async fn ack(self) -> Result<(), BrokerError> {
        self.faults.around("broker ack", settle(&self.acker, true)).await
    }

    /// Never to be delivered again: it goes to the dead letters, for a person to look at.
    pub async fn refuse(self) -> Result<(), BrokerError> {
        self.faults.around("broker refuse", settle(&self.acker, false)).await
    }
}
