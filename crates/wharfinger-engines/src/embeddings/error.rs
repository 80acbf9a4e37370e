//! Errors of embeddings, named by their remedy. No message contains the key.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The server asks for a longer pause than one call can wait.
    #[error("the embeddings server limits the request rate: {why}")]
    RateLimited { retry_after_ms: Option<u64>, why: String },
    /// No answer, or an unusable one. A retry can succeed.
    #[error("the embeddings server is unavailable: {0}")]
    Unavailable(String),
    /// The key, the account or the URL is wrong. An operator must fix it.
    #[error("the embeddings server denied access: {0}")]
    NotAllowed(String),
    /// The server refuses these texts, for example because a text is too long. A retry fails too.
    #[error("the embeddings server refused the request: {0}")]
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

/// The failure of one request.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// A retry can succeed, after `pause` if the server sent it.
    Temporary {
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
            Failure::Temporary { why, .. } => EmbedError::Unavailable(why),
            Failure::Limited { pause, why } => {
                let ms = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                EmbedError::RateLimited { retry_after_ms: pause.map(ms), why }
            }
            Failure::TooMuch(why) => EmbedError::Refused(why),
            Failure::Final(error) => error,
        }
    }
}
