//! What can go wrong with the broker, named by what the caller can do about it. No text here holds a URL, for
//! that may carry a password.

use std::error::Error as _;
use std::io;

use lapin::ErrorKind;

use wharfinger_calls::faults::InjectedFault;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The broker could not be asked, or its answer was lost: what was sent may have arrived. Trying again may
    /// help.
    #[error("the broker is unavailable: {0}")]
    Unavailable(String),
    /// The broker took the message and had no queue for it. The queues are declared again before the next one.
    #[error("the broker returned a message: {0}")]
    Returned(String),
    /// The broker answered, and its answer is no until a person acts.
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

    /// The same error, with what was tried.
    pub(super) fn doing(self, what: &str) -> BrokerError {
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
        BrokerError::Unavailable("it was closed by this process".to_owned())
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
            ErrorKind::ProtocolError(answer) => answered(answer.get_id(), answer.get_message().as_str()),
            ErrorKind::IOError(cause) => unreached(cause),
            ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
                BrokerError::Unavailable("the connection was lost".to_owned())
            }
            ErrorKind::AuthProviderError(why) => BrokerError::Refused(why.clone()),
            _ => BrokerError::Unavailable(error.to_string()),
        }
    }
}

/// An answer in the protocol's own numbers. Only those that stay wrong however often they are tried are refusals.
fn answered(code: u16, text: &str) -> BrokerError {
    let text = text.replace('\n', " ");
    match code {
        // Access refused, not allowed (the virtual host), not implemented.
        403 | 530 | 540 => BrokerError::Refused(text),
        406 | 503 if text.contains("inequivalent") || text.contains("invalid arg") => {
            BrokerError::Refused(text)
        }
        406 | 503 if text.contains("unknown exchange type") => BrokerError::Refused(text),
        _ => BrokerError::Unavailable(text),
    }
}

/// Whether something that should exist does not.
pub(super) fn is_missing(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(answer) if answer.get_id() == 404)
}

pub(super) fn unreached(error: &io::Error) -> BrokerError {
    let mut told = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !told.iter().any(|before| before.contains(&said)) {
            told.push(said);
        }
        next = cause.source();
    }
    let told = told.join(": ").replace('\n', " ");
    // What TLS finds wrong with a certificate stays wrong.
    if error.kind() == io::ErrorKind::InvalidData || error.kind() == io::ErrorKind::InvalidInput {
        return BrokerError::Refused(told);
    }
    BrokerError::Unavailable(told)
}
