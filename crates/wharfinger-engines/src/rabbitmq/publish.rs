//! Publishes delayed messages with publisher confirms, and wake-ups without.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Confirmation, Connection, PublisherConfirm};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::DelayedMessage;
use super::connection::{CONNECT_TIMEOUT, Shared, SharedConnection};
use super::delay_queues::{self, DelayStep};
use super::error::BrokerError;

/// Header: the remaining delay when the message leaves its delay queue.
pub(super) const LEFT_MS: &str = "x-wharfinger-left-ms";
/// Header of a copy among the dead letters: the exchange from which it came.
const FROM: &str = "x-wharfinger-from";
const CONTENT_TYPE: &str = "application/json";

/// Messages that are published before their confirms are awaited.
const WINDOW: usize = 256;
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
const WAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// An older wake-up is useless, because the receivers poll in the meantime.
const WAKE_TTL_MS: &str = "10000";
const PERSISTENT: u8 = 2;
const TRANSIENT: u8 = 1;

type OpenChannel = (Arc<Connection>, Channel);

pub(super) struct Publisher {
    shared: Arc<Shared>,
    pub(super) connection: SharedConnection,
    /// One batch at a time: the driver attaches a returned message to the next confirm, so all confirms of a batch are
    /// evaluated together. A user takes the channel out, and puts it back only when no confirm is pending.
    confirm_channel: Mutex<Option<OpenChannel>>,
    wake_channel: Mutex<Option<OpenChannel>>,
}

/// A message with its exchange and routing key.
struct OutgoingMessage<'a> {
    exchange: &'a str,
    key: String,
    mandatory: bool,
    body: &'a [u8],
    properties: BasicProperties,
}

impl Publisher {
    pub(super) fn new(shared: Arc<Shared>) -> Publisher {
        let connection = SharedConnection::new(Arc::clone(&shared), "publishing");
        Publisher { shared, connection, confirm_channel: Mutex::default(), wake_channel: Mutex::default() }
    }

