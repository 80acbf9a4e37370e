//! One request to the server, with retries, and the classification of its answers.

use std::fmt;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Response, Url};
use serde::Serialize;
use serde_json::Value;

use super::error::Failure;
use super::retry_pauses::{RetryPauses, asked_for};
use super::{EmbedError, EmbeddingsOptions, Timeouts, address, answer};
use wharfinger_calls::http::describe_request_error;

/// The retries after a temporary failure.
const RETRIES_MAX: u32 = 2;
const ERROR_BYTES_MAX: usize = 16 * 1024;
const MESSAGE_CHARS_MAX: usize = 300;

#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    model: String,
    key: Option<String>,
    authorization: Option<HeaderValue>,
}

#[derive(Serialize)]
struct RequestBody<'a> {
    model: &'a str,
    input: &'a [String],
    encoding_format: &'static str,
}

/// The error that the server reported.
struct ServerError {
    code: String,
    message: String,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.model, self.url.host_str().unwrap_or_default())
    }
}

impl Client {
    pub(super) fn new(options: EmbeddingsOptions, timeouts: Timeouts) -> Result<Client, String> {
        wharfinger_calls::tls::install_provider();
        let url = address::endpoint(&options.url)?;
        if options.model.trim().is_empty() {
            return Err("the name of the embeddings model is empty".to_owned());
        }
        let key = options.api_key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let authorization = key.as_ref().map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| "the embeddings API key contains invalid characters")?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        let http = reqwest::Client::builder()
            .connect_timeout(timeouts.connect)
            .timeout(timeouts.answer)
            // The key must not be sent to another server.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Client { http, url, model: options.model, key, authorization: authorization.transpose()? })
    }

    pub(super) async fn send(
        &self,
        texts: &[String],
        pauses: &mut RetryPauses,
    ) -> Result<Vec<Vec<f32>>, Failure> {
        let mut retries = 0;
        loop {
            let failure = match self.try_send(texts).await {
                Ok(vectors) => return Ok(vectors),
                Err(failure) => failure,
            };
            let pause = match &failure {
                Failure::Temporary { pause, .. } if retries < RETRIES_MAX => {
                    retries += 1;
                    *pause
                }
                Failure::Limited { pause, .. } => *pause,
                _ => return Err(failure),
            };
            if !pauses.pause(pause).await {
                return Err(failure);
            }
        }
    }

    async fn try_send(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, Failure> {
        let request_body = RequestBody { model: &self.model, input: texts, encoding_format: "float" };
        let body = serde_json::to_vec(&request_body).expect("strings are always valid JSON");
        let mut request =
            self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let answer = request.send().await.map_err(connection_failure)?;
        if !answer.status().is_success() {
            return Err(self.failure(answer).await);
        }
        let bytes_max = answer::bytes_max(texts.len());
        let (body, is_whole) = read(answer, bytes_max).await.map_err(connection_failure)?;
        if !is_whole {
            return Err(Failure::Final(self.not_embeddings(&format!("it has more than {bytes_max} bytes"))));
        }
        answer::vectors(&body, texts.len()).map_err(|why| {
            let message = String::from_utf8_lossy(&body[..body.len().min(ERROR_BYTES_MAX)]);
            Failure::Final(self.not_embeddings(&self.clipped(&format!("{why}: {message}"))))
        })
    }

    /// The answer is not from an embeddings endpoint. This is retryable, because an operator can fix the URL.
    pub(super) fn not_embeddings(&self, why: &str) -> EmbedError {
        EmbedError::Unavailable(format!(
            "{self}: the answer is not from an embeddings endpoint, check the URL: {why}"
        ))
    }

    async fn failure(&self, answer: Response) -> Failure {
        let (status, pause) = (answer.status(), asked_for(answer.headers()));
        if status.is_redirection() {
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| self.url.join(to).ok());
            let to = to.as_ref().and_then(Url::host_str).unwrap_or("another server");
            let why = format!("{self}: it redirects to {to} ({status}), which must not receive the key");
            return Failure::Final(EmbedError::NotAllowed(why));
        }
        let ServerError { code, message } = self.server_error(answer).await;
        let why = if message.is_empty() {
            format!("{self}: {status}")
        } else {
            format!("{self}: {status}: {message}")
        };
        match status.as_u16() {
            // The account has no credit left. A retry cannot fix that.
            429 if code == "insufficient_quota" => Failure::Final(EmbedError::NotAllowed(why)),
            429 => Failure::Limited { pause, why },
            401..=403 => Failure::Final(EmbedError::NotAllowed(why)),
            404 => Failure::Final(EmbedError::Refused(format!("{why}: check the URL and the model"))),
            413 => Failure::TooMuch(why),
            // Timeout, failed model, too early, and server errors.
            408 | 424 | 425 | 500.. => Failure::Temporary { pause, why },
            400.. => Failure::Final(EmbedError::Refused(why)),
            _ => Failure::Final(self.not_embeddings(status.as_str())),
        }
    }

    /// Reads the error of the server. Servers use different formats, and proxies send plain text.
    async fn server_error(&self, answer: Response) -> ServerError {
        let body = read(answer, ERROR_BYTES_MAX).await.map(|(body, _)| body).unwrap_or_default();
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |place: &str| json.pointer(place).and_then(Value::as_str);
        let message = ["/error/message", "/error", "/message", "/detail"].into_iter().find_map(text);
        let all = String::from_utf8_lossy(&body);
        let code = text("/error/code").or_else(|| text("/error/type")).unwrap_or_default();
        ServerError { code: code.to_owned(), message: self.clipped(message.unwrap_or(&all)) }
    }

    /// Makes one short line, and hides the key, because some servers repeat it.
    fn clipped(&self, message: &str) -> String {
        let message = match &self.key {
            Some(key) => message.replace(key.as_str(), "[key]"),
            None => message.to_owned(),
        };
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        match message.char_indices().nth(MESSAGE_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message,
        }
    }
}

fn connection_failure(error: reqwest::Error) -> Failure {
    Failure::Temporary { pause: None, why: describe_request_error(error) }
}

/// Reads at most `bytes_max` bytes. Also returns whether that is the whole body.
async fn read(mut answer: Response, bytes_max: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut body = Vec::new();
    while let Some(some) = answer.chunk().await? {
        let room = bytes_max - body.len();
        if some.len() > room {
            body.extend_from_slice(&some[..room]);
            return Ok((body, false));
        }
        body.extend_from_slice(&some);
    }
    Ok((body, true))
}
