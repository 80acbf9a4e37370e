//! RabbitMQ: delayed messages and wake-ups, with JSON bodies that this module does not read. The catalog is polled too, so
//! a lost message only causes a delay. Any message may be delivered twice.

mod backoff;
mod connection;
mod delay_queues;
mod due;
mod error;
mod forwarding;
mod handshake;
mod publish;
mod topology;
mod wakeups;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use tokio::time::timeout;

pub use due::{DueMessage, DueMessages};
pub use error::BrokerError;
pub use wakeups::WakeupListener;

use self::connection::{Shared, SharedConnection};
use self::error::is_missing;
use self::publish::Publisher;
use wharfinger_calls::faults::Faults;

const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct RabbitOptions {
    /// `amqp://` or `amqps://`.
    pub url: String,
    /// The names of all queues and exchanges start with it. Installations with different prefixes can share a broker.
    pub prefix: String,
    /// Use the exchange type `x-delayed-message`, which needs a plugin of the broker.
    pub delayed_exchange: bool,
    /// The name of this process in the management UI of the broker.
    pub instance: String,
    pub faults: Faults,
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for RabbitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitOptions")
            .field("prefix", &self.prefix)
            .field("delayed_exchange", &self.delayed_exchange)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// A message that is delivered when its delay is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedMessage {
    /// At most 255 bytes.
    pub id: String,
    /// JSON.
    pub body: Vec<u8>,
    pub delay_ms: u64,
}

/// A broker with two connections, so that a blocked publisher does not stop the consumer.
#[derive(Clone)]
pub struct Rabbit(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    publisher: Publisher,
    consuming: SharedConnection,
}

impl Rabbit {
    /// Connects and declares all queues, with one attempt.
    pub async fn open(options: RabbitOptions) -> Result<Rabbit, BrokerError> {
        let rabbit = Rabbit::lazy(options);
        rabbit.0.publisher.connection.get().await?;
        rabbit.0.publisher.check_wake_permission().await?;
        Ok(rabbit)
    }

    /// Connects at the first use, so that the program can start without the broker.
    pub fn lazy(options: RabbitOptions) -> Rabbit {
        let shared = Shared::new(options);
        let publisher = Publisher::new(Arc::clone(&shared));
        let consuming = SharedConnection::new(Arc::clone(&shared), "consuming");
        Rabbit(Arc::new(Inner { shared, publisher, consuming }))
    }

    /// Checks whether the broker can be used now.
    pub async fn check(&self) -> Result<(), BrokerError> {
        let checking = self.0.shared.options.faults.around("broker check", self.ask());
        timeout(CHECK_TIMEOUT, checking)
            .await
            .unwrap_or_else(|_| Err(BrokerError::late("checking the broker")))
    }

    /// Asks for the queue itself, which also detects a quorum queue without a leader.
    async fn ask(&self) -> Result<(), BrokerError> {
        let connection = &self.0.publisher.connection;
        let (_, channel) = connection.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        match channel
            .queue_declare(self.0.shared.names.cleanup.as_str().into(), options, FieldTable::default())
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_missing(&error) => {
                connection.declare_again();
                connection.get().await.map(drop)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The version of the broker at the last connect.
    pub fn version(&self) -> Option<String> {
        self.0.shared.version()
    }

    /// Publishes all messages. Returns one result per message, in order. `Ok`: the broker has confirmed that it stored
    /// the message on disk.
    pub async fn publish_delayed(&self, messages: &[DelayedMessage]) -> Vec<Result<(), BrokerError>> {
        self.0.publisher.publish_delayed(messages).await
    }

    /// Receives due messages, with at most `prefetch` unacknowledged ones.
    pub fn due(&self, prefetch: u16) -> DueMessages {
        DueMessages::new(Arc::clone(&self.0), prefetch)
    }

    /// Sends a wake-up to all listening processes. There is no answer from them. `body` is JSON.
    pub async fn wake(&self, body: &[u8]) -> Result<(), BrokerError> {
        self.0.shared.options.faults.around("broker wake", self.0.publisher.wake(body)).await
    }

    /// Adds a copy of a wake-up that cannot be read to the dead letters.
    pub async fn dead_letter(&self, body: &[u8]) -> Result<(), BrokerError> {
        self.0.shared.options.faults.around("broker dead letter", self.0.publisher.dead_letter(body)).await
    }

    pub fn wakeups(&self) -> WakeupListener {
        WakeupListener::new(Arc::clone(&self.0))
    }

    /// Closes all clones: stops deliveries, and waits for running publishes. The broker delivers unacknowledged
    /// messages to other consumers.
    pub async fn close(&self) {
        self.0.shared.closed.cancel();
        self.0.consuming.close().await;
        self.0.publisher.close().await;
    }
}
