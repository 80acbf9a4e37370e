//! One POST to somebody else's endpoint: no redirects, no proxy, no patience, and of the answer no more than a little.

use std::error::Error;
use std::time::Duration;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::address::{Endpoint, EndpointError, Judged, Unresolvable};
use wharfinger_calls::faults::{Faults, InjectedFault};

const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// What is read of an answer: enough for a word, and for the connection to be used again.
const ANSWER_BYTES_MAX: usize = 4_096;
const WORD_CHARS_MAX: usize = 200;
const USER_AGENT: &str = concat!("wharfinger/", env!("CARGO_PKG_VERSION"));

/// Why a message has not arrived, by what is to be done about it. None says where it was to go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Nobody wants to be told there any more.
    #[error("410 Gone")]
    Gone,
    /// All messages are to wait, this long if it says so.
    #[error("429 Too Many Requests")]
    RateLimited { retry_after: Option<Duration> },
    #[error("{status}{}", if body.is_empty() { String::new() } else { format!(": {body}") })]
    Refused { status: u16, body: String, retry_after: Option<Duration> },
    /// No answer; perhaps it has arrived all the same.
    #[error("no answer: {0}")]
    NoAnswer(String),
    #[error("the endpoint has no public address; WEBHOOK_ALLOW_PRIVATE=true allows others")]
    PrivateAddress,
}

impl SendError {
    /// When the receiver asked to be tried again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            SendError::RateLimited { retry_after } | SendError::Refused { retry_after, .. } => *retry_after,
            SendError::Gone | SendError::NoAnswer(_) | SendError::PrivateAddress => None,
        }
    }
}

impl From<InjectedFault> for SendError {
    fn from(injected: InjectedFault) -> SendError {
        SendError::NoAnswer(injected.to_string())
    }
}

pub(super) struct Poster {
    endpoint: Endpoint,
    client: reqwest::Client,
    name: &'static str,
    faults: Faults,
}

impl Poster {
    pub(super) fn new(
        endpoint: Endpoint,
        name: &'static str,
        faults: Faults,
    ) -> Result<Poster, EndpointError> {
        wharfinger_calls::tls::install_provider();
        let client = reqwest::Client::builder()
            .dns_resolver(Judged { allow_private: endpoint.allow_private })
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .user_agent(USER_AGENT)
            .build()
            .map_err(|error| EndpointError::Client(error.without_url().to_string()))?;
        Ok(Poster { endpoint, client, name, faults })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// `now` is in seconds since 1970, for a receiver that names a time to be tried again at.
    pub(super) async fn post(
        &self,
        headers: &[(&str, String)],
        body: String,
        now: i64,
    ) -> Result<(), SendError> {
        let mut request =
            self.client.post(self.endpoint.url.clone()).header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        self.faults
            .around(self.name, async move {
                let answer = request.body(body).send().await.map_err(unanswered)?;
                judged(answer, now).await
            })
            .await
    }
}

async fn judged(answer: Response, now: i64) -> Result<(), SendError> {
    let status = answer.status();
    let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| wait(value.to_str().ok()?, now));
    let body = little_of(answer).await;
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::GONE => Err(SendError::Gone),
        StatusCode::TOO_MANY_REQUESTS => Err(SendError::RateLimited { retry_after }),
        status => Err(SendError::Refused { status: status.as_u16(), body, retry_after }),
    }
}

/// Seconds, or a date.
fn wait(value: &str, now: i64) -> Option<Duration> {
    let value = value.trim();
    let seconds = match value.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            let at = DateTime::from_str(value, Format::HttpDate).ok()?.secs();
            u64::try_from(at.saturating_sub(now)).unwrap_or(0)
        }
    };
    Some(Duration::from_secs(seconds))
}

/// The beginning of an answer, in one line. One that breaks off has been given all the same.
async fn little_of(mut answer: Response) -> String {
    let mut read = Vec::new();
    while read.len() < ANSWER_BYTES_MAX
        && let Ok(Some(some)) = answer.chunk().await
    {
        read.extend_from_slice(&some[..some.len().min(ANSWER_BYTES_MAX - read.len())]);
    }
    let text = String::from_utf8_lossy(&read);
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(WORD_CHARS_MAX).collect::<String>().trim().to_owned()
}

/// The innermost cause says most, and none of them the URL.
fn unanswered(error: reqwest::Error) -> SendError {
    let error = error.without_url();
    if error.is_timeout() {
        return SendError::NoAnswer("it took too long".into());
    }
    let mut body = error.to_string();
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(inner) = cause {
        if let Some(Unresolvable::Private) = inner.downcast_ref::<Unresolvable>() {
            return SendError::PrivateAddress;
        }
        body = inner.to_string();
        cause = inner.source();
    }
    SendError::NoAnswer(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_wait_is_seconds_or_a_date() {
        let now = 1_445_412_480;
        assert_eq!(wait("120", now), Some(Duration::from_secs(120)));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT", now - 7), Some(Duration::from_secs(7)));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT", now + 7), Some(Duration::ZERO));
        for nonsense in ["", "soon", "-1", "1.5"] {
            assert_eq!(wait(nonsense, now), None, "{nonsense}");
        }
    }
}
