//! Uploads in parts: begun, filled, listed in pages, joined under S3's rules, or abandoned.

use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use crate::bucket::{Bucket, Buckets, Object as Stored, Upload, hex, written};
use crate::objects::whole;

const PARTS_PER_PAGE: usize = 2;
const UPLOADS_PER_PAGE: usize = 3;
/// Of every part but the last.
const PART_BYTES_MIN: usize = 5 * 1024 * 1024;

fn upload<'a>(bucket: &'a mut Bucket, key: &str, upload_id: &str) -> S3Result<&'a mut Upload> {
    let upload = bucket.uploads.get_mut(&(key.to_owned(), upload_id.to_owned()));
    upload.ok_or_else(|| s3_error!(NoSuchUpload, "The specified upload does not exist"))
}

impl Buckets {
    pub(crate) fn begin(&self, input: CreateMultipartUploadInput) -> S3Result<CreateMultipartUploadOutput> {
        let upload_id = self.with(&input.bucket, |bucket| {
            bucket.uploads_begun += 1;
            let id = format!("upload+{}=", bucket.uploads_begun);
            let begun = std::time::SystemTime::now();
            let upload = Upload { content_type: input.content_type, begun, parts: Default::default() };
            bucket.uploads.insert((input.key.clone(), id.clone()), upload);
            id
        })?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload_id),
            ..Default::default()
        })
    }

    pub(crate) async fn put_part(&self, input: UploadPartInput) -> S3Result<UploadPartOutput> {
        if !(1..=10_000).contains(&input.part_number) {
            return Err(s3_error!(InvalidArgument, "Part number must be between 1 and 10000"));
        }
        let part = Stored::of(whole(input.body, input.content_length).await?, None);
        let e_tag = Some(ETag::Strong(part.etag.clone()));
        self.try_with(&input.bucket, |bucket| {
            let upload = upload(bucket, &input.key, &input.upload_id)?;
            upload.parts.insert(input.part_number, part);
            Ok(())
        })?;
        Ok(UploadPartOutput { e_tag, ..Default::default() })
    }

    pub(crate) fn parts(&self, input: ListPartsInput) -> S3Result<ListPartsOutput> {
        let after = input.part_number_marker.unwrap_or(0);
        let (page, next) = self.try_with(&input.bucket, |bucket| {
            let upload = upload(bucket, &input.key, &input.upload_id)?;
            let mut rest = upload.parts.range(after.saturating_add(1)..).peekable();
            let (mut page, mut last) = (Vec::new(), None);
            for (number, part) in rest.by_ref().take(PARTS_PER_PAGE) {
                last = Some(*number);
                page.push(Part {
                    part_number: Some(*number),
                    size: part.size(),
                    last_modified: part.modified(),
                    e_tag: Some(ETag::Strong(part.etag.clone())),
                    ..Default::default()
                });
            }
            Ok((page, last.filter(|_| rest.peek().is_some())))
        })?;
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            parts: Some(page),
            is_truncated: Some(next.is_some()),
            next_part_number_marker: next,
            ..Default::default()
        })
    }

    pub(crate) fn join(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let named = input.multipart_upload.and_then(|whole| whole.parts).unwrap_or_default();
        let etag = self.try_with(&input.bucket, |bucket| {
            let upload = upload(bucket, &input.key, &input.upload_id)?;
            if named.is_empty() {
                return Err(s3_error!(MalformedXML));
            }
            if named.windows(2).any(|pair| pair[0].part_number >= pair[1].part_number) {
                return Err(s3_error!(InvalidPartOrder));
            }
            let mut bytes = Vec::new();
            let mut sums = Vec::new();
            for (at, part) in named.iter().enumerate() {
                let held = part.part_number.and_then(|number| upload.parts.get(&number));
                let named_tag = part.e_tag.as_ref().map(ETag::value);
                let held = held.filter(|held| named_tag == Some(held.etag.as_str()));
                let held = held.ok_or_else(|| s3_error!(InvalidPart))?;
                if held.bytes.len() < PART_BYTES_MIN && at + 1 < named.len() {
                    return Err(s3_error!(EntityTooSmall));
                }
                sums.extend(Md5::checksum(&held.bytes));
                bytes.extend_from_slice(&held.bytes);
            }
            let mut object = Stored::of(bytes.into(), upload.content_type.clone());
            object.etag = format!("{}-{}", hex(&Md5::checksum(&sums)), named.len());
            let etag = object.etag.clone();
            bucket.uploads.remove(&(input.key.clone(), input.upload_id.clone()));
            bucket.objects.insert(input.key.clone(), object);
            Ok(etag)
        })?;
        Ok(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(ETag::Strong(etag)),
            ..Default::default()
        })
    }

    pub(crate) fn abandon(&self, input: &AbortMultipartUploadInput) -> S3Result<AbortMultipartUploadOutput> {
        self.try_with(&input.bucket, |bucket| {
            upload(bucket, &input.key, &input.upload_id)?;
            bucket.uploads.remove(&(input.key.clone(), input.upload_id.clone()));
            Ok(AbortMultipartUploadOutput::default())
        })
    }

    pub(crate) fn unfinished(
        &self,
        input: ListMultipartUploadsInput,
    ) -> S3Result<ListMultipartUploadsOutput> {
        let prefix = input.prefix.clone().unwrap_or_default();
        let encoding = input.encoding_type.as_ref();
        let after_key = input.key_marker.clone().unwrap_or_default();
        let after_id = input.upload_id_marker.clone();
        let (page, next) = self.with(&input.bucket, |bucket| {
            // A key's marker alone passes over all uploads of that key.
            let wanted = |key: &String, id: &String| {
                key.starts_with(&prefix)
                    && (*key > after_key
                        || (*key == after_key && after_id.as_ref().is_some_and(|after| id > after)))
            };
            let mut rest = bucket.uploads.iter().filter(|((key, id), _)| wanted(key, id)).peekable();
            let (mut page, mut last) = (Vec::new(), None);
            for ((key, id), upload) in rest.by_ref().take(UPLOADS_PER_PAGE) {
                last = Some((written(key, encoding), id.clone()));
                page.push(MultipartUpload {
                    key: Some(written(key, encoding)),
                    upload_id: Some(id.clone()),
                    initiated: Some(upload.begun.into()),
                    ..Default::default()
                });
            }
            (page, last.filter(|_| rest.peek().is_some()))
        })?;
        let is_truncated = Some(next.is_some());
        let (next_key_marker, next_upload_id_marker) = next.unzip();
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(written(&prefix, encoding)),
            uploads: Some(page),
            is_truncated,
            next_key_marker,
            next_upload_id_marker,
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }
}
