//! Calls to a service: signed each time they are sent, and sent again where that may help.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response};
use serde::de::DeserializeOwned;
use wharfinger_calls::http::header;
use wharfinger_lifecycle::key::ObjectKey;

use super::{Failure, Learned, gone};
use crate::BlobError;
use crate::skew::Skew;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For the next byte of an answer: joining thousands of parts takes its time.
const READ_TIMEOUT: Duration = Duration::from_secs(50);
const ATTEMPTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What each service does in its own way.
pub(crate) trait Service: Sized + Send + Sync + 'static {
    /// Whose service it is, as errors name it.
    const NAME: &'static str;

    /// The call's URL, signed with our own rights for as long as a call takes.
    fn sign(client: &Client<Self>, call: &Call<'_>) -> impl Future<Output = Result<String, Failure>> + Send;

    /// What an answer without success means: absent, changed, refused, or unknown. When in doubt, unknown.
    fn meaning(status: u16, code: &str, said: String) -> BlobError;
}

/// A bucket of a service (a container in Azure's words), and who we are to it.
pub(crate) struct Client<S> {
    pub(crate) http: reqwest::Client,
    pub(crate) endpoint: String,
    /// The same as clients see it.
    pub(crate) public: String,
    pub(crate) bucket: String,
    /// Empty, or what every key begins with, its slash included.
    pub(crate) prefix: String,
    pub(crate) service: S,
    pub(crate) skew: Skew,
    pub(crate) learned: Learned,
}

/// One request to an object, or to the bucket where none is named.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// With the store's prefix.
    pub(crate) object: Option<&'a str>,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// Whether a second one may do more than the first.
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

    /// Under a condition that the object does not exist. Not sent again after a lost answer: what is there then may be
    /// our own.
    pub(crate) fn create_only(mut self, (name, value): (&'static str, &str)) -> Call<'a> {
        self.once = true;
        self.header(name, value)
    }
}

impl<S: Service> Client<S> {
    /// Talks to nobody yet. Clients see the endpoint itself where no public one is given.
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
            learned: Learned::default(),
        })
    }

    pub(crate) fn full(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The answer, if it is one of success.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Response, Failure> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let clock = self.skew.ahead_ms();
            let failure = match self.try_send(&call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // A refusal by which we learn the time is one of our clock, not of our key.
            let mistimed = matches!(failure.status, 400 | 403) && self.skew.ahead_ms() != clock;
            if attempt == ATTEMPTS_MAX || !(mistimed || !call.once && failure.is_passing()) {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
            attempt += 1;
        }
    }

    async fn try_send(&self, call: &Call<'_>) -> Result<Response, Failure> {
        let mut request = self.http.request(call.method.clone(), S::sign(self, call).await?);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if matches!(call.method, Method::PUT | Method::POST) {
            // Also where it is none: the services insist on being told.
            request = request.header("content-length", call.body.len()).body(call.body.clone());
        }
        self.answered(request.send().await?).await
    }

    /// Reads the time off an answer, and what went wrong.
    pub(crate) async fn answered(&self, answer: Response) -> Result<Response, Failure> {
        if let Some(date) = header(answer.headers(), "date") {
            self.skew.read(&date);
        }
        if answer.status().is_success() { Ok(answer) } else { Err(Failure::read::<S>(answer).await) }
    }

    /// The document that answers a call.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Failure> {
        from_xml::<S, T>(&self.send(call).await?.text().await?)
    }

    pub(crate) async fn delete(&self, call: Call<'_>) -> Result<(), BlobError> {
        gone(self.send(call).await.map_err(BlobError::from))
    }
}

pub(crate) fn from_xml<S: Service, T: DeserializeOwned>(xml: &str) -> Result<T, Failure> {
    // Some begin their documents with a mark of their byte order.
    quick_xml::de::from_str(xml.trim_start_matches('\u{feff}')).map_err(|error| {
        Failure::unavailable(format!("the answer is not {}'s ({error}): check the endpoint", S::NAME))
    })
}
