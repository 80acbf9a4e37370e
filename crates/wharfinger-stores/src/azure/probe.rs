//! Tries out what the service does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need.

use futures::TryStreamExt as _;
use wharfinger_calls::http::header;
use wharfinger_lifecycle::key::ObjectKey;

use super::AzureStore;
use super::call::Call;
use super::list::Listing;
use crate::http::probe;
use crate::{BlobError, BlobStore as _, Probed};

impl AzureStore {
    pub(super) async fn find_out(&self) -> Result<Probed, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.find_kind_of_account(&mut notes).await?;
        let keys = probe::keys::<4>();
        let found = self.find_caps(&keys).await;
        probe::finish(self, &keys, found).await?;
        self.find_soft_delete(&keys[0], &mut notes).await;
        Ok(Probed { clock_ahead_ms: self.client.skew.ahead_ms(), notes })
    }

    /// With a hierarchical namespace, keys are listed folder by folder and folders stay behind.
    async fn find_kind_of_account(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let call = Call::of_bucket().with("restype", "account").with("comp", "properties");
        match self.client.send(call).await {
            Ok(answer) if header(answer.headers(), "x-ms-is-hns-enabled").as_deref() == Some("true") => {
                Err(BlobError::Refused(
                    "the account has a hierarchical namespace, whose order is not that of keys: use one without"
                        .into(),
                ))
            }
            Ok(_) => Ok(()),
            Err(failure) if failure.is_passing() => Err(failure.into()),
            Err(failure) => {
                let error = BlobError::from(failure);
                notes.push(format!(
                    "whether the account has a hierarchical namespace is unknown ({error}): it must have none"
                ));
                Ok(())
            }
        }
    }

    async fn find_caps(&self, keys: &[ObjectKey; 4]) -> Result<(), BlobError> {
        let mut signed = Vec::with_capacity(keys.len());
        for key in keys {
            signed.push(self.sign_put_at(&self.client.endpoint, &probe::grant(key)).await?);
        }
        probe::find_bindings(&self.client, &signed).await?;
        let versioned = self.head(&keys[0], None).await?.version_id.is_some();
        let starts_from = self.find_start(keys).await?;
        self.client.learned.change(|learned| {
            learned.versioned = versioned;
            learned.starts_from = starts_from;
        });
        Ok(())
    }

    /// Whether a listing can begin at a key: one that is asked to must leave out what is before, and nothing else.
    async fn find_start(&self, [first, second, ..]: &[ObjectKey; 4]) -> Result<bool, BlobError> {
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

    /// Bytes that were deleted and are still there cost money, which someone should know.
    async fn find_soft_delete(&self, key: &ObjectKey, notes: &mut Vec<String>) {
        let mut listing = Listing::under(&self.client, key.as_str());
        listing.include = Some("deleted");
        if let Ok(kept) = listing.entries().try_collect::<Vec<_>>().await
            && !kept.is_empty()
        {
            notes.push("the account keeps what is deleted for some days (soft delete)".into());
        }
    }
}
