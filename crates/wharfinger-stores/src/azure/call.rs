//! Signs calls to Azure. Our own calls use a SAS for the container, and URLs for clients use a SAS for one blob, so
//! there is one way to sign for every kind of key.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use wharfinger_lifecycle::key::encode_part;

use super::entra::{Entra, KEY_LIFETIME};
use super::error;
use super::sas::{SasGrant, SigningKey};
use crate::http::{self, CallError, Service};
use crate::{BlobError, URL_LIFE_MAX};

/// Read, add, create, write, delete, delete versions, list.
const OWN_PERMISSIONS: &str = "racwdxl";
/// Also covers a wrong clock until the first answer shows the store's time.
const OWN_LIFETIME: Duration = Duration::from_secs(3_600);

pub(super) type Client = http::Client<Account>;
pub(super) use crate::http::Call;

pub(super) struct Account {
    pub(super) name: String,
    pub(super) keys: Keys,
}

/// The source of the signing key.
pub(super) enum Keys {
    Account(Arc<SigningKey>),
    Entra(Entra),
}

impl Service for Account {
    const NAME: &'static str = "Azure";

    async fn sign(client: &Client, call: &Call<'_>) -> Result<String, CallError> {
        client.url(&client.endpoint, call.object, &call.query, client.sas(None, OWN_LIFETIME)).await
    }

    fn classify(status: u16, code: &str, text: String) -> BlobError {
        error::classify(status, code, text)
    }
}

impl Client {
    pub(super) fn sas<'a>(&'a self, blob: Option<&'a str>, lifetime: Duration) -> SasGrant<'a> {
        SasGrant {
            account: &self.service.name,
            container: &self.bucket,
            blob,
            version_id: None,
            permissions: OWN_PERMISSIONS,
            // By the store's clock: with a wrong clock of this machine, the SAS would expire at another time.
            expires_at: self.skew.store_time() + lifetime,
            https_only: false,
            content_disposition: None,
            content_type: None,
        }
    }

    /// A URL with the SAS in its query. Every part is encoded.
    pub(super) async fn url(
        &self,
        endpoint: &str,
        blob: Option<&str>,
        query: &[(&'static str, String)],
        sas: SasGrant<'_>,
    ) -> Result<String, CallError> {
        let key = self.key_until(sas.expires_at).await?;
        let sas = SasGrant { https_only: endpoint.starts_with("https:"), ..sas };
        let mut url = format!("{endpoint}/{}", encode_part(&self.bucket));
        for part in blob.iter().flat_map(|blob| blob.split('/')) {
            url.push('/');
            url.push_str(&encode_part(part));
        }
        let mut before = '?';
        for (name, value) in query.iter().chain(&sas.signed(&key)) {
            url.push_str(&format!("{before}{name}={}", encode_part(value)));
            before = '&';
        }
        Ok(url)
    }

    pub(super) fn url_life_max(&self) -> Duration {
        match &self.service.keys {
            Keys::Account(_) => URL_LIFE_MAX,
            Keys::Entra(_) => KEY_LIFETIME,
        }
    }

    /// A key whose signatures are valid at least until `end`.
    async fn key_until(&self, end: SystemTime) -> Result<Arc<SigningKey>, CallError> {
        match &self.service.keys {
            Keys::Account(key) => Ok(key.clone()),
            Keys::Entra(entra) => entra.key_until(end, self).await,
        }
    }
}
