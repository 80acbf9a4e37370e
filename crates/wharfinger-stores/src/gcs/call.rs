//! Calls to the store. Ours are signed URLs as clients' are, so there is one way to sign and no token to fetch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response};

use super::super::answer::header;
use super::super::skew::Skew;
use super::error::{Failure, unreached};
use super::sign::{Signer, Unsigned};

/// Longer than any call takes to begin.
const OWN_LIFE: Duration = Duration::from_secs(900);
const ATTEMPTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Client {
    pub(super) http: reqwest::Client,
    pub(super) endpoint: String,
    /// The same as clients see it.
    pub(super) public: String,
    pub(super) bucket: String,
    pub(super) signer: Signer,
    pub(super) skew: Arc<Skew>,
}

/// One request to an object, or to the bucket where none is named.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    method: Method,
    object: Option<&'a str>,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// Whether a second one does no more than the first.
    again: bool,
}

impl<'a> Call<'a> {
    pub(super) fn of_bucket() -> Call<'a> {
        Call::new(Method::GET, None)
    }

    pub(super) fn of(method: Method, object: &'a str) -> Call<'a> {
        Call::new(method, Some(object))
    }

    fn new(method: Method, object: Option<&'a str>) -> Call<'a> {
        let again = method != Method::POST;
        Call { method, object, query: Vec::new(), headers: Vec::new(), body: Bytes::new(), again }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.query.push((name, value.into()));
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn body(mut self, body: impl Into<Bytes>) -> Call<'a> {
        self.body = body.into();
        self
    }

    /// Only where nothing is. Not sent again after a lost answer: what is there then may be our own.
    pub(super) fn create_only(mut self) -> Call<'a> {
        self.again = false;
        self.header("x-goog-if-generation-match", "0")
    }
}

impl Client {
    /// A request of now, by the store's clock: what this machine's clock dates wrongly dies at another time than
    /// is known.
    pub(super) fn unsigned<'a>(
        &'a self,
        method: &'a str,
        endpoint: &'a str,
        path: &'a str,
        life: Duration,
    ) -> Unsigned<'a> {
        let at = self.skew.store_time();
        Unsigned { method, endpoint, path, query: Vec::new(), headers: Vec::new(), at, life }
    }

    pub(super) fn path(&self, object: Option<&str>) -> String {
        match object {
            Some(object) => format!("/{}/{object}", self.bucket),
            None => format!("/{}", self.bucket),
        }
    }

    /// The answer, if it is one of success.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<Response, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let clock = self.skew.ahead_ms();
            let failure = match self.try_send(&call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // A refusal by which we learn the time is one of our clock, not of our key.
            let mistimed = matches!(failure, Failure::Answered { status: 400 | 403, .. })
                && self.skew.ahead_ms() != clock;
            if attempt == ATTEMPTS_MAX || !(mistimed || call.again && failure.is_passing()) {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
            attempt += 1;
        }
    }

    async fn try_send(&self, call: &Call<'_>) -> Result<Response, Failure> {
        let path = self.path(call.object);
        let unsigned = Unsigned {
            query: call.query.clone(),
            headers: call.headers.clone(),
            ..self.unsigned(call.method.as_str(), &self.endpoint, &path, OWN_LIFE)
        };
        let url = self.signer.sign(&unsigned).map_err(|error| Failure::Unreached(error.to_string()))?;
        let mut request = self.http.request(call.method.clone(), url);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if matches!(call.method, Method::PUT | Method::POST) {
            request = request.header("content-length", call.body.len()).body(call.body.clone());
        }
        self.answered(request.send().await.map_err(unreached)?).await
    }

    /// Reads the time off an answer, and what went wrong.
    pub(super) async fn answered(&self, answer: Response) -> Result<Response, Failure> {
        if let Some(date) = header(answer.headers(), "date") {
            self.skew.read(&date);
        }
        if answer.status().is_success() { Ok(answer) } else { Err(Failure::read(answer).await) }
    }
}
