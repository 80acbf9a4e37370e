//! Microsoft Entra identities: with a token, the service issues a user delegation key that signs for up to 7 days.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use object_store::azure::{AzureCredential, AzureCredentialProvider, MicrosoftAzureBuilder};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::call::{Account, Client};
use super::connect::{AzureOptions, EntraOptions};
use super::sas::{DelegationKey, SigningKey, VERSION, iso};
use crate::BlobError;
use crate::http::{CallError, from_xml};

/// The longest lifetime that the service allows, less a margin for clock differences.
pub(super) const KEY_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600 - 900);
/// A cached key that expires sooner than this is replaced.
const KEY_TIME_LEFT_MIN: Duration = Duration::from_secs(6 * 3_600);

pub(super) struct Entra {
    tokens: AzureCredentialProvider,
    cached_key: Mutex<Option<CachedKey>>,
}

struct CachedKey {
    key: Arc<SigningKey>,
    expires_at: SystemTime,
}

impl Entra {
    pub(super) fn new(options: &AzureOptions, entra: &EntraOptions) -> Result<Entra, BlobError> {
        wharfinger_calls::tls::install_provider();
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(&options.account)
            .with_container_name(&options.container)
            // Only if the authority is set to an HTTP address, as the tests do.
            .with_allow_http(entra.authority_host.as_deref().is_some_and(|host| host.starts_with("http:")));
        for (value, with) in [
            (&entra.tenant_id, MicrosoftAzureBuilder::with_tenant_id as fn(_, String) -> _),
            (&entra.client_id, MicrosoftAzureBuilder::with_client_id),
            (&entra.client_secret, MicrosoftAzureBuilder::with_client_secret),
            (&entra.federated_token_file, MicrosoftAzureBuilder::with_federated_token_file),
            (&entra.authority_host, MicrosoftAzureBuilder::with_authority_host),
            (&entra.identity_endpoint, MicrosoftAzureBuilder::with_msi_endpoint),
        ] {
            if let Some(value) = value {
                builder = with(builder, value.clone());
            }
        }
        let built = builder.build().map_err(|error| BlobError::Refused(error.to_string()))?;
        Ok(Entra { tokens: built.credentials().clone(), cached_key: Mutex::new(None) })
    }

    pub(super) async fn key_until(
        &self,
        end: SystemTime,
        client: &Client,
    ) -> Result<Arc<SigningKey>, CallError> {
        let mut cached = self.cached_key.lock().await;
        let now = client.skew.store_time();
        if let Some(cached) =
            cached.as_ref().filter(|cached| cached.expires_at >= end.max(now + KEY_TIME_LEFT_MIN))
        {
            return Ok(cached.key.clone());
        }
        let expires_at = now + KEY_LIFETIME;
        if end > expires_at {
            let why = "with a Microsoft Entra identity, a URL can live for a week at most";
            return Err(BlobError::Refused(why.into()).into());
        }
        let key = Arc::new(SigningKey::Delegated(self.request_key(now, expires_at, client).await?));
        *cached = Some(CachedKey { key: key.clone(), expires_at });
        Ok(key)
    }

    async fn request_key(
        &self,
        start: SystemTime,
        end: SystemTime,
        client: &Client,
    ) -> Result<DelegationKey, CallError> {
        let credential = self.tokens.get_credential().await;
        let credential = credential.map_err(|error| {
            CallError::unavailable(format!(
                "cannot get a token from Microsoft Entra: {error}. Set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_TENANT_ID, \
                 AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or run on a machine with a managed identity"
            ))
        })?;
        let AzureCredential::BearerToken(token) = &*credential else {
            return Err(CallError::unavailable("Microsoft Entra returned no bearer token"));
        };
        let (start, expiry) = (iso(start), iso(end));
        let body = format!("<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>");
        let url = format!("{}/?restype=service&comp=userdelegationkey", client.endpoint);
        let request = client.http.post(url).bearer_auth(token).header("x-ms-version", VERSION).body(body);
        let answer = client.check_answer(request.send().await?).await?;
        delegation_key(&answer.text().await?)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KeyAnswer {
    signed_oid: String,
    signed_tid: String,
    signed_start: String,
    signed_expiry: String,
    signed_service: String,
    signed_version: String,
    value: String,
}

fn delegation_key(xml: &str) -> Result<DelegationKey, CallError> {
    let answer = from_xml::<Account, KeyAnswer>(xml)?;
    let value = STANDARD.decode(&answer.value);
    Ok(DelegationKey {
        object_id: answer.signed_oid,
        tenant_id: answer.signed_tid,
        start: answer.signed_start,
        expiry: answer.signed_expiry,
        service: answer.signed_service,
        version: answer.signed_version,
        value: value.map_err(|_| CallError::unavailable("the user delegation key is not base64"))?,
    })
}
