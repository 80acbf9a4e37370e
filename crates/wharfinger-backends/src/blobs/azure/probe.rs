//! Tries out what the service does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need. What it leaves behind it deletes, and what an earlier one left after a crash too.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::{OWN, ObjectKey};

use super::super::answer::{doing, header};
use super::super::{BlobError, BlobStore as _, Listed, PartStore as _, Probed, PutGrant, UrlLife};
use super::AzureStore;
use super::call::Call;
use super::error::{Failure, unreached};
use super::list::Listing;

const BYTES: &[u8] = b"wharfinger tries";
const TYPE: &str = "text/plain";
const LIFE: UrlLife = UrlLife { signed_at: 0, expires_at: 600_000 };
/// A probe that is older than this by the store's clock is not under way any more.
const LEFT_BEHIND_MS: i64 = 3_600_000;

/// What was sent with a signed URL.
struct Sent<'a> {
    bytes: &'a [u8],
    content_type: &'a str,
}

const RIGHT: Sent<'static> = Sent { bytes: BYTES, content_type: TYPE };

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
        self.find_absence(&keys[0]).await?;
        self.find_soft_delete(&keys[0], &mut notes).await;
        self.find_parts(&keys[0]).await?;
        self.clear_left_behind().await?;
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
        let short = self.try_put(short, &Sent { bytes: &BYTES[1..], ..RIGHT }).await?;
        let other_type = self.try_put(other_type, &Sent { content_type: "text/html", ..RIGHT }).await?;
        let other_bytes = self.try_put(other_bytes, &Sent { bytes: b"wharfinger lies!", ..RIGHT }).await?;
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
        let grant = PutGrant {
            key: key.clone(),
            size: BYTES.len() as u64,
            content_type: Some(TYPE.into()),
            checksum_sha256: Some(to_hex(&Sha256::digest(BYTES))),
            life: LIFE,
        };
        let signed = self.sign_put_at(&self.client.endpoint, &grant).await?;
        let mut request = self.client.http.put(&signed.url).timeout(Duration::from_secs(20));
        for (name, value) in signed.headers.iter().filter(|(name, _)| name != "content-type") {
            request = request.header(name, value);
        }
        let request = request.header("content-type", sent.content_type);
        let request = request.header("content-length", sent.bytes.len());
        let answer = request.body(Bytes::copy_from_slice(sent.bytes)).send().await.map_err(unreached)?;
        match self.client.answered(answer).await {
            Ok(_) => Ok(Ok(())),
            Err(failure @ Failure::Answered { .. }) if !failure.is_passing() => {
                Ok(Err(BlobError::from(failure).to_string()))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn find_absence(&self, key: &ObjectKey) -> Result<(), BlobError> {
        match self.head(key, None).await {
            Err(BlobError::NotFound) => Ok(()),
            Err(error) => Err(doing("tell what is absent", error)),
            Ok(_) => Err(BlobError::Refused("it still has what it said it had deleted".into())),
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

    async fn find_parts(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let upload_id =
            self.begin(key, None).await.map_err(|error| doing("begin uploads in parts", error))?;
        let listed = self.parts(key, &upload_id).await;
        let known: Result<Vec<_>, _> = self.unfinished(key.as_str()).try_collect().await;
        self.abandon(key).await.map_err(|error| doing("abandon uploads in parts", error))?;
        listed.map_err(|error| doing("list the blocks of uploads", error))?;
        known.map_err(|error| doing("list unfinished uploads", error))?;
        Ok(())
    }

    async fn clear_left_behind(&self) -> Result<(), BlobError> {
        let folder = format!("{OWN}probe/");
        let old: Vec<Listed> = self.list(&folder, None).try_collect().await?;
        let keys: Vec<ObjectKey> = old
            .iter()
            .filter(|listed| listed.modified_at < self.now().saturating_sub(LEFT_BEHIND_MS))
            .filter_map(|listed| listed.key.strip_prefix(&folder).map(ObjectKey::probe))
            .collect();
        for outcome in self.delete_keys(&keys).await {
            outcome?;
        }
        Ok(())
    }
}
