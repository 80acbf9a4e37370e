//! Hearing wake-ups: each listener has a queue of its own, that goes when it goes.

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
use super::error::BrokerError;
use super::link::CONNECT_TIME;
use super::topology::WAKE;

/// An exchange that is deleted forgets who listened, and RabbitMQ tells nobody: after so long a silence one listens
/// anew.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// More of them say nothing that these do not.
const WAKES_MAX: i64 = 1_000;

/// Wake-ups, for ever. Those sent while the connection was lost are lost with it.
pub struct Wakes {
    rabbit: Arc<Inner>,
    listening: Option<Listening>,
    /// Kept here, so that it gets on however often `next` is abandoned.
    opening: Option<BoxFuture<'static, Result<Listening, BrokerError>>>,
    backoff: Backoff,
}

struct Listening {
    consumer: Consumer,
    /// Closes when it is dropped.
    _channel: Channel,
    silent_until: Instant,
}

impl Wakes {
    pub(super) fn new(rabbit: Arc<Inner>) -> Wakes {
        Wakes { rabbit, listening: None, opening: None, backoff: Backoff::default() }
    }

    /// Listens from now on: a wake-up that is sent after this is heard.
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

    /// The topic of the next one. It can be abandoned, and ends no more once the broker was closed.
    pub async fn next(&mut self) -> String {
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
                // One without a topic only asked whether it may be sent.
                Some(Ok(delivery)) if delivery.data.is_empty() => {}
                Some(Ok(delivery)) => return String::from_utf8_lossy(&delivery.data).into_owned(),
                Some(Err(error)) => self.lose(&BrokerError::from(error)),
                None => self.lose(&BrokerError::Unavailable("the broker ended the delivery".to_owned())),
            }
        }
    }

    fn lose(&mut self, error: &BrokerError) {
        if !self.rabbit.shared.closed.is_cancelled() {
            tracing::warn!(%error, "wake-ups stopped");
        }
        self.listening = None;
        self.backoff.fail();
    }
}

async fn open(rabbit: Arc<Inner>) -> Result<Listening, BrokerError> {
    let (connection, channel) = rabbit.consuming.channel().await?;
    let opening = async {
        // A name of ours rather than the broker's, so that one pattern covers all that a user has to be granted.
        let name = format!("{WAKE}.{}", Uuid::new_v4());
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        let mut most = FieldTable::default();
        most.insert("x-max-length".into(), AMQPValue::LongLongInt(WAKES_MAX));
        channel.queue_declare(name.as_str().into(), options, most).await?;
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(name.as_str().into(), WAKE.into(), "".into(), options, none).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        Ok(channel.basic_consume(name.into(), "".into(), options, FieldTable::default()).await?)
    };
    let opening = rabbit.shared.options.faults.around("broker listen", opening);
    match timeout(CONNECT_TIME, opening).await {
        Ok(Ok(consumer)) => {
            let silent_until = Instant::now() + SILENCE_MAX;
            Ok(Listening { consumer, _channel: channel, silent_until })
        }
        Ok(Err(error)) => {
            rabbit.consuming.declare_again();
            Err(BrokerError::doing(error, "listening for wake-ups"))
        }
        Err(_) => {
            rabbit.consuming.give_up(&connection);
            Err(BrokerError::late("listening for wake-ups"))
        }
    }
}
