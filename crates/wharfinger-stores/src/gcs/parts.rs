//! Multipart uploads of the XML API: we start and complete them, clients send the parts through signed URLs.

use async_trait::async_trait;
use futures::stream::{BoxStream, TryStreamExt as _};
use reqwest::Method;
use serde::Deserialize;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::limits::MIB;

use super::GcsStore;
use super::call::Call;
use super::list::to_unix_ms;
use super::sign::UnsignedRequest;
use crate::http::list::{next_page, pages};
use crate::http::{CallError, element, object};
use crate::{BlobError, MultipartStore, Part, PartGrant, PartLimits, SignedRequest, UnfinishedUpload};

const LIMITS: PartLimits = PartLimits {
    part_bytes_min: 5 * MIB,
    part_bytes_max: 5 * 1_024 * MIB,
    parts_max: 10_000,
    single_put_bytes_max: 5 * 1_024 * 1_024 * MIB,
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StartedUpload {
    upload_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartPage {
    /// Required, so that an answer that is not a list is not taken for an empty one.
    #[serde(rename = "UploadId")]
    _upload_id: String,
    #[serde(default)]
    part: Vec<PartEntry>,
    is_truncated: Option<bool>,
    next_part_number_marker: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartEntry {
    part_number: u32,
    size: u64,
    #[serde(rename = "ETag")]
    etag: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadPage {
    #[serde(rename = "Bucket")]
    _bucket: String,
    #[serde(default)]
    upload: Vec<UploadEntry>,
    is_truncated: Option<bool>,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadEntry {
    key: String,
    upload_id: String,
    initiated: Option<String>,
}

#[async_trait]
impl MultipartStore for GcsStore {
    fn limits(&self) -> PartLimits {
        LIMITS
    }

    async fn start(&self, key: &ObjectKey, content_type: Option<&str>) -> Result<String, BlobError> {
        let object = self.client.full(key);
        let start = Call::of(Method::POST, &object).with("uploads", "");
        let started: StartedUpload =
            self.client.get_xml(start.header_some("content-type", content_type)).await?;
        Ok(started.upload_id)
    }

    async fn sign_part(&self, grant: &PartGrant) -> Result<SignedRequest, BlobError> {
        let path = self.client.path(Some(&self.client.full(&grant.key)));
        let unsigned =
            self.client.unsigned_request("PUT", &self.client.public, &path, grant.lifetime.duration());
        let query = vec![("partNumber", grant.number.to_string()), ("uploadId", grant.upload_id.clone())];
        let url = self.client.service.sign(&UnsignedRequest { query, ..unsigned })?;
        Ok(SignedRequest { method: "PUT", url, headers: Vec::new() })
    }

    async fn list_parts(&self, key: &ObjectKey, upload_id: &str) -> Result<Vec<Part>, BlobError> {
        let object = self.client.full(key);
        let object = object.as_str();
        let pages = pages(None::<u32>, |after| async move {
            let after = after.map(|after| after.to_string());
            let list = Call::of(Method::GET, object).with("uploadId", upload_id);
            let page: PartPage = self.client.get_xml(list.with_some("part-number-marker", after)).await?;
            let next = next_page(page.is_truncated, page.next_part_number_marker)?;
            Ok((page.part, next.map(Some)))
        });
        let part = |part: PartEntry| Part {
            number: part.part_number,
            size: part.size,
            etag: object::unquoted(&part.etag),
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
        let object = self.client.full(key);
        let parts = parts.iter().map(|part| {
            format!("<Part><PartNumber>{}</PartNumber><ETag>\"{}\"</ETag></Part>", part.number, part.etag)
        });
        let list =
            format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.collect::<String>());
        let complete = Call::of(Method::POST, &object).with("uploadId", upload_id).body(list);
        match self.client.send(complete).await {
            Ok(answer) => {
                let body = answer.text().await.map_err(CallError::from)?;
                // An answer with status 200 can still contain an error.
                match element(&body, "Code") {
                    Some(code) => Err(BlobError::Unavailable(code)),
                    None => Ok(()),
                }
            }
            Err(error) if matches!(error.code.as_str(), "InvalidPart" | "InvalidPartOrder") => {
                Err(BlobError::NotFound)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn abort(&self, key: &ObjectKey, upload_id: &str) -> Result<(), BlobError> {
        let object = self.client.full(key);
        let abort = Call::of(Method::DELETE, &object).with("uploadId", upload_id);
        self.client.delete(abort).await
    }

    fn list_unfinished(&self, prefix: &str) -> BoxStream<'static, Result<UnfinishedUpload, BlobError>> {
        let client = self.client.clone();
        let full_prefix = format!("{}{prefix}", client.prefix);
        pages((None::<String>, None::<String>), move |(after_key, after_upload)| {
            let client = client.clone();
            let list = Call::of_bucket().with("uploads", "").with("prefix", full_prefix.as_str());
            let list = list.with_some("key-marker", after_key).with_some("upload-id-marker", after_upload);
            async move {
                let page: UploadPage = client.get_xml(list).await?;
                let next = next_page(page.is_truncated, page.next_key_marker)?;
                let found = page.upload.into_iter().filter_map(|upload| {
                    Some(UnfinishedUpload {
                        key: upload.key.strip_prefix(&client.prefix)?.to_owned(),
                        upload_id: upload.upload_id,
                        started_at: upload.initiated.as_deref().and_then(to_unix_ms),
                    })
                });
                Ok((found.collect(), next.map(|key| (Some(key), page.next_upload_id_marker))))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::super::sign::Signer;
    use super::*;
    use crate::http;

    fn from_xml<T: DeserializeOwned>(xml: &str) -> Result<T, CallError> {
        http::from_xml::<Signer, T>(xml)
    }

    #[test]
    fn the_documented_answers_are_parsed() {
        let started = "<InitiateMultipartUploadResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>\
            <Bucket>box</Bucket><Key>w/f</Key><UploadId>VXBsb2FkSWQ=</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(from_xml::<StartedUpload>(started).expect("started").upload_id, "VXBsb2FkSWQ=");
        let parts = "<ListPartsResult><Bucket>box</Bucket><Key>w/f</Key><UploadId>u</UploadId>\
            <PartNumberMarker>0</PartNumberMarker><NextPartNumberMarker>2</NextPartNumberMarker>\
            <MaxParts>1000</MaxParts><IsTruncated>true</IsTruncated>\
            <Part><PartNumber>2</PartNumber><LastModified>2021-11-10T20:48:34.000Z</LastModified>\
            <ETag>\"7778aef8\"</ETag><Size>10485760</Size></Part></ListPartsResult>";
        let page = from_xml::<PartPage>(parts).expect("parts");
        assert_eq!((page.part[0].part_number, page.part[0].size), (2, 10_485_760));
        assert_eq!((page.part[0].etag.as_str(), page.next_part_number_marker), ("\"7778aef8\"", Some(2)));
        let uploads = "<ListMultipartUploadsResult><Bucket>box</Bucket><KeyMarker></KeyMarker>\
            <UploadIdMarker></UploadIdMarker><NextKeyMarker>w/f</NextKeyMarker>\
            <NextUploadIdMarker>u</NextUploadIdMarker><MaxUploads>1</MaxUploads><IsTruncated>true</IsTruncated>\
            <Upload><Key>w/f</Key><UploadId>u</UploadId><StorageClass>STANDARD</StorageClass>\
            <Initiated>1970-01-01T00:00:05.000Z</Initiated></Upload></ListMultipartUploadsResult>";
        let page = from_xml::<UploadPage>(uploads).expect("uploads");
        assert_eq!(page.upload[0].initiated.as_deref().and_then(to_unix_ms), Some(5_000));
        assert_eq!(page.next_upload_id_marker.as_deref(), Some("u"));
        assert!(from_xml::<UploadPage>("<html></html>").is_err());
        assert!(from_xml::<PartPage>("<html></html>").is_err());
    }
}
