//! What can go wrong with embeddings, named by what the caller can do about it. No text here holds the key.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The server wants to be asked later, and later than one call can wait.
    #[error("the embeddings server wants fewer requests: {why}")]
    RateLimited { retry_after_ms: Option<u64>, why: String },
    /// The server could not be asked, or its answer was lost or is none. Trying again may help.
    #[error("the embeddings server is unavailable: {0}")]
    Unavailable(String),
    /// The key, the account or the address is wrong until a person acts; the texts are not to blame.
    #[error("the embeddings server does not let us in: {0}")]
    NotAllowed(String),
    /// The server answered, and its answer to these texts stays no: too long, or not for this model.
    #[error("the embeddings server refused: {0}")]
    Refused(String),
}

impl EmbedError {
    pub fn is_retryable(&self) -> bool {
        match self {
            EmbedError::RateLimited { .. } | EmbedError::Unavailable(_) | EmbedError::NotAllowed(_) => true,
            EmbedError::Refused(_) => false,
        }
    }
}

/// What came instead of vectors.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// May be over soon; where the server says when, not before.
    Passing {
        pause: Option<Duration>,
        why: String,
    },
    Limited {
        pause: Option<Duration>,
        why: String,
    },
    /// Too many texts at once, or one that is too long.
    TooMuch(String),
    Final(EmbedError),
}

impl From<Failure> for EmbedError {
    fn from(failure: Failure) -> EmbedError {
        match failure {
            Failure::Passing { why, .. } => EmbedError::Unavailable(why),
            Failure::Limited { pause, why } => {
                let ms = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                EmbedError::RateLimited { retry_after_ms: pause.map(ms), why }
            }
            Failure::TooMuch(why) => EmbedError::Refused(why),
            Failure::Final(error) => error,
        }
    }
}
