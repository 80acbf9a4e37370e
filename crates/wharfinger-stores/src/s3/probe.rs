//! Tries out what the store does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need. What it leaves behind it deletes, and what an earlier one left after a crash too.

use aws_sdk_s3::types::BucketVersioningStatus;
use wharfinger_lifecycle::key::ObjectKey;

use super::S3Store;
use super::error::{explain, from_sdk};
use crate::http::probe::{self, OTHER_BYTES, OTHER_TYPE, RIGHT, SHORT, Sent};
use crate::http::{Failure, Findings, element};
use crate::{BlobError, BlobStore as _, Probed};

impl S3Store {
    pub(super) async fn find_out(&self) -> Result<Probed, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.find_versions(&mut notes).await?;
        let keys = probe::keys::<1>();
        let found = self.find_bindings(&keys[0]).await;
        probe::finish(self, &keys, found).await?;
        let clock_ahead_ms = self.skew.ahead_ms();
        Ok(Probed { clock_ahead_ms, notes })
    }

    async fn find_versions(&self, notes: &mut Vec<String>) -> Result<(), BlobError> {
        let answer = self.client.get_bucket_versioning().bucket(&self.bucket).send().await;
        let versioned = match answer.map_err(|error| from_sdk(&error)) {
            Ok(answer) => matches!(
                answer.status(),
                Some(BucketVersioningStatus::Enabled | BucketVersioningStatus::Suspended)
            ),
            Err(error @ BlobError::Unavailable(_)) => return Err(error),
            Err(error) => {
                notes.push(format!(
                    "whether the bucket keeps versions is unknown ({error}): taken for one that does not"
                ));
                false
            }
        };
        self.learned.change(|learned| learned.versioned = versioned);
        if versioned {
            let list =
                self.client.list_object_versions().bucket(&self.bucket).prefix(&self.prefix).max_keys(1);
            list.send().await.map_err(|error| explain("list the versions of objects", &error))?;
        }
        Ok(())
    }

    async fn find_bindings(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let http = reqwest::Client::new();
        let all = Findings { binds_checksum: true, create_only: true, ..Findings::default() };
        // A store that does not know a condition refuses even what is right.
        let mut bind = all;
        for less in [
            all,
            Findings { create_only: false, ..all },
            Findings { binds_checksum: false, ..all },
            Findings::default(),
        ] {
            bind = less;
            match self.try_put(&http, key, bind, &RIGHT).await? {
                Ok(()) => break,
                Err(said) if !bind.create_only && !bind.binds_checksum => {
                    return Err(BlobError::Refused(format!("it will not let us write objects: {said}")));
                }
                Err(_) => {}
            }
        }
        // With what is right in place already, only a store that overwrites takes it again.
        let create_only = bind.create_only && self.try_put(&http, key, bind, &RIGHT).await?.is_err();
        let cases = [SHORT, OTHER_TYPE, OTHER_BYTES];
        let mut refused = [false; 3];
        let free = Findings { create_only: false, ..bind };
        for (case, refused) in cases.iter().zip(&mut refused) {
            *refused = self.try_put(&http, key, free, case).await?.is_err();
        }
        let [binds_size, binds_content_type, other_bytes] = refused;
        let versioned = self.head(key, None).await?.version_id.is_some();
        self.learned.change(|learned| {
            learned.binds_size = binds_size;
            learned.binds_content_type = binds_content_type;
            learned.binds_checksum = bind.binds_checksum && other_bytes;
            learned.create_only = create_only;
            learned.versioned |= versioned;
        });
        Ok(())
    }

    /// The inner error is the store's refusal.
    async fn try_put(
        &self,
        http: &reqwest::Client,
        key: &ObjectKey,
        bind: Findings,
        sent: &Sent<'_>,
    ) -> Result<Result<(), String>, BlobError> {
        let signed = self.sign_put_with(&self.client, &probe::grant(key), bind).await?;
        let answer = probe::request(http, &signed, sent).send().await;
        let answer = answer.map_err(Failure::from)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(Ok(()));
        }
        let text = answer.text().await.unwrap_or_default();
        let code = element(&text, "Code");
        let said = code.clone().unwrap_or_else(|| format!("HTTP {status}"));
        match status.as_u16() {
            429 | 500.. if code.as_deref() != Some("NotImplemented") => Err(BlobError::Unavailable(said)),
            _ => Ok(Err(said)),
        }
    }
}
