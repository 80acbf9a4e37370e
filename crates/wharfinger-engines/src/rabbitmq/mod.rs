//! RabbitMQ: delayed messages and wake-ups. It carries ids and never the truth: the catalog is polled anyway, a
//! lost message costs time, and any message may come twice.

mod backoff;
mod delay_queues;
mod due;
mod error;
mod greeting;
mod hops;
mod link;
mod publish;
mod topology;
mod wakes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use tokio::time::timeout;

pub use due::{Due, DueMessages};
pub use error::BrokerError;
pub use wakes::Wakes;

use self::error::is_missing;
use self::link::{Link, Shared};
use self::publish::Publisher;
use self::topology::CLEANUP;
use wharfinger_calls::faults::Faults;

const CHECK_TIME: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct RabbitOptions {
    /// `amqp://` or `amqps://`.
    pub url: String,
    /// Whether the broker has the exchange `x-delayed-message`, and it is to be used.
    pub delayed_exchange: bool,
    /// A name for this process, as the broker's own pages show it.
    pub instance: String,
    pub faults: Faults,
}

/// Without the URL, for that may carry a password.
impl fmt::Debug for RabbitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitOptions")
            .field("delayed_exchange", &self.delayed_exchange)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// A message that is to come out once its delay is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delayed {
    /// At most 255 bytes.
    pub id: String,
    pub body: String,
    pub delay_ms: u64,
}

/// A broker, with two connections: where it slows publishing down, receiving goes on.
#[derive(Clone)]
pub struct Rabbit(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    publisher: Publisher,
    consuming: Link,
}

impl Rabbit {
    /// Connects and declares all queues. One attempt; the error is one line that says what is wrong.
    pub async fn open(options: RabbitOptions) -> Result<Rabbit, BrokerError> {
        let rabbit = Rabbit::lazy(options);
        rabbit.0.publisher.link.connection().await?;
        rabbit.0.publisher.try_wake().await?;
        Ok(rabbit)
    }

    /// Connects when it is used: for a start while the broker is away.
    pub fn lazy(options: RabbitOptions) -> Rabbit {
        let shared = Shared::new(options);
        let publisher = Publisher::new(Arc::clone(&shared));
        let consuming = Link::new(Arc::clone(&shared), "consuming");
        Rabbit(Arc::new(Inner { shared, publisher, consuming }))
    }

    /// Whether it can be used now; the error says why not.
    pub async fn check(&self) -> Result<(), BrokerError> {
        let checking = self.0.shared.options.faults.around("broker check", self.ask());
        timeout(CHECK_TIME, checking).await.unwrap_or_else(|_| Err(BrokerError::late("a check")))
    }

    /// The queue itself is asked for, so that one without a leader is found out too.
    async fn ask(&self) -> Result<(), BrokerError> {
        let link = &self.0.publisher.link;
        let (_, channel) = link.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        match channel.queue_declare(CLEANUP.into(), options, FieldTable::default()).await {
            Ok(_) => Ok(()),
            Err(error) if is_missing(&error) => {
                link.declare_again();
                link.connection().await.map(drop)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What the broker said its version was, when it was last connected to.
    pub fn version(&self) -> Option<String> {
        self.0.shared.version()
    }

    /// Sends all of them and answers for each, in order: well only if the broker has put it on disk.
    pub async fn publish_delayed(&self, messages: &[Delayed]) -> Vec<Result<(), BrokerError>> {
        self.0.publisher.publish_delayed(messages).await
    }

    /// Due messages, of which so many may be unacknowledged at once.
    pub fn due(&self, prefetch: u16) -> DueMessages {
        DueMessages::new(Arc::clone(&self.0), prefetch)
    }

    /// Tells every process that listens. Nobody says whether one does.
    pub async fn wake(&self, topic: &str) -> Result<(), BrokerError> {
        self.0.shared.options.faults.around("broker wake", self.0.publisher.wake(topic)).await
    }

    pub fn wakes(&self) -> Wakes {
        Wakes::new(Arc::clone(&self.0))
    }

    /// Ends it for all clones: no more deliveries, then what is being published is waited for. What was delivered
    /// and not acknowledged comes again to somebody else.
    pub async fn close(&self) {
        self.0.shared.closed.cancel();
        self.0.consuming.close().await;
        self.0.publisher.close().await;
    }
}
