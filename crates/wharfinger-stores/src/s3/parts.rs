//! Multipart uploads: we start and complete them, clients send the parts through signed URLs.

use async_trait::async_trait;
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use futures::stream::{BoxStream, TryStreamExt as _};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::limits::MIB;

use super::error::{NOT_S3, from_sdk};
use super::list::to_unix_ms;
use super::{S3Store, to_signed};
use crate::http::list::{next_page, pages};
use crate::http::{absent_is_ok, object::unquoted};
use crate::{BlobError, MultipartStore, Part, PartGrant, PartLimits, SignedRequest, UnfinishedUpload};

const LIMITS: PartLimits = PartLimits {
    part_bytes_min: 5 * MIB,
    part_bytes_max: 5 * 1_024 * MIB,
    parts_max: 10_000,
    single_put_bytes_max: 5 * 1_024 * MIB,
};

#[async_trait]
impl MultipartStore for S3Store {
    fn limits(&self) -> PartLimits {
        LIMITS
    }

    async fn start(&self, key: &ObjectKey, content_type: Option<&str>) -> Result<String, BlobError> {
        let start = self.client.create_multipart_upload().bucket(&self.bucket).key(self.full(key));
        let started = start.set_content_type(content_type.map(str::to_owned)).send().await;
        let started = started.map_err(|error| from_sdk(&error))?;
        let id = started.upload_id().filter(|id| !id.is_empty()).map(str::to_owned);
        id.ok_or_else(|| BlobError::Unavailable("the store started an upload without an id".into()))
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        let part = self.public.upload_part().bucket(&self.bucket).key(self.full(&grant.key));
        let part = part
            .upload_id(&grant.upload_id)
            .part_number(i32::try_from(grant.number).unwrap_or(i32::MAX))
            .content_length(i64::try_from(grant.size).unwrap_or(i64::MAX));
        let presigned = part.presigned(self.presigning(grant.lifetime)?).await;
        Ok(to_signed("PUT", &presigned.map_err(|error| from_sdk(&error))?))
    }

    async fn list_parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        let list = self.client.list_parts().bucket(&self.bucket).key(self.full(key)).upload_id(upload_id);
        let pages = pages(None, move |after| {
            let list = list.clone().set_part_number_marker(after);
            async move {
                let page = list.send().await.map_err(|error| from_sdk(&error))?;
                if page.upload_id().is_none() {
                    return Err(BlobError::Unavailable(NOT_S3.into()));
                }
                let next = next_page(page.is_truncated(), page.next_part_number_marker)?;
                Ok((page.parts.unwrap_or_default(), next.map(Some)))
            }
        });
        let part = |part: aws_sdk_s3::types::Part| Part {
            number: part.part_number().and_then(|number| u32::try_from(number).ok()).unwrap_or(0),
            size: part.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
            etag: part.e_tag().map(unquoted).unwrap_or_default(),
        };
        let mut found: Vec<Part> = pages.map_ok(part).try_collect().await?;
        found.sort_by_key(|part| part.number);
        Ok(found)
    }

    async fn complete(
        &self,
        key: &ObjectKey,
        upload_id: &str,
        _content_type: Option<&str>,
        parts: &[Part],
    ) -> Result<(), BlobError> {
        let parts = parts.iter().map(|part| {
            CompletedPart::builder()
                .part_number(i32::try_from(part.number).unwrap_or(i32::MAX))
                .e_tag(format!("\"{}\"", part.etag))
                .build()
        });
        let whole = CompletedMultipartUpload::builder().set_parts(Some(parts.collect())).build();
        let complete = self.client.complete_multipart_upload().bucket(&self.bucket).key(self.full(key));
        match complete.upload_id(upload_id).multipart_upload(whole).send().await {
            Ok(completed) if completed.e_tag().is_some() => Ok(()),
            Ok(_) => Err(BlobError::Unavailable(NOT_S3.into())),
            Err(error) if matches!(error.code(), Some("InvalidPart" | "InvalidPartOrder")) => {
                Err(BlobError::NotFound)
            }
            Err(error) => Err(from_sdk(&error)),
        }
    }

    async fn abort(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        let abort = self.client.abort_multipart_upload().bucket(&self.bucket).key(self.full(key));
        absent_is_ok(abort.upload_id(upload_id).send().await.map_err(|error| from_sdk(&error)))
    }

    fn list_unfinished(&self, prefix: &str) -> BoxStream<'static, Result<UnfinishedUpload, BlobError>> {
        let full_prefix = format!("{}{prefix}", self.prefix);
        // Do not request encoded keys here: Ceph would encode them without saying so.
        let list = self.client.list_multipart_uploads().bucket(&self.bucket).prefix(full_prefix);
        let own = self.prefix.clone();
        pages((None, None), move |(after_key, after_upload)| {
            let list = list.clone().set_key_marker(after_key).set_upload_id_marker(after_upload);
            let own = own.clone();
            async move {
                let page = list.send().await.map_err(|error| from_sdk(&error))?;
                if page.bucket().is_none() {
                    return Err(BlobError::Unavailable(NOT_S3.into()));
                }
                let marker = page.next_key_marker.filter(|key| !key.is_empty());
                let next = next_page(page.is_truncated, marker)?;
                let found = page.uploads.unwrap_or_default().into_iter().filter_map(|upload| {
                    Some(UnfinishedUpload {
                        key: upload.key()?.strip_prefix(&own)?.to_owned(),
                        upload_id: upload.upload_id()?.to_owned(),
                        started_at: upload.initiated().map(to_unix_ms),
                    })
                });
                Ok((found.collect(), next.map(|key| (Some(key), page.next_upload_id_marker))))
            }
        })
    }
}
