//! Detects which uploads the store refuses when they differ from what was signed, and tests that we have every
//! permission that we need. It deletes its objects, and also those of an earlier probe that crashed.

use aws_sdk_s3::types::BucketVersioningStatus;
use wharfinger_lifecycle::key::ObjectKey;

use super::S3Store;
use super::error::{from_sdk, from_sdk_while};
use crate::http::probe::{self, TOO_SHORT, TestUpload, VALID, WRONG_BYTES, WRONG_TYPE};
use crate::http::{CallError, Features, element};
use crate::{BlobError, BlobStore as _, ProbeReport};

impl S3Store {
    pub(super) async fn run_probe(&self) -> Result<ProbeReport, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.detect_versioning(&mut notes).await?;
        let keys = probe::keys::<1>();
        let tested = self.detect_enforcement(&keys[0]).await;
        probe::finish(self, &keys, tested).await?;
        let clock_ahead_ms = self.skew.ahead_ms();
        Ok(ProbeReport { clock_ahead_ms, notes })
    }

    async fn detect_versioning(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let answer = self.client.get_bucket_versioning().bucket(&self.bucket).send().await;
        let versioned = match answer.map_err(|error| from_sdk(&error)) {
            Ok(answer) => matches!(
                answer.status(),
                Some(BucketVersioningStatus::Enabled | BucketVersioningStatus::Suspended)
            ),
            Err(error @ BlobError::Unavailable(_)) => return Err(error),
            Err(error) => {
                notes.push(format!(
                    "cannot check whether the bucket keeps versions ({error}): assuming that it does not"
                ));
                false
            }
        };
        self.features.change(|features| features.versioned = versioned);
        if versioned {
            let list =
                self.client.list_object_versions().bucket(&self.bucket).prefix(&self.prefix).max_keys(1);
            list.send().await.map_err(|error| from_sdk_while("list the versions of objects", &error))?;
        }
        Ok(())
    }

    async fn detect_enforcement(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let http = reqwest::Client::new();
        let all = Features { enforces_checksum: true, create_only: true, ..Features::default() };
        // Some stores refuse even valid uploads with a condition that they do not know, so sets with fewer follow.
        let mut conditions = all;
        for set in [
            all,
            Features { create_only: false, ..all },
            Features { enforces_checksum: false, ..all },
            Features::default(),
        ] {
            conditions = set;
            match self.try_put(&http, key, conditions, &VALID).await? {
                Ok(()) => break,
                Err(refusal) if !conditions.create_only && !conditions.enforces_checksum => {
                    return Err(BlobError::Refused(format!("cannot write objects: {refusal}")));
                }
                Err(_) => {}
            }
        }
        // The object exists now, so only a store that overwrites accepts it again.
        let create_only =
            conditions.create_only && self.try_put(&http, key, conditions, &VALID).await?.is_err();
        let cases = [TOO_SHORT, WRONG_TYPE, WRONG_BYTES];
        let mut refused = [false; 3];
        let overwriting = Features { create_only: false, ..conditions };
        for (case, refused) in cases.iter().zip(&mut refused) {
            *refused = self.try_put(&http, key, overwriting, case).await?.is_err();
        }
        let [enforces_size, enforces_content_type, refuses_wrong_bytes] = refused;
        let versioned = self.head(key, None).await?.version_id.is_some();
        self.features.change(|features| {
            features.enforces_size = enforces_size;
            features.enforces_content_type = enforces_content_type;
            features.enforces_checksum = conditions.enforces_checksum && refuses_wrong_bytes;
            features.create_only = create_only;
            features.versioned |= versioned;
        });
        Ok(())
    }

    /// The inner error is the store's refusal.
    async fn try_put(
        &self,
        http: &reqwest::Client,
        key: &ObjectKey,
        conditions: Features,
        upload: &TestUpload<'_>,
    ) -> Result<Result<(), String>, BlobError> {
        let signed = self.sign_put_with(&self.client, &probe::grant(key), conditions).await?;
        let answer = probe::request(http, &signed, upload).send().await;
        let answer = answer.map_err(CallError::from)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(Ok(()));
        }
        let text = answer.text().await.unwrap_or_default();
        let code = element(&text, "Code");
        let refusal = code.clone().unwrap_or_else(|| format!("HTTP {status}"));
        match status.as_u16() {
            429 | 500.. if code.as_deref() != Some("NotImplemented") => Err(BlobError::Unavailable(refusal)),
            _ => Ok(Err(refusal)),
        }
    }
}
