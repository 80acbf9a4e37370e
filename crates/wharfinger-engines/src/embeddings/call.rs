//! One request to the server, sent again where that may help, and what its answers mean.

use std::fmt;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Response, Url};
use serde::Serialize;
use serde_json::Value;

use super::error::Failure;
use super::retry_pauses::{RetryPauses, asked_for};
use super::{EmbedError, EmbeddingsOptions, Timeouts, address, answer};
use wharfinger_calls::http::describe_request_error;

/// How often a request is sent again that failed for no reason of its own.
const TRIES_AGAIN_MAX: u32 = 2;
const ERROR_BYTES_MAX: usize = 16 * 1024;
const WORDS_CHARS_MAX: usize = 300;

#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    model: String,
    key: Option<String>,
    authorization: Option<HeaderValue>,
}

#[derive(Serialize)]
struct Question<'a> {
    model: &'a str,
    input: &'a [String],
    encoding_format: &'static str,
}

/// What the server says is wrong.
struct Complaint {
    code: String,
    words: String,
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
            return Err("the embeddings model has no name".to_owned());
        }
        let key = options.api_key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let authorization = key.as_ref().map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| "the embeddings API key has characters that no key has")?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        let http = reqwest::Client::builder()
            .connect_timeout(timeouts.connect)
            .timeout(timeouts.answer)
            // The key is for this server and no other.
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
        let mut tries_again = 0;
        loop {
            let failure = match self.try_send(texts).await {
                Ok(vectors) => return Ok(vectors),
                Err(failure) => failure,
            };
            let pause = match &failure {
                Failure::Passing { pause, .. } if tries_again < TRIES_AGAIN_MAX => {
                    tries_again += 1;
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
        let question = Question { model: &self.model, input: texts, encoding_format: "float" };
        let body = serde_json::to_vec(&question).expect("texts can be written as JSON");
        let mut request =
            self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let answer = request.send().await.map_err(lost)?;
        if !answer.status().is_success() {
            return Err(self.failure(answer).await);
        }
        let most = answer::bytes_max(texts.len());
        let (body, is_whole) = read(answer, most).await.map_err(lost)?;
        if !is_whole {
            return Err(Failure::Final(self.misled(&format!("more than {most} bytes"))));
        }
        answer::vectors(&body, texts.len()).map_err(|why| {
            let words = String::from_utf8_lossy(&body[..body.len().min(ERROR_BYTES_MAX)]);
            Failure::Final(self.misled(&self.clipped(&format!("{why}: {words}"))))
        })
    }

    /// An answer that is none: the texts are not to blame, and the server may be another tomorrow.
    pub(super) fn misled(&self, why: &str) -> EmbedError {
        EmbedError::Unavailable(format!("{self}: this is no answer of embeddings, check the URL: {why}"))
    }

    async fn failure(&self, answer: Response) -> Failure {
        let (status, pause) = (answer.status(), asked_for(answer.headers()));
        if status.is_redirection() {
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| self.url.join(to).ok());
            let to = to.as_ref().and_then(Url::host_str).unwrap_or("another place");
            let why = format!("{self}: it sends us on to {to} ({status}), where the key is not meant to go");
            return Failure::Final(EmbedError::NotAllowed(why));
        }
        let Complaint { code, words } = self.complaint(answer).await;
        let why =
            if words.is_empty() { format!("{self}: {status}") } else { format!("{self}: {status}: {words}") };
        match status.as_u16() {
            // Nothing is left to pay with: that does not pass by itself.
            429 if code == "insufficient_quota" => Failure::Final(EmbedError::NotAllowed(why)),
            429 => Failure::Limited { pause, why },
            401..=403 => Failure::Final(EmbedError::NotAllowed(why)),
            404 => Failure::Final(EmbedError::Refused(format!("{why}: check the URL and the model"))),
            413 => Failure::TooMuch(why),
            // In between: too slow, too early, and a model that failed at it.
            408 | 424 | 425 | 500.. => Failure::Passing { pause, why },
            400.. => Failure::Final(EmbedError::Refused(why)),
            _ => Failure::Final(self.misled(status.as_str())),
        }
    }

    /// Each server has its own form for it, and proxies have none.
    async fn complaint(&self, answer: Response) -> Complaint {
        let body = read(answer, ERROR_BYTES_MAX).await.map(|(body, _)| body).unwrap_or_default();
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |place: &str| json.pointer(place).and_then(Value::as_str);
        let words = ["/error/message", "/error", "/message", "/detail"].into_iter().find_map(text);
        let all = String::from_utf8_lossy(&body);
        let code = text("/error/code").or_else(|| text("/error/type")).unwrap_or_default();
        Complaint { code: code.to_owned(), words: self.clipped(words.unwrap_or(&all)) }
    }

    /// On one line, not too long, and without the key: some servers repeat what they were shown.
    fn clipped(&self, words: &str) -> String {
        let words = match &self.key {
            Some(key) => words.replace(key.as_str(), "[key]"),
            None => words.to_owned(),
        };
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        match words.char_indices().nth(WORDS_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &words[..end]),
            None => words,
        }
    }
}

fn lost(error: reqwest::Error) -> Failure {
    Failure::Passing { pause: None, why: describe_request_error(error) }
}

/// As many bytes as are allowed, and whether that is all of them.
async fn read(mut answer: Response, most: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut body = Vec::new();
    while let Some(some) = answer.chunk().await? {
        let room = most - body.len();
        if some.len() > room {
            body.extend_from_slice(&some[..room]);
            return Ok((body, false));
        }
        body.extend_from_slice(&some);
    }
    Ok((body, true))
}