    /// Returns one result per message, in order.
    pub(super) async fn publish_delayed(&self, messages: &[DelayedMessage]) -> Vec<Result<(), BrokerError>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for window in messages.chunks(WINDOW) {
            let send = self.send(window);
            let sent = self.shared.options.faults.around("broker publish", send).await;
            // After one error for all, the remaining messages are not tried.
            match sent {
                Ok(more) => outcomes.extend(more),
                Err(error) => {
                    outcomes.resize_with(messages.len(), || Err(error.clone()));
                    break;
                }
            }
        }
        outcomes
    }

    /// The outer error applies to all messages.
    async fn send(&self, messages: &[DelayedMessage]) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let opening = timeout(CONNECT_TIMEOUT + CONFIRM_TIMEOUT, self.confirm_channel.lock());
        let mut slot = opening.await.map_err(|_| BrokerError::late("waiting for another publish"))?;
        let held = slot.take();
        let (connection, channel) = match self.still_open(held).await? {
            Some(open) => open,
            None => self.open_confirming().await?,
        };
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        let mut confirms = Vec::with_capacity(messages.len());
        for (position, message) in messages.iter().enumerate() {
            confirms.push(match self.outgoing(message, position) {
                Ok(outgoing) => post(&channel, outgoing, deadline).await,
                Err(error) => Err(error),
            });
        }
        let mut outcomes = Vec::with_capacity(messages.len());
        let mut returned = HashSet::new();
        let mut undecided = false;
        for confirm in confirms {
            let outcome = match confirm {
                Ok(confirm) => confirmed(confirm, deadline, &mut returned).await,
                Err(error) => Err(error),
            };
            undecided |= matches!(outcome, Err(BrokerError::Unavailable(_)));
            outcomes.push(outcome);
        }
        if !returned.is_empty() {
            self.connection.declare_again();
            for (position, outcome) in outcomes.iter_mut().enumerate() {
                if returned.contains(&position) {
                    *outcome = Err(BrokerError::Returned("no queue exists for it".to_owned()));
                }
            }
        }
        if !undecided && channel.status().connected() {
            *slot = Some((connection, channel));
        } else if connection.status().connected() && channel.status().connected() {
            self.connection.discard(&connection);
        } else {
            // The broker closed the channel: a declared queue or exchange is missing.
            self.connection.declare_again();
        }
        Ok(outcomes)
    }

    /// Returns the previous channel if it is still usable. Declares missing queues again.
    async fn still_open(&self, held: Option<OpenChannel>) -> Result<Option<OpenChannel>, BrokerError> {
        let connection = self.connection.get().await?;
        Ok(held.filter(|(before, channel)| Arc::ptr_eq(before, &connection) && channel.status().connected()))
    }

    async fn open_confirming(&self) -> Result<OpenChannel, BrokerError> {
        let (connection, channel) = self.connection.channel().await?;
        match timeout(CONFIRM_TIMEOUT, channel.confirm_select(ConfirmSelectOptions::default())).await {
            Ok(selected) => selected?,
            Err(_) => {
                self.connection.discard(&connection);
                return Err(BrokerError::late("enabling publisher confirms"));
            }
        }
        Ok((connection, channel))
    }

    fn outgoing<'a>(
        &'a self,
        message: &'a DelayedMessage,
        position: usize,
    ) -> Result<OutgoingMessage<'a>, BrokerError> {
        let id = ShortString::try_new(message.id.as_str())
            .map_err(|_| BrokerError::Refused("the id of a message is longer than 255 bytes".to_owned()))?;
        let by_exchange = self.shared.options.delayed_exchange;
        let names = &self.shared.names;
        let next_step = if by_exchange { delay_queues::by_exchange } else { delay_queues::by_queue };
        let mut headers = FieldTable::default();
        let (exchange, key, mandatory) = match next_step(message.delay_ms) {
            None => ("", names.cleanup.clone(), true),
            Some(DelayStep { step_ms, left_ms }) => {
                headers.insert(LEFT_MS.into(), integer(left_ms));
                if by_exchange {
                    headers.insert("x-delay".into(), integer(step_ms));
                    // The delayed exchange returns every mandatory message, because it routes none immediately.
                    (names.delayed.as_str(), names.cleanup.clone(), false)
                } else {
                    ("", names.queue_of_step(step_ms), true)
                }
            }
        };
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_content_type(CONTENT_TYPE.into())
            .with_message_id(id)
            .with_correlation_id(position.to_string().into())
            .with_headers(headers);
        Ok(OutgoingMessage { exchange, key, mandatory, body: &message.body, properties })
    }

    /// Sends a wake-up to all listeners, without a confirm.
    pub(super) async fn wake(&self, body: &[u8]) -> Result<(), BrokerError> {
        let waking = async {
            let mut slot = self.wake_channel.lock().await;
            let held = slot.take();
            // The broker closes a channel after a publish to a missing exchange.
            if held.as_ref().is_some_and(|(_, channel)| !channel.status().connected()) {
                self.connection.declare_again();
            }
            let (connection, channel) = match self.still_open(held).await? {
                Some(open) => open,
                None => self.connection.channel().await?,
            };
            let properties = BasicProperties::default()
                .with_delivery_mode(TRANSIENT)
                .with_content_type(CONTENT_TYPE.into())
                .with_expiration(WAKE_TTL_MS.into());
            let (wake, options) = (self.shared.names.wake.as_str(), BasicPublishOptions::default());
            channel.basic_publish(wake.into(), "".into(), options, body, properties).await?;
            *slot = Some((connection, channel));
            Ok(())
        };
        timeout(WAKE_TIMEOUT, waking).await.unwrap_or_else(|_| Err(BrokerError::late("sending a wake-up")))
    }

    /// Publishes a copy to the dead letters, with a confirm.
    pub(super) async fn dead_letter(&self, body: &[u8]) -> Result<(), BrokerError> {
        let (_connection, channel) = self.open_confirming().await?;
        let names = &self.shared.names;
        let mut headers = FieldTable::default();
        headers.insert(FROM.into(), AMQPValue::LongString(names.wake.as_str().into()));
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_correlation_id("0".into())
            .with_headers(headers);
        let (exchange, key) = ("", names.dead_letters.clone());
        let outgoing = OutgoingMessage { exchange, key, mandatory: true, body, properties };
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        let confirm = post(&channel, outgoing, deadline).await?;
        let mut returned = HashSet::new();
        confirmed(confirm, deadline, &mut returned).await?;
        match returned.is_empty() {
            true => Ok(()),
            false => Err(BrokerError::Returned("there is no queue of dead letters".to_owned())),
        }
    }

    /// Sends a wake-up without a body, with a confirm, to check the permission of the user.
    pub(super) async fn check_wake_permission(&self) -> Result<(), BrokerError> {
        let (_, channel) = self.open_confirming().await?;
        let (wake, options) = (self.shared.names.wake.as_str(), BasicPublishOptions::default());
        let trying = async {
            let properties = BasicProperties::default().with_delivery_mode(TRANSIENT);
            channel.basic_publish(wake.into(), "".into(), options, b"", properties).await?.await
        };
        match timeout(CONFIRM_TIMEOUT, trying).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                Err(BrokerError::from(error).context(&format!("publishing to exchange {wake}")))
            }
            Err(_) => Err(BrokerError::late("sending a wake-up")),
        }
    }

    /// Waits for running publishes, then closes the connection.
    pub(super) async fn close(&self) {
        let last = timeout(CONFIRM_TIMEOUT, self.confirm_channel.lock()).await;
        self.connection.close().await;
        drop(last);
    }
}

async fn post(
    channel: &Channel,
    message: OutgoingMessage<'_>,
    deadline: Instant,
) -> Result<PublisherConfirm, BrokerError> {
    let OutgoingMessage { exchange, key, mandatory, body, properties } = message;
    let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
    let post = channel.basic_publish(exchange.into(), key.into(), options, body, properties);
    match timeout_at(deadline, post).await {
        Ok(confirm) => Ok(confirm?),
        Err(_) => Err(BrokerError::late("sending a message")),
    }
}

/// Waits for one confirm. Records a message that was returned with it, which may be another message.
async fn confirmed(
    confirm: PublisherConfirm,
    deadline: Instant,
    returned: &mut HashSet<usize>,
) -> Result<(), BrokerError> {
    let confirmation = timeout_at(deadline, confirm)
        .await
        .map_err(|_| BrokerError::late("waiting for a publisher confirm"))??;
    let is_ack = confirmation.is_ack();
    let was_requested = !matches!(confirmation, Confirmation::NotRequested);
    if let Some(message) = confirmation.take_message() {
        let position = message.properties.correlation_id().as_ref();
        returned.extend(position.and_then(|position| position.as_str().parse::<usize>().ok()));
    }
    if !is_ack || !was_requested {
        return Err(BrokerError::Unavailable("it rejected a message".to_owned()));
    }
    Ok(())
}

fn integer(number: u64) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(number).unwrap_or(i64::MAX))
}
