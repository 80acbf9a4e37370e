//! Tries out what the store does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need.

use super::GcsStore;
use super::call::Call;
use crate::http::{Failure, element, probe};
use crate::{BlobError, BlobStore as _, Probed, PutGrant};
use wharfinger_lifecycle::key::ObjectKey;

impl GcsStore {
    pub(super) async fn find_out(&self) -> Result<Probed, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.find_versions(&mut notes).await?;
        let keys = probe::keys::<4>();
        let found = self.find_caps(&keys).await;
        probe::finish(self, &keys, found).await?;
        Ok(Probed { clock_ahead_ms: self.client.skew.ahead_ms(), notes })
    }

    async fn find_caps(&self, keys: &[ObjectKey; 4]) -> Result<(), BlobError> {
        let mut signed = Vec::with_capacity(keys.len());
        for key in keys {
            let grant = PutGrant { checksum_sha256: None, ..probe::grant(key) };
            signed.push(self.sign_put_at(&self.client.endpoint, &grant)?);
        }
        probe::find_bindings(&self.client, &signed).await
    }

    async fn find_versions(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let answer = match self.client.send(Call::of_bucket().with("versioning", "")).await {
            Ok(answer) => answer.text().await.map_err(Failure::from)?,
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
        self.client.learned.change(|learned| learned.versioned = versioned);
        if versioned {
            notes.push(
                "the bucket keeps versions: what others overwrite there stays until a lifecycle rule takes it"
                    .into(),
            );
        }
        Ok(())
    }
}
