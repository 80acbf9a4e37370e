//! Tries out what the service does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need.

use futures::TryStreamExt as _;
use wharfinger_lifecycle::key::ObjectKey;

use super::super::answer::{doing, header};
use super::super::trial::{self, OTHER_BYTES, OTHER_TYPE, RIGHT, SHORT, Sent};
use super::super::{BlobError, BlobStore as _, Probed};
use super::AzureStore;
use super::call::Call;
use super::error::{Failure, unreached};
use super::list::Listing;

impl AzureStore {
    pub(super) async fn find_out(&self) -> Result<Probed, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.find_kind_of_account(&mut notes).await?;
        let name = uuid::Uuid::new_v4().to_string();
        // No blob can be put twice, so each try has one of its own.
        let keys: Vec<ObjectKey> = (0..4).map(|n| ObjectKey::probe(&format!("{name}-{n}"))).collect();
        let found = self.find_bindings(&keys).await;
        let gone = self.delete_keys(&keys).await.into_iter().collect::<Result<Vec<()>, BlobError>>();
        found?;
        gone.map_err(|error| doing("delete blobs", error))?;
        trial::find_absence(self, &keys[0]).await?;
        self.find_soft_delete(&keys[0], &mut notes).await;
        trial::find_parts(self, &keys[0]).await?;
        trial::clear_left_behind(self).await?;
        Ok(Probed { clock_ahead_ms: self.client.skew.ahead_ms(), notes })
    }

    /// With a hierarchical namespace, keys are listed folder by folder and folders stay behind.
    async fn find_kind_of_account(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let call = Call::of_container().with("restype", "account").with("comp", "properties");
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

    async fn find_bindings(&self, keys: &[ObjectKey]) -> Result<(), BlobError> {
        let [right, short, other_type, other_bytes] = keys else {
            return Err(BlobError::Refused("a probe needs four keys".into()));
        };
        if let Err(said) = self.try_put(right, &RIGHT).await? {
            return Err(BlobError::Refused(format!("it will not let us write blobs: {said}")));
        }
        // With what is right in place already, only a store that overwrites takes it again.
        let create_only = self.try_put(right, &RIGHT).await?.is_err();
        let short = self.try_put(short, &SHORT).await?;
        let other_type = self.try_put(other_type, &OTHER_TYPE).await?;
        let other_bytes = self.try_put(other_bytes, &OTHER_BYTES).await?;
        let versioned = self.head(right, None).await?.version_id.is_some();
        let starts_from = self.find_start(keys).await?;
        self.learn(|learned| {
            learned.create_only = create_only;
            learned.binds_size = short.is_err();
            learned.binds_content_type = other_type.is_err();
            learned.binds_checksum = other_bytes.is_err();
            learned.versioned = versioned;
            learned.starts_from = starts_from;
        });
        Ok(())
    }

    /// Whether a listing can begin at a key: one that is asked to must leave out what is before, and nothing else.
    async fn find_start(&self, keys: &[ObjectKey]) -> Result<bool, BlobError> {
        let (Some(first), Some(second)) = (keys.first(), keys.get(1)) else { return Ok(false) };
        let mut listing = Listing::under(self, first.as_str().trim_end_matches('0'));
        let whole = Listing { client: self.client.clone(), under: listing.under.clone(), ..listing };
        listing.start_from = Some(self.full(second));
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

    /// The inner error is the service's refusal.
    async fn try_put(&self, key: &ObjectKey, sent: &Sent<'_>) -> Result<Result<(), String>, BlobError> {
        let signed = self.sign_put_at(&self.client.endpoint, &trial::grant(key)).await?;
        let answer = trial::request(&self.client.http, &signed, sent).send().await.map_err(unreached)?;
        match self.client.answered(answer).await {
            Ok(_) => Ok(Ok(())),
            Err(failure @ Failure::Answered { .. }) if !failure.is_passing() => {
                Ok(Err(BlobError::from(failure).to_string()))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Bytes that were deleted and are still there cost money, which someone should know.
    async fn find_soft_delete(&self, key: &ObjectKey, notes: &mut Vec<String>) {
        let mut listing = Listing::under(self, key.as_str());
        listing.include = Some("deleted");
        if let Ok(kept) = listing.entries().try_collect::<Vec<_>>().await
            && !kept.is_empty()
        {
            notes.push("the account keeps what is deleted for some days (soft delete)".into());
        }
    }
}
