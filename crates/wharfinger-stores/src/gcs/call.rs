//! Signs calls to Google. Our own calls use signed URLs as clients do, so there is one way to sign and no token to
//! fetch.

use std::time::Duration;

use super::error;
use super::sign::{Signer, UnsignedRequest};
use crate::BlobError;
use crate::http::{self, CallError, Service};

/// Longer than any call takes to start.
const OWN_LIFETIME: Duration = Duration::from_secs(900);

pub(super) type Client = http::Client<Signer>;
pub(super) use crate::http::Call;

impl Service for Signer {
    const NAME: &'static str = "Google";

    async fn sign(client: &Client, call: &Call<'_>) -> Result<String, CallError> {
        let path = client.path(call.object);
        let unsigned = UnsignedRequest {
            query: call.query.clone(),
            headers: call.headers.clone(),
            ..client.unsigned_request(call.method.as_str(), &client.endpoint, &path, OWN_LIFETIME)
        };
        client.service.sign(&unsigned).map_err(|error| CallError::unavailable(error.to_string()))
    }

    fn classify(status: u16, code: &str, text: String) -> BlobError {
        error::classify(status, code, text)
    }
}

impl Client {
    /// Dated by the store's clock: with a wrong clock of this machine, the URL would expire at another time.
    pub(super) fn unsigned_request<'a>(
        &'a self,
        method: &'a str,
        endpoint: &'a str,
        path: &'a str,
        lifetime: Duration,
    ) -> UnsignedRequest<'a> {
        let at = self.skew.store_time();
        UnsignedRequest { method, endpoint, path, query: Vec::new(), headers: Vec::new(), at, lifetime }
    }

    pub(super) fn path(&self, object: Option<&str>) -> String {
        match object {
            Some(object) => format!("/{}/{object}", self.bucket),
            None => format!("/{}", self.bucket),
        }
    }
}
