//! Tries out what the store does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need. What it leaves behind it deletes, and what an earlier one left after a crash too.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use wharfinger_lifecycle::key::{OWN, ObjectKey};

use super::super::answer::{doing, element};
use super::super::{BlobError, BlobStore as _, Listed, PartStore as _, Probed, PutGrant, UrlLife};
use super::GcsStore;
use super::call::Call;
use super::error::{Failure, unreached};

const BYTES: &[u8] = b"wharfinger tries";
const TYPE: &str = "text/plain";
const LIFE: UrlLife = UrlLife { signed_at: 0, expires_at: 600_000 };
/// A probe that is older than this by the store's clock is not under way any more.
const LEFT_BEHIND_MS: i64 = 3_600_000;

impl GcsStore {
    pub(super) async fn find_out(&self) -> Result<Probed, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.find_versions(&mut notes).await?;
        let name = uuid::Uuid::new_v4().to_string();
        // No object can be put twice, so each try has one of its own.
        let keys: Vec<ObjectKey> = (0..3).map(|n| ObjectKey::probe(&format!("{name}-{n}"))).collect();
        let found = self.find_bindings(&keys).await;
        let gone = self.delete_many(&keys).await.into_iter().collect::<Result<Vec<()>, BlobError>>();
        found?;
        gone.map_err(|error| doing("delete objects", error))?;
        match self.head(&keys[0], None).await {
            Err(BlobError::NotFound) => {}
            Err(error) => return Err(doing("tell what is absent", error)),
            Ok(_) => return Err(BlobError::Refused("it still has what it said it had deleted".into())),
        }
        self.find_parts(&keys[0]).await?;
        self.clear_left_behind().await?;
        Ok(Probed { clock_ahead_ms: self.client.skew.ahead_ms(), notes })
    }

    async fn find_versions(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let answer = match self.client.send(Call::of_bucket().with("versioning", "")).await {
            Ok(answer) => answer.text().await.map_err(unreached)?,
            Err(failure) if failure.is_passing() => return Err(failure.into()),
            Err(failure) => {
                let error = BlobError::from(failure);
                notes.push(format!(
                    "whether the bucket keeps versions is unknown ({error}): taken for one that does not"
                ));
                return Ok(());
            }
        };
        let versioned = element(&answer, "Status").as_deref() == Some("Enabled");
        self.learn(|learned| learned.versioned = versioned);
        if versioned {
            notes.push(
                "the bucket keeps versions: what others overwrite there stays until a lifecycle rule takes it"
                    .into(),
            );
        }
        Ok(())
    }

    async fn find_bindings(&self, keys: &[ObjectKey]) -> Result<(), BlobError> {
        let [right, short, other_type] = keys else {
            return Err(BlobError::Refused("a probe needs three keys".into()));
        };
        if let Err(said) = self.try_put(right, BYTES, TYPE).await? {
            return Err(BlobError::Refused(format!("it will not let us write objects: {said}")));
        }
        // With what is right in place already, only a store that overwrites takes it again.
        let create_only = self.try_put(right, BYTES, TYPE).await?.is_err();
        let short = self.try_put(short, &BYTES[1..], TYPE).await?;
        let other_type = self.try_put(other_type, BYTES, "text/html").await?;
        self.learn(|learned| {
            learned.create_only = create_only;
            learned.binds_size = short.is_err();
            learned.binds_content_type = other_type.is_err();
        });
        Ok(())
    }

    /// The inner error is the store's refusal.
    async fn try_put(
        &self,
        key: &ObjectKey,
        bytes: &[u8],
        content_type: &str,
    ) -> Result<Result<(), String>, BlobError> {
        let grant = PutGrant {
            key: key.clone(),
            size: BYTES.len() as u64,
            content_type: Some(TYPE.into()),
            checksum_sha256: None,
            life: LIFE,
        };
        let signed = self.sign_put_at(&self.client.endpoint, &grant)?;
        let mut request = self.client.http.put(&signed.url).timeout(Duration::from_secs(20));
        for (name, value) in signed.headers.iter().filter(|(name, _)| name != "content-type") {
            request = request.header(name, value);
        }
        let request = request.header("content-type", content_type).header("content-length", bytes.len());
        let answer = request.body(Bytes::copy_from_slice(bytes)).send().await.map_err(unreached)?;
        match self.client.answered(answer).await {
            Ok(_) => Ok(Ok(())),
            Err(failure @ Failure::Answered { .. }) if !failure.is_passing() => {
                Ok(Err(BlobError::from(failure).to_string()))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn find_parts(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let upload_id =
            self.begin(key, None).await.map_err(|error| doing("begin uploads in parts", error))?;
        let listed = self.parts(key, &upload_id).await;
        let known: Result<Vec<_>, _> = self.unfinished(key.as_str()).try_collect().await;
        self.abandon_one(key, &upload_id).await.map_err(|error| doing("abort uploads in parts", error))?;
        listed.map_err(|error| doing("list the parts of uploads", error))?;
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
        for outcome in self.delete_many(&keys).await {
            outcome?;
        }
        Ok(())
    }
}
