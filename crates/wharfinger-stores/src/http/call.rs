//! Calls to a service, signed for each attempt, with retries.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response};
use serde::de::DeserializeOwned;
use wharfinger_calls::http::header;
use wharfinger_lifecycle::key::ObjectKey;

use super::{CallError, SharedFeatures, absent_is_ok};
use crate::BlobError;
use crate::skew::Skew;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the next byte of an answer. Completing an upload of thousands of parts takes long.
const READ_TIMEOUT: Duration = Duration::from_secs(50);
const ATTEMPTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What differs between the services.
pub(crate) trait Service: Sized + Send + Sync + 'static {
    /// The service's name in error messages.
    const NAME: &'static str;

    /// The call's URL, signed with our own permissions for long enough to make the call.
    fn sign(client: &Client<Self>, call: &Call<'_>)
    -> impl Future<Output = Result<String, CallError>> + Send;

    /// The error for an answer without success. Every doubt is `Unavailable`, which means unknown.
    fn classify(status: u16, code: &str, text: String) -> BlobError;
}

/// A bucket (a container in Azure) and the credentials for it.
pub(crate) struct Client<S> {
    pub(crate) http: reqwest::Client,
    pub(crate) endpoint: String,
    /// The endpoint in URLs for clients.
    pub(crate) public: String,
    pub(crate) bucket: String,
    /// The prefix of every key. Empty, or it ends in a slash.
    pub(crate) prefix: String,
    pub(crate) service: S,
    pub(crate) skew: Skew,
    pub(crate) features: SharedFeatures,
}

/// One request to an object or to the bucket.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// The full key, with the store's prefix. None: the request is to the bucket.
    pub(crate) object: Option<&'a str>,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// The call is not idempotent, so it must not be repeated after a lost answer.
    once: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn of_bucket() -> Call<'a> {
        Call::new(Method::GET, None)
    }

    pub(crate) fn of(method: Method, object: &'a str) -> Call<'a> {
        Call::new(method, Some(object))
    }

    fn new(method: Method, object: Option<&'a str>) -> Call<'a> {
        let once = method == Method::POST;
        Call { method, object, query: Vec::new(), headers: Vec::new(), body: Bytes::new(), once }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn with_some(self, name: &'static str, value: Option<impl Into<String>>) -> Call<'a> {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn header_some(self, name: &'static str, value: Option<impl Into<String>>) -> Call<'a> {
        match value {
            Some(value) => self.header(name, value),
            None => self,
        }
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Call<'a> {
        self.body = body.into();
        self
    }

    /// Adds the condition that the object does not exist. The call is not repeated after a lost answer: an existing
    /// object could be our own.
    pub(crate) fn create_only(mut self, (name, value): (&'static str, &str)) -> Call<'a> {
        self.once = true;
        self.header(name, value)
    }
}

impl<S: Service> Client<S> {
    /// Makes no request. Without a public endpoint, URLs for clients use `endpoint`.
    pub(crate) fn new(
        bucket: &str,
        prefix: &str,
        endpoint: &str,
        public: Option<&str>,
        service: S,
    ) -> Result<Client<S>, BlobError> {
        wharfinger_calls::tls::install_provider();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| BlobError::Unavailable(error.to_string()))?;
        let address = |url: &str| url.trim_end_matches('/').to_owned();
        Ok(Client {
            http,
            endpoint: address(endpoint),
            public: address(public.unwrap_or(endpoint)),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            service,
            skew: Skew::default(),
            features: SharedFeatures::default(),
        })
    }

    pub(crate) fn full(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Sends the call and returns a successful answer.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Response, CallError> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let clock = self.skew.ahead_ms();
            let error = match self.try_send(&call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // If a refusal also changed the known clock skew, the reason is probably our clock and not our key.
            let is_clock_error = matches!(error.status, 400 | 403) && self.skew.ahead_ms() != clock;
            if attempt == ATTEMPTS_MAX || !(is_clock_error || !call.once && error.is_retryable()) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
            attempt += 1;
        }
    }

    async fn try_send(&self, call: &Call<'_>) -> Result<Response, CallError> {
        let mut request = self.http.request(call.method.clone(), S::sign(self, call).await?);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if matches!(call.method, Method::PUT | Method::POST) {
            // The services also require the length of an empty body.
            request = request.header("content-length", call.body.len()).body(call.body.clone());
        }
        self.check_answer(request.send().await?).await
    }

    /// Updates the clock skew from an answer, and turns an answer without success into an error.
    pub(crate) async fn check_answer(&self, answer: Response) -> Result<Response, CallError> {
        if let Some(date) = header(answer.headers(), "date") {
            self.skew.update_from(&date);
        }
        if answer.status().is_success() { Ok(answer) } else { Err(CallError::read::<S>(answer).await) }
    }

    /// Sends a call and parses the XML document in the answer.
    pub(crate) async fn get_xml<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, CallError> {
        from_xml::<S, T>(&self.send(call).await?.text().await?)
    }

    pub(crate) async fn delete(&self, call: Call<'_>) -> Result<(), BlobError> {
        absent_is_ok(self.send(call).await.map_err(BlobError::from))
    }
}

pub(crate) fn from_xml<S: Service, T: DeserializeOwned>(xml: &str) -> Result<T, CallError> {
    // Azure starts its documents with a byte order mark.
    quick_xml::de::from_str(xml.trim_start_matches('\u{feff}')).map_err(|error| {
        CallError::unavailable(format!("the answer is not from {} ({error}): check the endpoint", S::NAME))
    })
}
