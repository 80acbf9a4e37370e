//! Detects which uploads the service refuses when they differ from what was signed, and tests that we have every
//! permission that we need.

use futures::TryStreamExt as _;
use wharfinger_calls::http::header;
use wharfinger_lifecycle::key::ObjectKey;

use super::AzureStore;
use super::call::Call;
use super::list::Listing;
use crate::http::probe;
use crate::{BlobError, BlobStore as _, ProbeReport};

impl AzureStore {
    pub(super) async fn run_probe(&self) -> Result<ProbeReport, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.check_namespace(&mut notes).await?;
        let keys = probe::keys::<4>();
        let tested = self.detect_features(&keys).await;
        probe::finish(self, &keys, tested).await?;
        self.detect_soft_delete(&keys[0], &mut notes).await;
        Ok(ProbeReport { clock_ahead_ms: self.client.skew.ahead_ms(), notes })
    }

    /// With a hierarchical namespace, Azure does not list in byte order, and empty folders remain after deletes.
    async fn check_namespace(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let call = Call::of_bucket().with("restype", "account").with("comp", "properties");
        match self.client.send(call).await {
            Ok(answer) if header(answer.headers(), "x-ms-is-hns-enabled").as_deref() == Some("true") => {
                Err(BlobError::Refused(
                    "the account has a hierarchical namespace, which does not list keys in byte order: use an \
                     account without one"
                        .into(),
                ))
            }
            Ok(_) => Ok(()),
            Err(error) if error.is_retryable() => Err(error.into()),
            Err(error) => {
                let error = BlobError::from(error);
                notes.push(format!(
                    "cannot check whether the account has a hierarchical namespace ({error}): it must not have one"
                ));
                Ok(())
            }
        }
    }

    async fn detect_features(&self, keys: &[ObjectKey; 4]) -> Result<(), BlobError> {
        let mut signed = Vec::with_capacity(keys.len());
        for key in keys {
            signed.push(self.sign_put_at(&self.client.endpoint, &probe::grant(key)).await?);
        }
        probe::detect_enforcement(&self.client, &signed).await?;
        let versioned = self.head(&keys[0], None).await?.version_id.is_some();
        let starts_from = self.detect_listing_start(keys).await?;
        self.client.features.change(|features| {
            features.versioned = versioned;
            features.starts_from = starts_from;
        });
        Ok(())
    }

    /// Whether a listing can start at a key: such a listing must omit exactly the keys before it.
    async fn detect_listing_start(&self, [first, second, ..]: &[ObjectKey; 4]) -> Result<bool, BlobError> {
        let whole = Listing::under(&self.client, first.as_str().trim_end_matches('0'));
        let listing = Listing { start_from: Some(self.client.full(second)), ..whole.clone() };
        let all: Vec<_> = whole.entries().try_collect().await?;
        match listing.entries().try_collect::<Vec<_>>().await {
            Ok(from) => {
                let from: Vec<String> = from.iter().map(|entry| entry.key()).collect();
                let wanted: Vec<String> = all.iter().skip(1).map(|entry| entry.key()).collect();
                Ok(!wanted.is_empty() && from == wanted)
            }
            Err(error @ BlobError::Unavailable(_)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// With soft delete, deleted bytes still cost money, so the operator should know.
    async fn detect_soft_delete(&self, key: &ObjectKey, notes: &mut Vec<String>) {
        let mut listing = Listing::under(&self.client, key.as_str());
        listing.include = Some("deleted");
        if let Ok(kept) = listing.entries().try_collect::<Vec<_>>().await
            && !kept.is_empty()
        {
            notes.push("the account keeps deleted blobs for some days (soft delete)".into());
        }
    }
}
