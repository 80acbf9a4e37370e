//! Errors of the broker, named by their remedy. No message contains the URL, which may contain a password.

use std::error::Error as _;
use std::io;

use lapin::ErrorKind;

use wharfinger_calls::faults::InjectedFault;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// No connection, or no answer. A message may have arrived. Trying again may help.
    #[error("the broker is unavailable: {0}")]
    Unavailable(String),
    /// The broker has no queue for the message. The queues are declared again before the next message.
    #[error("RabbitMQ returned an unroutable message ({0}); its queues are declared again")]
    Returned(String),
    /// The broker refused. Stays until an operator fixes it.
    #[error("the broker refused: {0}")]
    Refused(String),
}

impl BrokerError {
    pub fn is_retryable(&self) -> bool {
        match self {
            BrokerError::Unavailable(_) | BrokerError::Returned(_) => true,
            BrokerError::Refused(_) => false,
        }
    }

    /// Adds the failed operation to the message.
    pub(super) fn context(self, what: &str) -> BrokerError {
        match self {
            BrokerError::Unavailable(why) => BrokerError::Unavailable(format!("{what}: {why}")),
            BrokerError::Returned(why) => BrokerError::Returned(format!("{what}: {why}")),
            BrokerError::Refused(why) => BrokerError::Refused(format!("{what}: {why}")),
        }
    }

    pub(super) fn late(what: &str) -> BrokerError {
        BrokerError::Unavailable(format!("{what}: no answer in time"))
    }

    pub(super) fn closed() -> BrokerError {
        BrokerError::Unavailable("the connection was closed because this process stops".to_owned())
    }
}

impl From<InjectedFault> for BrokerError {
    fn from(injected: InjectedFault) -> Self {
        BrokerError::Unavailable(injected.to_string())
    }
}

impl From<lapin::Error> for BrokerError {
    fn from(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(answer) => {
                from_reply_code(answer.get_id(), answer.get_message().as_str())
            }
            ErrorKind::IOError(cause) => from_io_error(cause),
            ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
                BrokerError::Unavailable("the connection was lost".to_owned())
            }
            ErrorKind::AuthProviderError(why) => BrokerError::Refused(why.clone()),
            _ => BrokerError::Unavailable(error.to_string()),
        }
    }
}

/// Maps an AMQP reply code. Only errors that no retry can fix are refusals.
fn from_reply_code(code: u16, text: &str) -> BrokerError {
    let text = text.replace('\n', " ");
    match code {
        // Access refused, not allowed (the virtual host), not implemented.
        403 | 530 | 540 => BrokerError::Refused(text),
        // The queue is exclusive to a connection of another application.
        405 if text.contains("RESOURCE_LOCKED") => BrokerError::Refused(text),
        406 | 503 if text.contains("inequivalent") || text.contains("invalid arg") => {
            BrokerError::Refused(text)
        }
        406 | 503 if text.contains("unknown exchange type") => BrokerError::Refused(text),
        _ => BrokerError::Unavailable(text),
    }
}

/// Whether the error means that a queue or exchange does not exist.
pub(super) fn is_missing(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(answer) if answer.get_id() == 404)
}

pub(super) fn from_io_error(error: &io::Error) -> BrokerError {
    let mut causes = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !causes.iter().any(|before| before.contains(&text)) {
            causes.push(text);
        }
        next = cause.source();
    }
    let causes = causes.join(": ").replace('\n', " ");
    // TLS reports certificate errors by these kinds. No retry can fix them.
    if error.kind() == io::ErrorKind::InvalidData || error.kind() == io::ErrorKind::InvalidInput {
        return BrokerError::Refused(causes);
    }
    BrokerError::Unavailable(causes)
}
