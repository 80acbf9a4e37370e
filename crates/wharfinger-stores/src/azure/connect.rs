//! Creates a client from the settings: the account's address, and the key or identity that signs.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::call::{Account, Client, Keys};
use super::entra::Entra;
use super::sas::SigningKey;
use crate::BlobError;

/// The container and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AzureOptions {
    pub account: String,
    pub container: String,
    /// The prefix of every key. Empty, or it ends in a slash.
    pub prefix: String,
    /// The account's address. Default: `https://<account>.blob.core.windows.net`. The address of an emulator has the
    /// account in its path.
    pub endpoint: Option<String>,
    /// The account's address in URLs for clients.
    pub public_endpoint: Option<String>,
    pub credentials: Option<AzureCredentials>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum AzureCredentials {
    /// In base64, as Azure shows it.
    AccountKey(String),
    /// A Microsoft Entra identity. The service issues a key that signs for it.
    Entra(EntraOptions),
    /// Rejected with an explanation: it cannot sign URLs for clients.
    SasToken,
}

/// A client with its secret or its federated token. With neither: the machine's managed identity.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EntraOptions {
    pub tenant_id: Option<String>,
    pub client_id: Option<String>,
    pub client_secret: Option<String>,
    pub federated_token_file: Option<String>,
    pub authority_host: Option<String>,
    /// The endpoint of the machine's managed identity, if it is not the default one.
    pub identity_endpoint: Option<String>,
}

impl fmt::Debug for AzureCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AzureCredentials::AccountKey(_) => "AccountKey",
            AzureCredentials::Entra(_) => "Entra",
            AzureCredentials::SasToken => "SasToken",
        })
    }
}

impl AzureOptions {
    /// Fills missing options from the variables that Azure's own tools read.
    pub fn filled(mut self, variable: &dyn Fn(&str) -> Option<String>) -> AzureOptions {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| variable(name).filter(|value| !value.trim().is_empty()))
        };
        let connection = first(&["AZURE_STORAGE_CONNECTION_STRING"]).unwrap_or_default();
        let from_connection = |name: &str| {
            let mut fields = connection.split(';').filter_map(|field| field.split_once('='));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned())
        };
        if self.account.is_empty() {
            let named = first(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]);
            self.account = named.or_else(|| from_connection("AccountName")).unwrap_or_default();
        }
        self.endpoint = self
            .endpoint
            .or_else(|| first(&["AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_BLOB_ENDPOINT", "AZURE_ENDPOINT"]))
            .or_else(|| from_connection("BlobEndpoint"))
            .or_else(|| {
                let suffix = from_connection("EndpointSuffix")?;
                let protocol = from_connection("DefaultEndpointsProtocol").unwrap_or_else(|| "https".into());
                Some(format!("{protocol}://{}.blob.{suffix}", self.account))
            });
        self.credentials = self
            .credentials
            .or_else(|| {
                let keys = ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCESS_KEY"];
                first(&keys).or_else(|| from_connection("AccountKey")).map(AzureCredentials::AccountKey)
            })
            .or_else(|| {
                let token = first(&["AZURE_STORAGE_SAS_TOKEN"]);
                token.or_else(|| from_connection("SharedAccessSignature")).map(|_| AzureCredentials::SasToken)
            })
            .or_else(|| {
                Some(AzureCredentials::Entra(EntraOptions {
                    tenant_id: first(&["AZURE_TENANT_ID"]),
                    client_id: first(&["AZURE_CLIENT_ID"]),
                    client_secret: first(&["AZURE_CLIENT_SECRET"]),
                    federated_token_file: first(&["AZURE_FEDERATED_TOKEN_FILE"]),
                    authority_host: first(&["AZURE_AUTHORITY_HOST"]),
                    identity_endpoint: first(&["IDENTITY_ENDPOINT"]),
                }))
            });
        self
    }
}

pub(super) fn client(options: &AzureOptions) -> Result<Client, BlobError> {
    let refused = |why: &str| BlobError::Refused(why.to_owned());
    if options.account.is_empty() {
        return Err(refused("no storage account: set AZURE_STORAGE_ACCOUNT_NAME"));
    }
    let keys = match &options.credentials {
        Some(AzureCredentials::AccountKey(key)) => match STANDARD.decode(key.trim()) {
            Ok(key) if !key.is_empty() => Keys::Account(Arc::new(SigningKey::Account(key))),
            _ => return Err(refused("the account key is not base64: check AZURE_STORAGE_ACCOUNT_KEY")),
        },
        Some(AzureCredentials::Entra(entra)) => Keys::Entra(Entra::new(options, entra)?),
        Some(AzureCredentials::SasToken) => {
            return Err(refused(
                "a SAS token cannot sign URLs for clients: set AZURE_STORAGE_ACCOUNT_KEY, or unset \
                 AZURE_STORAGE_SAS_TOKEN to use a Microsoft Entra identity",
            ));
        }
        None => return Err(refused("no credentials: set AZURE_STORAGE_ACCOUNT_KEY")),
    };
    let account = Account { name: options.account.clone(), keys };
    let default = format!("https://{}.blob.core.windows.net", options.account);
    let endpoint = options.endpoint.as_deref().unwrap_or(&default);
    let public = options.public_endpoint.as_deref();
    Client::new(&options.container, &options.prefix, endpoint, public, account)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(variables: &[(&str, &str)]) -> AzureOptions {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        AzureOptions { container: "c".into(), ..AzureOptions::default() }.filled(&variable)
    }

    #[test]
    fn missing_options_come_from_variables() {
        let options = filled(&[
            ("AZURE_STORAGE_ACCOUNT", "acct"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
            ("AZURE_STORAGE_ENDPOINT", "http://localhost:1/acct"),
        ]);
        assert_eq!(options.account, "acct");
        assert_eq!(options.endpoint.as_deref(), Some("http://localhost:1/acct"));
        assert!(options.credentials == Some(AzureCredentials::AccountKey("a2V5".into())));
        let given = AzureOptions { account: "mine".into(), ..options }.filled(&|_| Some("theirs".into()));
        assert_eq!(given.account, "mine");
        assert!(given.credentials == Some(AzureCredentials::AccountKey("a2V5".into())));
    }

    #[test]
    fn a_connection_string_is_read() {
        let options = filled(&[(
            "AZURE_STORAGE_CONNECTION_STRING",
            "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5==;EndpointSuffix=core.example",
        )]);
        assert_eq!(options.account, "acct");
        assert_eq!(options.endpoint.as_deref(), Some("https://acct.blob.core.example"));
        assert!(options.credentials == Some(AzureCredentials::AccountKey("a2V5==".into())));
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = filled(&[("AZURE_STORAGE_ACCOUNT", "acct"), ("AZURE_STORAGE_KEY", "c2VjcmV0")]);
        let shown = format!("{options:?}");
        assert!(shown.contains("acct") && !shown.contains("c2VjcmV0"), "{shown}");
    }

    #[test]
    fn credentials_that_cannot_sign_are_refused_with_a_remedy() {
        for (variables, remedy) in [
            (&[][..], "AZURE_STORAGE_ACCOUNT_NAME"),
            (&[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_SAS_TOKEN", "sv=1")], "SAS token"),
            (&[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_KEY", "?")], "AZURE_STORAGE_ACCOUNT_KEY"),
        ] {
            let error = client(&filled(variables)).err().expect("refused").to_string();
            assert!(error.contains(remedy), "{error}");
        }
    }
}
