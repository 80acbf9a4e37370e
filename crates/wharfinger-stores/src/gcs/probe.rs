//! Detects which uploads the store refuses when they differ from what was signed, and tests that we have every
//! permission that we need.

use super::GcsStore;
use super::call::Call;
use crate::http::{CallError, element, probe};
use crate::{BlobError, BlobStore as _, ProbeReport, PutGrant};
use wharfinger_lifecycle::key::ObjectKey;

impl GcsStore {
    pub(super) async fn run_probe(&self) -> Result<ProbeReport, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.detect_versioning(&mut notes).await?;
        let keys = probe::keys::<4>();
        let tested = self.detect_features(&keys).await;
        probe::finish(self, &keys, tested).await?;
        Ok(ProbeReport { clock_ahead_ms: self.client.skew.ahead_ms(), notes })
    }

    async fn detect_features(&self, keys: &[ObjectKey; 4]) -> Result<(), BlobError> {
        let mut signed = Vec::with_capacity(keys.len());
        for key in keys {
            let grant = PutGrant { checksum_sha256: None, ..probe::grant(key) };
            signed.push(self.sign_put_at(&self.client.endpoint, &grant)?);
        }
        probe::detect_enforcement(&self.client, &signed).await
    }

    async fn detect_versioning(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let answer = match self.client.send(Call::of_bucket().with("versioning", "")).await {
            Ok(answer) => answer.text().await.map_err(CallError::from)?,
            Err(error) if error.is_retryable() => return Err(error.into()),
            Err(error) => {
                let error = BlobError::from(error);
                notes.push(format!(
                    "cannot check whether the bucket keeps versions ({error}): assuming that it does not"
                ));
                return Ok(());
            }
        };
        let versioned = element(&answer, "Status").as_deref() == Some("Enabled");
        self.client.features.change(|features| features.versioned = versioned);
        if versioned {
            notes.push(
                "the bucket keeps versions: older versions stay there until a lifecycle rule deletes them"
                    .into(),
            );
        }
        Ok(())
    }
}
