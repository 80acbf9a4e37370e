//! Declares the queues and exchanges. Declaring an existing one changes nothing, so this runs after every connect. A
//! wiped broker gets them back before the first publish.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};

use super::delay_queues::STEPS_MS;
use super::error::BrokerError;

/// The names of all queues and exchanges. They start with one prefix.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Due messages.
    pub(super) cleanup: String,
    pub(super) dead_letters: String,
    pub(super) wake: String,
    /// The delayed exchange, if the plugin is used. Also the start of the names of the delay queues.
    pub(super) delayed: String,
    prefix: String,
}

/// After this many deliveries without an acknowledgement, a message becomes a dead letter.
const DELIVERIES_MAX: i64 = 20;

impl Names {
    pub(super) fn new(prefix: &str) -> Names {
        Names {
            cleanup: format!("{prefix}.resource.cleanup"),
            dead_letters: format!("{prefix}.resource.cleanup.dlq"),
            wake: format!("{prefix}.wake"),
            delayed: format!("{prefix}.resource.delayed"),
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn queue_of_step(&self, step_ms: u64) -> String {
        format!("{}.{step_ms}", self.delayed)
    }

    /// Adds the operation and, for a refusal, the remedy.
    fn with_remedy(&self, error: lapin::Error, what: &str) -> BrokerError {
        let prefix = &self.prefix;
        match BrokerError::from(error) {
            BrokerError::Refused(why) if why.contains("inequivalent") => BrokerError::Refused(format!(
                "{what}: it exists with other arguments: {}. It may belong to another application, or to an \
                 installation with other settings. Choose another name with AMQP_PREFIX (now `{prefix}`)",
                difference(&why)
            )),
            BrokerError::Refused(why) if why.contains("RESOURCE_LOCKED") => BrokerError::Refused(format!(
                "{what}: it exists and is exclusive to another connection, so it belongs to another application. \
                 Choose another name with AMQP_PREFIX (now `{prefix}`)"
            )),
            BrokerError::Refused(why) if why.contains("unknown exchange type") => {
                BrokerError::Refused(format!(
                    "{what}: {why}. The broker lacks the plugin rabbitmq_delayed_message_exchange: set \
                 AMQP_DELAYED_EXCHANGE=false"
                ))
            }
            BrokerError::Refused(why) if why.contains("ACCESS_REFUSED") => BrokerError::Refused(format!(
                "{what}: {why}. The user needs the permissions configure, write and read on `^{}\\.`, and write on \
                 `amq.default`",
                prefix.replace('.', "\\.")
            )),
            other => other.context(what),
        }
    }
}

/// The differing argument in the words of the broker, for example
/// `inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '1000' but current is '5000'`. The broker names
/// only the first one.
fn difference(why: &str) -> String {
    let named = || {
        let (_, rest) = why.split_once("inequivalent arg '")?;
        let (argument, rest) = rest.split_once('\'')?;
        let (_, rest) = rest.split_once(": received ")?;
        let (declared, found) = rest.split_once(" but current is ")?;
        Some(format!("`{argument}` declared {declared}, found {found}"))
    };
    named().unwrap_or_else(|| why.to_owned())
}

/// Declares everything in sequence. The error names what failed.
pub(super) async fn declare(
    channel: &Channel,
    names: &Names,
    delayed_exchange: bool,
) -> Result<(), BrokerError> {
    declare_queue(channel, names, &names.dead_letters, quorum([])).await?;
    let limit = ("x-delivery-limit", AMQPValue::LongLongInt(DELIVERIES_MAX));
    let limited = quorum([limit].into_iter().chain(dead_letters_to(&names.dead_letters)));
    declare_queue(channel, names, &names.cleanup, limited).await?;
    if delayed_exchange {
        let kind = ExchangeKind::Custom("x-delayed-message".to_owned());
        let table = arguments([("x-delayed-type", string_argument("direct"))]);
        declare_exchange(channel, names, &names.delayed, kind, table).await?;
        let (queue, exchange) = (names.cleanup.as_str(), names.delayed.as_str());
        let options = QueueBindOptions::default();
        let bound =
            channel.queue_bind(queue.into(), exchange.into(), queue.into(), options, arguments([])).await;
        bound.map_err(|error| {
            names.with_remedy(error, &format!("binding queue {queue} to exchange {exchange}"))
        })?;
    } else {
        for step_ms in STEPS_MS {
            let ttl = ("x-message-ttl", AMQPValue::LongLongInt(step_ms.cast_signed()));
            let table = quorum([ttl].into_iter().chain(dead_letters_to(&names.cleanup)));
            declare_queue(channel, names, &names.queue_of_step(step_ms), table).await?;
        }
    }
    declare_exchange(channel, names, &names.wake, ExchangeKind::Fanout, arguments([])).await
}

async fn declare_queue(
    channel: &Channel,
    names: &Names,
    name: &str,
    table: FieldTable,
) -> Result<(), BrokerError> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(name.into(), options, table).await {
        Ok(_) => Ok(()),
        Err(error) => Err(names.with_remedy(error, &format!("declaring queue {name}"))),
    }
}

async fn declare_exchange(
    channel: &Channel,
    names: &Names,
    name: &str,
    kind: ExchangeKind,
    table: FieldTable,
) -> Result<(), BrokerError> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(name.into(), kind, options, table).await;
    declared.map_err(|error| names.with_remedy(error, &format!("declaring exchange {name}")))
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

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn the_difference_has_both_values() {
        for (why, difference_in_words) in [
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '1000' \
                 but current is '5000'",
                "`x-message-ttl` declared '1000', found '5000'",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'it's: odd' in vhost '/': received \
                 the value 'quorum' of type 'longstr' but current is none",
                "`x-queue-type` declared the value 'quorum' of type 'longstr', found none",
            ),
            ("inequivalent in other words", "inequivalent in other words"),
        ] {
            assert_eq!(difference(why), difference_in_words);
        }
    }
}
