//! Vectors of texts, from any server with OpenAI's `/v1/embeddings` API.

mod address;
mod answer;
mod call;
mod error;
mod retry_pauses;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use error::EmbedError;

use call::Client;
use error::Failure;
use retry_pauses::RetryPauses;

/// The limits of one request. Providers limit tokens, and a text has at most one token for each byte. These values are
/// below the limits of the known providers.
const REQUEST_TEXTS_MAX: usize = 128;
const REQUEST_BYTES_MAX: usize = 256 * 1024;

/// The server, the model and the key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EmbeddingsOptions {
    /// The path may be incomplete: `https://api.example.com`, `…/v1` and `…/v1/embeddings` are the same. A query is
    /// kept.
    pub url: String,
    pub model: String,
    /// Sent as a bearer token, only to this server.
    pub api_key: Option<String>,
}

impl fmt::Debug for EmbeddingsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingsOptions").field("model", &self.model).finish_non_exhaustive()
    }
}

/// The timeouts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// For one request and its answer.
    pub answer: Duration,
    /// The total of all pauses before retries of one call.
    pub pauses: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(120),
            pauses: Duration::from_secs(20),
        }
    }
}

/// An embeddings server. Clones share the connections.
#[derive(Clone)]
pub struct Embeddings {
    client: Client,
    timeouts: Timeouts,
    /// The dimensions of the last answer; 0 before the first.
    dimensions: Arc<AtomicUsize>,
}

impl fmt::Debug for Embeddings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Embeddings").field(&self.client.to_string()).finish()
    }
}

impl Embeddings {
    /// Checks the options. Connects at the first request.
    pub fn new(options: EmbeddingsOptions) -> Result<Embeddings, String> {
        Embeddings::with_timeouts(options, Timeouts::default())
    }

    pub fn with_timeouts(options: EmbeddingsOptions, timeouts: Timeouts) -> Result<Embeddings, String> {
        let dimensions = Arc::default();
        Ok(Embeddings { client: Client::new(options, timeouts)?, timeouts, dimensions })
    }

    /// Returns one vector for each text, in order, all with the same length. After an error, no vector is returned.
    pub async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut pauses = RetryPauses::up_to(self.timeouts.pauses);
        let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(texts.len());
        let mut texts_max = REQUEST_TEXTS_MAX;
        while vectors.len() < texts.len() {
            let left = &texts[vectors.len()..];
            let some = &left[..request_size(left, texts_max)];
            match self.client.send(some, &mut pauses).await {
                Ok(more) => {
                    answer::check_dimensions(vectors.first(), &more)
                        .map_err(|why| self.client.not_embeddings(&why))?;
                    vectors.extend(more);
                }
                // The server accepts fewer texts in one request.
                Err(Failure::TooMuch(_)) if some.len() > 1 => texts_max = some.len() / 2,
                Err(failure) => return Err(failure.into()),
            }
        }
        self.store_dimensions(&vectors);
        Ok(vectors)
    }

    /// Checks whether the server can be used now. Returns model, host and dimensions. The check embeds one word, and
    /// providers charge for it, so do not call it periodically.
    pub async fn check(&self) -> Result<String, EmbedError> {
        let mut pauses = RetryPauses::up_to(Duration::ZERO);
        let vectors = self.client.send(&["wharfinger".to_owned()], &mut pauses).await?;
        self.store_dimensions(&vectors);
        Ok(format!("{}, {} dimensions", self.client, vectors.first().map_or(0, Vec::len)))
    }

    /// The dimensions of the vectors, if one was computed already.
    pub fn dimensions(&self) -> Option<usize> {
        Some(self.dimensions.load(Ordering::Relaxed)).filter(|dimensions| *dimensions > 0)
    }

    fn store_dimensions(&self, vectors: &[Vec<f32>]) {
        if let Some(vector) = vectors.first() {
            self.dimensions.store(vector.len(), Ordering::Relaxed);
        }
    }
}

/// How many of the texts, at least one, go into the next request.
fn request_size(texts: &[String], texts_max: usize) -> usize {
    let mut bytes = 0;
    let fitting = texts.iter().take(texts_max).take_while(|text| {
        bytes += text.len();
        bytes <= REQUEST_BYTES_MAX
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_maximum_size_and_are_never_empty() {
        let texts = |sizes: &[usize]| sizes.iter().map(|size| "x".repeat(*size)).collect::<Vec<_>>();
        assert_eq!(request_size(&texts(&[1; 300]), 128), 128);
        assert_eq!(request_size(&texts(&[1; 300]), 16), 16);
        assert_eq!(request_size(&texts(&[0; 5]), 128), 5);
        assert_eq!(request_size(&texts(&[REQUEST_BYTES_MAX / 2; 5]), 128), 2);
        assert_eq!(request_size(&texts(&[REQUEST_BYTES_MAX + 1, 1]), 128), 1);
        assert_eq!(request_size(&texts(&[1, REQUEST_BYTES_MAX]), 128), 1);
    }
}
