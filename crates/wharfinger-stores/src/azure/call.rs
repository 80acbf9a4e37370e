//! Calls to the service. Ours carry a permit for the container as clients' carry one for their blob, so there is
//! one way to sign, whichever key does it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response};
use wharfinger_lifecycle::key::encode_part;

use super::super::answer::header;
use super::super::skew::Skew;
use super::error::{Failure, unreached};
use super::keys::Keys;
use super::sas::Permit;

/// Everything that we do: read, add, create, write, delete, delete versions, list.
const OWN_PERMISSIONS: &str = "racwdxl";
/// Longer than any call takes, and than a clock is off before the first answer has told.
const OWN_LIFE: Duration = Duration::from_secs(3_600);
const ATTEMPTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Client {
    pub(super) http: reqwest::Client,
    pub(super) endpoint: String,
    /// The same as clients see it.
    pub(super) public: String,
    pub(super) account: String,
    pub(super) container: String,
    pub(super) keys: Keys,
    pub(super) skew: Arc<Skew>,
}

/// One request to a blob, or to the container where none is named.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    method: Method,
    blob: Option<&'a str>,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    /// Whether a second one does no more than the first.
    again: bool,
}

impl<'a> Call<'a> {
    pub(super) fn of_container() -> Call<'a> {
        Call::new(Method::GET, None, true)
    }

    pub(super) fn get(blob: &'a str) -> Call<'a> {
        Call::new(Method::GET, Some(blob), true)
    }

    pub(super) fn head(blob: &'a str) -> Call<'a> {
        Call::new(Method::HEAD, Some(blob), true)
    }

    pub(super) fn put(blob: &'a str, body: Bytes) -> Call<'a> {
        Call { body, ..Call::new(Method::PUT, Some(blob), true) }
    }

    pub(super) fn delete(blob: &'a str) -> Call<'a> {
        Call::new(Method::DELETE, Some(blob), true)
    }

    fn new(method: Method, blob: Option<&'a str>, again: bool) -> Call<'a> {
        Call { method, blob, query: Vec::new(), headers: Vec::new(), body: Bytes::new(), again }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.query.push((name, value.into()));
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Call<'a> {
        self.headers.push((name, value.into()));
        self
    }

    /// Only where nothing is. Not sent again after a lost answer: what is there then may be our own.
    pub(super) fn create_only(mut self) -> Call<'a> {
        self.again = false;
        self.header("if-none-match", "*")
    }
}

impl Client {
    pub(super) fn permit<'a>(&'a self, blob: Option<&'a str>, life: Duration) -> Permit<'a> {
        Permit {
            account: &self.account,
            container: &self.container,
            blob,
            version_id: None,
            permissions: OWN_PERMISSIONS,
            // By the store's clock: what this machine's clock dates wrongly dies at another time than is known.
            expires_at: self.skew.store_time() + life,
            https_only: false,
            content_disposition: None,
            content_type: None,
        }
    }

    /// A URL that carries the permit. Every part of it is encoded.
    pub(super) async fn url(
        &self,
        endpoint: &str,
        blob: Option<&str>,
        query: &[(&'static str, String)],
        permit: Permit<'_>,
    ) -> Result<String, Failure> {
        let key = self.keys.until(permit.expires_at, self).await?;
        let permit = Permit { https_only: endpoint.starts_with("https:"), ..permit };
        let mut url = format!("{endpoint}/{}", encode_part(&self.container));
        for part in blob.iter().flat_map(|blob| blob.split('/')) {
            url.push('/');
            url.push_str(&encode_part(part));
        }
        let mut before = '?';
        for (name, value) in query.iter().chain(&permit.signed(&key)) {
            url.push_str(&format!("{before}{name}={}", encode_part(value)));
            before = '&';
        }
        Ok(url)
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
            let mistimed = failure.code() == "AuthenticationFailed" && self.skew.ahead_ms() != clock;
            if attempt == ATTEMPTS_MAX || !(mistimed || call.again && failure.is_passing()) {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
            attempt += 1;
        }
    }

    async fn try_send(&self, call: &Call<'_>) -> Result<Response, Failure> {
        let permit = self.permit(None, OWN_LIFE);
        let url = self.url(&self.endpoint, call.blob, &call.query, permit).await?;
        let mut request = self.http.request(call.method.clone(), url);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if call.method == Method::PUT {
            // Also where it is none: the service insists on being told.
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
