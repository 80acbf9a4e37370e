//! How calls to Google are signed. Ours are signed URLs as clients' are, so there is one way to sign and no token to
//! fetch.

use std::time::Duration;

use super::error;
use super::sign::{Signer, Unsigned};
use crate::BlobError;
use crate::http::{self, Failure, Service};

/// Longer than any call takes to begin.
const OWN_LIFE: Duration = Duration::from_secs(900);

pub(super) type Client = http::Client<Signer>;
pub(super) use crate::http::Call;

impl Service for Signer {
    const NAME: &'static str = "Google";

    async fn sign(client: &Client, call: &Call<'_>) -> Result<String, Failure> {
        let path = client.path(call.object);
        let unsigned = Unsigned {
            query: call.query.clone(),
            headers: call.headers.clone(),
            ..client.unsigned(call.method.as_str(), &client.endpoint, &path, OWN_LIFE)
        };
        client.service.sign(&unsigned).map_err(|error| Failure::unavailable(error.to_string()))
    }

    fn meaning(status: u16, code: &str, said: String) -> BlobError {
        error::meaning(status, code, said)
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
}
