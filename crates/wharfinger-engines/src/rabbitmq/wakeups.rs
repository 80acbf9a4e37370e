//! Receives wake-ups. Each listener has its own queue, which is deleted with the listener.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::Inner;
use super::backoff::Backoff;
use super::connection::CONNECT_TIMEOUT;
use super::error::BrokerError;

/// A deleted exchange loses its bindings, and RabbitMQ does not notify the listeners. After this time without a
/// wake-up, the listener binds its queue again.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// More queued wake-ups would add no information.
const QUEUED_MAX: i64 = 1_000;

/// An endless stream of wake-ups. Wake-ups that are sent while the connection is lost are not delivered.
pub struct WakeupListener {
    rabbit: Arc<Inner>,
    listening: Option<Listening>,
    /// Stored here, so that it continues when `next` is cancelled.
    opening: Option<BoxFuture<'static, Result<Listening, BrokerError>>>,
    backoff: Backoff,
}

struct Listening {
    consumer: Consumer,
    /// Closes when it is dropped.
    _channel: Channel,
    silent_until: Instant,
}

impl WakeupListener {
    pub(super) fn new(rabbit: Arc<Inner>) -> WakeupListener {
        WakeupListener { rabbit, listening: None, opening: None, backoff: Backoff::default() }
    }

    /// Starts to listen: wake-ups that are sent after this call are received.
    pub async fn listen(&mut self) {
        while self.listening.is_none() {
            if self.rabbit.shared.closed.is_cancelled() {
                pending::<Infallible>().await;
            }
            self.backoff.wait().await;
            let rabbit = &self.rabbit;
            let opening = self.opening.get_or_insert_with(|| Box::pin(open(Arc::clone(rabbit))));
            let opened = opening.await;
            self.opening = None;
            match opened {
                Ok(listening) => {
                    self.listening = Some(listening);
                    self.backoff.succeed();
                }
                Err(error) => self.lose(&error),
            }
        }
    }

    /// Returns the body of the next wake-up. It can be cancelled. After `close`, it never returns.
    pub async fn next(&mut self) -> Vec<u8> {
        loop {
            self.listen().await;
            let Some(listening) = &mut self.listening else { continue };
            let closed = self.rabbit.shared.closed.clone();
            let delivery = tokio::select! {
                delivery = listening.consumer.next() => delivery,
                () = sleep_until(listening.silent_until) => {
                    self.rabbit.consuming.declare_again();
                    self.listening = None;
                    continue;
                }
                () = closed.cancelled() => {
                    self.listening = None;
                    continue;
                }
            };
            listening.silent_until = Instant::now() + SILENCE_MAX;
            match delivery {
                // A wake-up without a body only checks the permission of its sender.
                Some(Ok(delivery)) if delivery.data.is_empty() => {}
                Some(Ok(delivery)) => return delivery.data,
                Some(Err(error)) => self.lose(&BrokerError::from(error)),
                None => self.lose(&BrokerError::Unavailable("the broker cancelled the consumer".to_owned())),
            }
        }
    }

    fn lose(&mut self, error: &BrokerError) {
        if !self.rabbit.shared.closed.is_cancelled() {
            tracing::warn!(%error, "lost the RabbitMQ consumer for wake-ups, reconnecting; work may start later");
        }
        self.listening = None;
        self.backoff.fail();
    }
}

async fn open(rabbit: Arc<Inner>) -> Result<Listening, BrokerError> {
    let (connection, channel) = rabbit.consuming.channel().await?;
    let wake = rabbit.shared.names.wake.as_str();
    let opening = async {
        // With the common prefix, one permission pattern covers all queues.
        let name = format!("{wake}.{}", Uuid::new_v4());
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(QUEUED_MAX));
        channel.queue_declare(name.as_str().into(), options, arguments).await?;
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(name.as_str().into(), wake.into(), "".into(), options, none).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        Ok(channel.basic_consume(name.into(), "".into(), options, FieldTable::default()).await?)
    };
    let opening = rabbit.shared.options.faults.around("broker listen", opening);
    match timeout(CONNECT_TIMEOUT, opening).await {
        Ok(Ok(consumer)) => {
            let silent_until = Instant::now() + SILENCE_MAX;
            Ok(Listening { consumer, _channel: channel, silent_until })
        }
        Ok(Err(error)) => {
            rabbit.consuming.declare_again();
            Err(BrokerError::context(error, "listening for wake-ups"))
        }
        Err(_) => {
            rabbit.consuming.discard(&connection);
            Err(BrokerError::late("listening for wake-ups"))
        }
    }
}
