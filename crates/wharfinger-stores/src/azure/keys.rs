//! The key that signs, wherever it comes from.

use std::sync::Arc;
use std::time::SystemTime;

use super::call::Client;
use super::entra::Entra;
use super::error::Failure;
use super::sas::SigningKey;

pub(super) enum Keys {
    Account(Arc<SigningKey>),
    Entra(Entra),
}

impl Keys {
    pub(super) fn account(key: SigningKey) -> Keys {
        Keys::Account(Arc::new(key))
    }

    /// A key whose signatures hold until then.
    pub(super) async fn until(&self, end: SystemTime, client: &Client) -> Result<Arc<SigningKey>, Failure> {
        match self {
            Keys::Account(key) => Ok(key.clone()),
            Keys::Entra(entra) => entra.key_until(end, client).await,
        }
    }
}
