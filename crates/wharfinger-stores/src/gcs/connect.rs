//! Creates a client from the settings: the bucket's address, and the service account that signs.

use std::fmt;

use serde::Deserialize;

use super::call::Client;
use super::sign::Signer;
use crate::BlobError;

/// The bucket and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcsOptions {
    pub bucket: String,
    /// The prefix of every key. Empty, or it ends in a slash.
    pub prefix: String,
    /// Default: `https://storage.googleapis.com`.
    pub endpoint: Option<String>,
    /// The store's address in URLs for clients.
    pub public_endpoint: Option<String>,
    pub credentials: Option<GcsCredentials>,
}

/// The key of a service account, as Google issues it.
#[derive(Clone, PartialEq, Eq)]
pub enum GcsCredentials {
    File(String),
    Json(String),
}

#[derive(Deserialize)]
struct KeyFile {
    #[serde(rename = "type")]
    kind: Option<String>,
    client_email: Option<String>,
    private_key: Option<String>,
}

impl fmt::Debug for GcsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GcsCredentials")
    }
}

impl GcsOptions {
    /// Fills missing options from the variables that Google's own tools read.
    pub fn filled(mut self, variable: &dyn Fn(&str) -> Option<String>) -> GcsOptions {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| variable(name).filter(|value| !value.trim().is_empty()))
        };
        self.credentials = self
            .credentials
            .or_else(|| first(&["GOOGLE_SERVICE_ACCOUNT_KEY"]).map(GcsCredentials::Json))
            .or_else(|| {
                let files = [
                    "GOOGLE_SERVICE_ACCOUNT",
                    "GOOGLE_SERVICE_ACCOUNT_PATH",
                    "GOOGLE_APPLICATION_CREDENTIALS",
                ];
                first(&files).map(GcsCredentials::File)
            });
        self
    }
}

const ENDPOINT: &str = "https://storage.googleapis.com";

pub(super) fn client(options: &GcsOptions) -> Result<Client, BlobError> {
    let text = match &options.credentials {
        Some(GcsCredentials::Json(text)) => text.clone(),
        Some(GcsCredentials::File(path)) => std::fs::read_to_string(path).map_err(|error| {
            BlobError::Refused(format!("cannot read the service account's key {path}: {error}"))
        })?,
        None => {
            return Err(BlobError::Refused(
                "no service account: set GOOGLE_APPLICATION_CREDENTIALS to its key file".into(),
            ));
        }
    };
    let endpoint = options.endpoint.as_deref().unwrap_or(ENDPOINT);
    let public = options.public_endpoint.as_deref();
    Client::new(&options.bucket, &options.prefix, endpoint, public, signer(&text)?)
}

fn signer(text: &str) -> Result<Signer, BlobError> {
    let refused = |why: &str| BlobError::Refused(format!("{why}: check GOOGLE_APPLICATION_CREDENTIALS"));
    // The error text of serde is left out, because it can contain the key.
    let file: KeyFile = serde_json::from_str(text)
        .map_err(|_| refused("the service account's key is not a JSON key file of Google"))?;
    match (file.kind.as_deref(), file.client_email, file.private_key) {
        (Some("service_account"), Some(email), Some(key)) => Signer::new(&email, &key),
        (kind, ..) => Err(refused(&format!(
            "only the key of a service account can sign URLs for clients, but this key has the type {}",
            kind.unwrap_or("unknown")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_options_come_from_variables() {
        let options = GcsOptions::default().filled(&|name| {
            (name == "GOOGLE_APPLICATION_CREDENTIALS").then(|| "/no/such/key.json".to_owned())
        });
        assert!(options.credentials == Some(GcsCredentials::File("/no/such/key.json".into())));
        let error = client(&options).err().expect("no such file").to_string();
        assert!(error.contains("/no/such/key.json"), "{error}");
        let both = GcsOptions::default().filled(&|_| Some("{}".into()));
        assert!(both.credentials == Some(GcsCredentials::Json("{}".into())));
        assert!(!format!("{both:?}").contains("Json"), "secrets are not shown");
    }

    #[test]
    fn credentials_that_cannot_sign_are_refused_with_a_remedy() {
        for (text, remedy) in [
            ("secret", "not a JSON key file"),
            ("{\"type\":\"authorized_user\"}", "authorized_user"),
            (
                "{\"type\":\"service_account\",\"client_email\":\"a\",\"private_key\":\"b\"}",
                "download a new one",
            ),
        ] {
            let error = signer(text).err().expect("refused").to_string();
            assert!(error.contains(remedy) && !error.contains("secret"), "{error}");
        }
        let error = client(&GcsOptions::default()).err().expect("refused").to_string();
        assert!(error.contains("GOOGLE_APPLICATION_CREDENTIALS"), "{error}");
    }
}
