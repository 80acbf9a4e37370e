//! Sending: delayed messages with the broker's confirmation for each, and wake-ups without.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Confirmation, Connection, PublisherConfirm};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::Delayed;
use super::delay_queues::{self, Hop};
use super::error::BrokerError;
use super::link::{CONNECT_TIME, Link, Shared};
use super::topology::{CLEANUP, DELAYED, WAKE, queue_of_step};

/// What is left of a delay when the message comes off its step.
pub(super) const LEFT_MS: &str = "x-wharfinger-left-ms";

/// What is under way at once.
const WINDOW: usize = 256;
const CONFIRM_TIME: Duration = Duration::from_secs(10);
const WAKE_TIME: Duration = Duration::from_secs(5);
/// A wake-up that nobody heard by then has been overtaken by polling.
const WAKE_LIFE_MS: &str = "10000";
const PERSISTENT: u8 = 2;
const PASSING: u8 = 1;

type Opened = (Arc<Connection>, Channel);

pub(super) struct Publisher {
    shared: Arc<Shared>,
    pub(super) link: Link,
    /// One batch at a time: the driver hangs a returned message on whichever confirmation comes next, so that all of
    /// them have to be looked at together. Whoever uses the channel takes it out, and puts it back only when nothing
    /// is under way on it any more.
    confirming: Mutex<Option<Opened>>,
    waking: Mutex<Option<Opened>>,
}

/// Where a message goes, and what it carries.
struct Letter<'a> {
    exchange: &'static str,
    key: String,
    mandatory: bool,
    body: &'a str,
    properties: BasicProperties,
}

impl Publisher {
    pub(super) fn new(shared: Arc<Shared>) -> Publisher {
        let link = Link::new(Arc::clone(&shared), "publishing");
        Publisher { shared, link, confirming: Mutex::default(), waking: Mutex::default() }
    }

