//! One POST to an endpoint, without redirects or a proxy, with short timeouts. Only the beginning of the answer is
//! read.

use std::error::Error;
use std::time::Duration;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::address::{CheckedResolver, Endpoint, EndpointError, Unresolvable};
use wharfinger_calls::faults::{Faults, InjectedFault};

const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an answer is read. Short answers are read completely, so that the connection can be reused.
const ANSWER_BYTES_MAX: usize = 4_096;
const EXCERPT_CHARS_MAX: usize = 200;
const USER_AGENT: &str = concat!("wharfinger/", env!("CARGO_PKG_VERSION"));

/// Why a message was not delivered. The variants differ in what the caller does next. No message shows the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver wants no more messages.
    #[error("410 Gone")]
    Gone,
    /// All messages must parse_retry_after, for `retry_after` if the receiver sent it.
    #[error("429 Too Many Requests")]
    RateLimited { retry_after: Option<Duration> },
    #[error("{status}{}", if body.is_empty() { String::new() } else { format!(": {body}") })]
    Refused { status: u16, body: String, retry_after: Option<Duration> },
    /// No answer. The message may have arrived.
    #[error("no answer: {0}")]
    NoAnswer(String),
    #[error("the endpoint has no public address; WEBHOOK_ALLOW_PRIVATE=true allows others")]
    PrivateAddress,
}

impl SendError {
    /// How long the receiver asked to wait.
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
            .dns_resolver(CheckedResolver { allow_private: endpoint.allow_private })
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

    /// `now` is in seconds since 1970. It is needed for a `Retry-After` header with a date.
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
                let answer = request.body(body).send().await.map_err(no_answer)?;
                send_result(answer, now).await
            })
            .await
    }
}

async fn send_result(answer: Response, now: i64) -> Result<(), SendError> {
    let status = answer.status();
    let retry_after =
        answer.headers().get(RETRY_AFTER).and_then(|value| parse_retry_after(value.to_str().ok()?, now));
    let body = excerpt(answer).await;
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::GONE => Err(SendError::Gone),
        StatusCode::TOO_MANY_REQUESTS => Err(SendError::RateLimited { retry_after }),
        status => Err(SendError::Refused { status: status.as_u16(), body, retry_after }),
    }
}

/// Parses `Retry-After`: seconds or a date.
fn parse_retry_after(value: &str, now: i64) -> Option<Duration> {
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

/// The beginning of an answer, in one line. A truncated body is not an error.
async fn excerpt(mut answer: Response) -> String {
    let mut read = Vec::new();
    while read.len() < ANSWER_BYTES_MAX
        && let Ok(Some(some)) = answer.chunk().await
    {
        read.extend_from_slice(&some[..some.len().min(ANSWER_BYTES_MAX - read.len())]);
    }
    let text = String::from_utf8_lossy(&read);
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(EXCERPT_CHARS_MAX).collect::<String>().trim().to_owned()
}

/// Shows only the innermost cause, because it is the most specific. None of the causes contains the URL.
fn no_answer(error: reqwest::Error) -> SendError {
    let error = error.without_url();
    if error.is_timeout() {
        return SendError::NoAnswer("timed out".into());
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
    fn retry_after_is_seconds_or_a_date() {
        let now = 1_445_412_480;
        assert_eq!(parse_retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now - 7), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now + 7), Some(Duration::ZERO));
        for invalid in ["", "soon", "-1", "1.5"] {
            assert_eq!(parse_retry_after(invalid, now), None, "{invalid}");
        }
    }
}
