//! Tries out what the store does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need.

use wharfinger_lifecycle::key::ObjectKey;

use super::super::answer::{doing, element};
use super::super::trial::{self, OTHER_TYPE, RIGHT, SHORT, Sent};
use super::super::{BlobError, BlobStore as _, Probed, PutGrant};
use super::GcsStore;
use super::call::Call;
use super::error::{Failure, unreached};

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
        trial::find_absence(self, &keys[0]).await?;
        trial::find_parts(self, &keys[0]).await?;
        trial::clear_left_behind(self).await?;
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
        if let Err(said) = self.try_put(right, &RIGHT).await? {
            return Err(BlobError::Refused(format!("it will not let us write objects: {said}")));
        }
        // With what is right in place already, only a store that overwrites takes it again.
        let create_only = self.try_put(right, &RIGHT).await?.is_err();
        let short = self.try_put(short, &SHORT).await?;
        let other_type = self.try_put(other_type, &OTHER_TYPE).await?;
        self.learn(|learned| {
            learned.create_only = create_only;
            learned.binds_size = short.is_err();
            learned.binds_content_type = other_type.is_err();
        });
        Ok(())
    }

    /// The inner error is the store's refusal.
    async fn try_put(&self, key: &ObjectKey, sent: &Sent<'_>) -> Result<Result<(), String>, BlobError> {
        let grant = PutGrant { checksum_sha256: None, ..trial::grant(key) };
        let signed = self.sign_put_at(&self.client.endpoint, &grant)?;
        let answer = trial::request(&self.client.http, &signed, sent).send().await.map_err(unreached)?;
        match self.client.answered(answer).await {
            Ok(_) => Ok(Ok(())),
            Err(failure @ Failure::Answered { .. }) if !failure.is_passing() => {
                Ok(Err(BlobError::from(failure).to_string()))
            }
            Err(failure) => Err(failure.into()),
        }
    }
}