    /// One outcome for each, in order.
    pub(super) async fn publish_delayed(&self, messages: &[Delayed]) -> Vec<Result<(), BrokerError>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for window in messages.chunks(WINDOW) {
            let send = self.send(window);
            let sent = self.shared.options.faults.around("broker publish", send).await;
            // A broker that did not answer once is not asked for each of the rest.
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

    /// An error is one for all of them.
    async fn send(&self, messages: &[Delayed]) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let opening = timeout(CONNECT_TIME + CONFIRM_TIME, self.confirming.lock());
        let mut slot = opening.await.map_err(|_| BrokerError::late("waiting for others that publish"))?;
        let held = slot.take();
        let (connection, channel) = match self.still_open(held).await? {
            Some(opened) => opened,
            None => self.open_confirming().await?,
        };
        let deadline = Instant::now() + CONFIRM_TIME;
        let mut confirms = Vec::with_capacity(messages.len());
        for (position, message) in messages.iter().enumerate() {
            confirms.push(match self.letter(message, position) {
                Ok(letter) => post(&channel, letter, deadline).await,
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
            self.link.declare_again();
            for (position, outcome) in outcomes.iter_mut().enumerate() {
                if returned.contains(&position) {
                    *outcome = Err(BrokerError::Returned("there is no queue for it".to_owned()));
                }
            }
        }
        if !undecided && channel.status().connected() {
            *slot = Some((connection, channel));
        } else if connection.status().connected() && channel.status().connected() {
            self.link.give_up(&connection);
        } else {
            // The broker closed the channel: something that was declared is gone.
            self.link.declare_again();
        }
        Ok(outcomes)
    }

    /// The channel that was used before, if it is good for more. What is gone is declared again on the way.
    async fn still_open(&self, held: Option<Opened>) -> Result<Option<Opened>, BrokerError> {
        let connection = self.link.connection().await?;
        Ok(held.filter(|(before, channel)| Arc::ptr_eq(before, &connection) && channel.status().connected()))
    }

    async fn open_confirming(&self) -> Result<Opened, BrokerError> {
        let (connection, channel) = self.link.channel().await?;
        match timeout(CONFIRM_TIME, channel.confirm_select(ConfirmSelectOptions::default())).await {
            Ok(selected) => selected?,
            Err(_) => {
                self.link.give_up(&connection);
                return Err(BrokerError::late("asking for confirmations"));
            }
        }
        Ok((connection, channel))
    }

    fn letter<'a>(&self, message: &'a Delayed, position: usize) -> Result<Letter<'a>, BrokerError> {
        let id = ShortString::try_new(message.id.as_str())
            .map_err(|_| BrokerError::Refused("the id of a message is longer than 255 bytes".to_owned()))?;
        let by_exchange = self.shared.options.delayed_exchange;
        let hop = if by_exchange { delay_queues::by_exchange } else { delay_queues::by_queue };
        let mut headers = FieldTable::default();
        let (exchange, key, mandatory) = match hop(message.delay_ms) {
            None => ("", CLEANUP.to_owned(), true),
            Some(Hop { step_ms, left_ms }) => {
                headers.insert(LEFT_MS.into(), whole(left_ms));
                if by_exchange {
                    headers.insert("x-delay".into(), whole(step_ms));
                    // It returns every message that asks to be returned, for it routes none of them at once.
                    (DELAYED, CLEANUP.to_owned(), false)
                } else {
                    ("", queue_of_step(step_ms), true)
                }
            }
        };
        let properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id)
            .with_correlation_id(position.to_string().into())
            .with_headers(headers);
        Ok(Letter { exchange, key, mandatory, body: &message.body, properties })
    }

    /// Whoever listens hears it; nobody is told whether somebody does.
    pub(super) async fn wake(&self, topic: &str) -> Result<(), BrokerError> {
        let waking = async {
            let mut slot = self.waking.lock().await;
            let held = slot.take();
            // The broker closes a channel on which it is asked for an exchange that is gone.
            if held.as_ref().is_some_and(|(_, channel)| !channel.status().connected()) {
                self.link.declare_again();
            }
            let (connection, channel) = match self.still_open(held).await? {
                Some(opened) => opened,
                None => self.link.channel().await?,
            };
            let properties =
                BasicProperties::default().with_delivery_mode(PASSING).with_expiration(WAKE_LIFE_MS.into());
            let options = BasicPublishOptions::default();
            channel.basic_publish(WAKE.into(), "".into(), options, topic.as_bytes(), properties).await?;
            *slot = Some((connection, channel));
            Ok(())
        };
        timeout(WAKE_TIME, waking).await.unwrap_or_else(|_| Err(BrokerError::late("a wake-up")))
    }

    /// A wake-up without a topic, with confirmation: whether this user may send any.
    pub(super) async fn try_wake(&self) -> Result<(), BrokerError> {
        let (_, channel) = self.open_confirming().await?;
        let options = BasicPublishOptions::default();
        let trying = async {
            let properties = BasicProperties::default().with_delivery_mode(PASSING);
            channel.basic_publish(WAKE.into(), "".into(), options, b"", properties).await?.await
        };
        match timeout(CONFIRM_TIME, trying).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(BrokerError::from(error).doing(&format!("publishing to exchange {WAKE}"))),
            Err(_) => Err(BrokerError::late("a wake-up")),
        }
    }

    /// What is under way is waited for, then the connection is closed.
    pub(super) async fn close(&self) {
        let last = timeout(CONFIRM_TIME, self.confirming.lock()).await;
        self.link.close().await;
        drop(last);
    }
}

async fn post(
    channel: &Channel,
    letter: Letter<'_>,
    deadline: Instant,
) -> Result<PublisherConfirm, BrokerError> {
    let Letter { exchange, key, mandatory, body, properties } = letter;
    let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
    let post = channel.basic_publish(exchange.into(), key.into(), options, body.as_bytes(), properties);
    match timeout_at(deadline, post).await {
        Ok(confirm) => Ok(confirm?),
        Err(_) => Err(BrokerError::late("sending a message")),
    }
}

/// Notes whichever message came back with this confirmation; it need not be the one that is confirmed.
async fn confirmed(
    confirm: PublisherConfirm,
    deadline: Instant,
    returned: &mut HashSet<usize>,
) -> Result<(), BrokerError> {
    let confirmation =
        timeout_at(deadline, confirm).await.map_err(|_| BrokerError::late("a confirmation"))??;
    let taken = confirmation.is_ack();
    let asked = !matches!(confirmation, Confirmation::NotRequested);
    if let Some(message) = confirmation.take_message() {
        let position = message.properties.correlation_id().as_ref();
        returned.extend(position.and_then(|position| position.as_str().parse::<usize>().ok()));
    }
    if !taken || !asked {
        return Err(BrokerError::Unavailable("it did not take a message".to_owned()));
    }
    Ok(())
}

fn whole(number: u64) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(number).unwrap_or(i64::MAX))
}
