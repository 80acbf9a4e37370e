//! Declares the queues and exchanges. Declaring an existing one changes nothing, so this runs after every connect. A
//! wiped broker gets them back before the first publish.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};

use super::delay_queues::STEPS_MS;
use super::error::BrokerError;

pub(super) const CLEANUP: &str = "resource.cleanup";
pub(super) const DEAD_LETTERS: &str = "resource.cleanup.dlq";
pub(super) const WAKE: &str = "wharfinger.wake";
/// The delayed exchange, if the plugin is used. Also the name prefix of the delay queues.
pub(super) const DELAYED: &str = "resource.delayed";

/// After this many deliveries without an acknowledgement, a message becomes a dead letter.
const DELIVERIES_MAX: i64 = 20;

pub(super) fn queue_of_step(step_ms: u64) -> String {
    format!("{DELAYED}.{step_ms}")
}

/// Declares everything in sequence. The error names what failed.
pub(super) async fn declare(channel: &Channel, delayed_exchange: bool) -> Result<(), BrokerError> {
    declare_queue(channel, DEAD_LETTERS, quorum([])).await?;
    let limit = ("x-delivery-limit", AMQPValue::LongLongInt(DELIVERIES_MAX));
    declare_queue(channel, CLEANUP, quorum([limit].into_iter().chain(dead_letters_to(DEAD_LETTERS)))).await?;
    if delayed_exchange {
        let kind = ExchangeKind::Custom("x-delayed-message".to_owned());
        let table = arguments([("x-delayed-type", string_argument("direct"))]);
        declare_exchange(channel, DELAYED, kind, table).await?;
        channel
            .queue_bind(
                CLEANUP.into(),
                DELAYED.into(),
                CLEANUP.into(),
                QueueBindOptions::default(),
                arguments([]),
            )
            .await
            .map_err(|error| with_remedy(error, &format!("binding queue {CLEANUP} to exchange {DELAYED}")))?;
    } else {
        for step_ms in STEPS_MS {
            let ttl = ("x-message-ttl", AMQPValue::LongLongInt(step_ms.cast_signed()));
            let table = quorum([ttl].into_iter().chain(dead_letters_to(CLEANUP)));
            declare_queue(channel, &queue_of_step(step_ms), table).await?;
        }
    }
    declare_exchange(channel, WAKE, ExchangeKind::Fanout, arguments([])).await
}

async fn declare_queue(channel: &Channel, name: &str, table: FieldTable) -> Result<(), BrokerError> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(name.into(), options, table).await {
        Ok(_) => Ok(()),
        Err(error) => Err(with_remedy(error, &format!("declaring queue {name}"))),
    }
}

async fn declare_exchange(
    channel: &Channel,
    name: &str,
    kind: ExchangeKind,
    table: FieldTable,
) -> Result<(), BrokerError> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(name.into(), kind, options, table).await;
    declared.map_err(|error| with_remedy(error, &format!("declaring exchange {name}")))
}

/// Adds the operation and, for a refusal, the remedy.
fn with_remedy(error: lapin::Error, what: &str) -> BrokerError {
    match BrokerError::from(error) {
        BrokerError::Refused(why) if why.contains("inequivalent") => BrokerError::Refused(format!(
            "{what}: it exists with other arguments ({why}). Its messages are not needed: delete it and start again"
        )),
        BrokerError::Refused(why) if why.contains("unknown exchange type") => BrokerError::Refused(format!(
            "{what}: {why}. The broker lacks the plugin rabbitmq_delayed_message_exchange: set AMQP_DELAYED_EXCHANGE=false"
        )),
        BrokerError::Refused(why) if why.contains("ACCESS_REFUSED") => BrokerError::Refused(format!(
            "{what}: {why}. The user needs the permissions configure, write and read on `^(resource|wharfinger)\\.`, and \
             write on `amq.default`"
        )),
        other => other.context(what),
    }
}

fn quorum(more: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> FieldTable {
    arguments([("x-queue-type", string_argument("quorum"))].into_iter().chain(more))
}

/// Dead-lettering at least once: the message leaves its queue only after the next queue has it. This strategy requires
/// the overflow behaviour `reject-publish`.
fn dead_letters_to(queue: &str) -> [(&'static str, AMQPValue); 4] {
    [
        ("x-dead-letter-exchange", string_argument("")),
        ("x-dead-letter-routing-key", string_argument(queue)),
        ("x-dead-letter-strategy", string_argument("at-least-once")),
        ("x-overflow", string_argument("reject-publish")),
    ]
}

fn string_argument(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn arguments(all: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in all {
        table.insert(name.into(), value);
    }
    table
}
