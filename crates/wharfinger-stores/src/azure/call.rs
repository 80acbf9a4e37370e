//! How calls to Azure are signed. Ours carry a permit for the container as clients' carry one for their blob, so there
//! is one way to sign, whichever key does it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use wharfinger_lifecycle::key::encode_part;

use super::entra::Entra;
use super::error;
use super::sas::{Permit, SigningKey};
use crate::BlobError;
use crate::http::{self, Failure, Service};

/// Everything that we do: read, add, create, write, delete, delete versions, list.
const OWN_PERMISSIONS: &str = "racwdxl";
/// Longer than any call takes, and than a clock is off before the first answer has told.
const OWN_LIFE: Duration = Duration::from_secs(3_600);

pub(super) type Client = http::Client<Account>;
pub(super) use crate::http::Call;

pub(super) struct Account {
    pub(super) name: String,
    pub(super) keys: Keys,
}

/// Where the key that signs comes from.
pub(super) enum Keys {
    Account(Arc<SigningKey>),
    Entra(Entra),
}

impl Service for Account {
    const NAME: &'static str = "Azure";

    async fn sign(client: &Client, call: &Call<'_>) -> Result<String, Failure> {
        client.url(&client.endpoint, call.object, &call.query, client.permit(None, OWN_LIFE)).await
    }

    fn meaning(status: u16, code: &str, said: String) -> BlobError {
        error::meaning(status, code, said)
    }
}

impl Client {
    pub(super) fn permit<'a>(&'a self, blob: Option<&'a str>, life: Duration) -> Permit<'a> {
        Permit {
            account: &self.service.name,
            container: &self.bucket,
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
        let key = self.key_until(permit.expires_at).await?;
        let permit = Permit { https_only: endpoint.starts_with("https:"), ..permit };
        let mut url = format!("{endpoint}/{}", encode_part(&self.bucket));
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

    /// A key whose signatures hold until then.
    async fn key_until(&self, end: SystemTime) -> Result<Arc<SigningKey>, Failure> {
        match &self.service.keys {
            Keys::Account(key) => Ok(key.clone()),
            Keys::Entra(entra) => entra.key_until(end, self).await,
        }
    }
}
