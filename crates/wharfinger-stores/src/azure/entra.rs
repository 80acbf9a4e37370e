//! Identities of Entra's: a token of theirs is traded for a key that signs for some days.

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
use crate::http::{Failure, from_xml};

/// As long as the service lends a key, less what clocks may differ by.
const KEY_LIFE: Duration = Duration::from_secs(7 * 24 * 3_600 - 900);
/// A key with less left than this is not used for what begins now.
const KEY_REST: Duration = Duration::from_secs(6 * 3_600);

pub(super) struct Entra {
    tokens: AzureCredentialProvider,
    lent: Mutex<Option<Lent>>,
}

struct Lent {
    key: Arc<SigningKey>,
    ends_at: SystemTime,
}

impl Entra {
    pub(super) fn new(options: &AzureOptions, entra: &EntraOptions) -> Result<Entra, BlobError> {
        wharfinger_calls::tls::install_provider();
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(&options.account)
            .with_container_name(&options.container)
            // Only where someone says so, as for a stand-in of one's own.
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
        Ok(Entra { tokens: built.credentials().clone(), lent: Mutex::new(None) })
    }

    pub(super) async fn key_until(
        &self,
        end: SystemTime,
        client: &Client,
    ) -> Result<Arc<SigningKey>, Failure> {
        let mut lent = self.lent.lock().await;
        let now = client.skew.store_time();
        if let Some(lent) = lent.as_ref().filter(|lent| lent.ends_at >= end.max(now + KEY_REST)) {
            return Ok(lent.key.clone());
        }
        let ends_at = now + KEY_LIFE;
        if end > ends_at {
            let why = "with an identity of Entra's no URL can live longer than a week";
            return Err(BlobError::Refused(why.into()).into());
        }
        let key = Arc::new(SigningKey::Delegated(self.borrow(now, ends_at, client).await?));
        *lent = Some(Lent { key: key.clone(), ends_at });
        Ok(key)
    }

    async fn borrow(
        &self,
        start: SystemTime,
        end: SystemTime,
        client: &Client,
    ) -> Result<DelegationKey, Failure> {
        let credential = self.tokens.get_credential().await;
        let credential = credential.map_err(|error| {
            Failure::unavailable(format!(
                "no token from Entra: set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_TENANT_ID, AZURE_CLIENT_ID and a \
                 secret, or run where there is a managed identity ({error})"
            ))
        })?;
        let AzureCredential::BearerToken(token) = &*credential else {
            return Err(Failure::unavailable("Entra gave something else than a token"));
        };
        let (start, expiry) = (iso(start), iso(end));
        let body = format!("<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>");
        let url = format!("{}/?restype=service&comp=userdelegationkey", client.endpoint);
        let request = client.http.post(url).bearer_auth(token).header("x-ms-version", VERSION).body(body);
        let answer = client.answered(request.send().await?).await?;
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

fn delegation_key(xml: &str) -> Result<DelegationKey, Failure> {
    let answer = from_xml::<Account, KeyAnswer>(xml)?;
    let value = STANDARD.decode(&answer.value);
    Ok(DelegationKey {
        object_id: answer.signed_oid,
        tenant_id: answer.signed_tid,
        start: answer.signed_start,
        expiry: answer.signed_expiry,
        service: answer.signed_service,
        version: answer.signed_version,
        value: value.map_err(|_| Failure::unavailable("a delegation key that is no base64"))?,
    })
}
