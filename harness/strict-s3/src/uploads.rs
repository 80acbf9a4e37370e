//! Multipart uploads: create, upload parts, list in pages, complete by S3's rules, abort.

use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use crate::bucket::{Bucket, Buckets, Object as Stored, Upload, encode_key, hex};
use crate::objects::read_body;

const PARTS_PER_PAGE: usize = 2;
const UPLOADS_PER_PAGE: usize = 3;
/// The minimum for every part except the last.
const PART_BYTES_MIN: usize = 5 * 1024 * 1024;

fn find_upload<'a>(bucket: &'a mut Bucket, key: &str, upload_id: &str) -> S3Result<&'a mut Upload> {
    let upload = bucket.uploads.get_mut(&(key.to_owned(), upload_id.to_owned()));
    upload.ok_or_else(|| s3_error!(NoSuchUpload, "The specified upload does not exist"))
}

impl Buckets {
    pub(crate) fn create_upload(
        &self,
        input: CreateMultipartUploadInput,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let upload_id = self.with(&input.bucket, |bucket| {
            bucket.uploads_created += 1;
            let id = format!("upload+{}=", bucket.uploads_created);
            let created = std::time::SystemTime::now();
            let upload = Upload { content_type: input.content_type, created, parts: Default::default() };
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
        let part = Stored::new(read_body(input.body, input.content_length).await?, None);
        let e_tag = Some(ETag::Strong(part.etag.clone()));
        self.try_with(&input.bucket, |bucket| {
            let upload = find_upload(bucket, &input.key, &input.upload_id)?;
            upload.parts.insert(input.part_number, part);
            Ok(())
        })?;
        Ok(UploadPartOutput { e_tag, ..Default::default() })
    }

    pub(crate) fn list_parts(&self, input: ListPartsInput) -> S3Result<ListPartsOutput> {
        let after = input.part_number_marker.unwrap_or(0);
        let (page, next) = self.try_with(&input.bucket, |bucket| {
            let upload = find_upload(bucket, &input.key, &input.upload_id)?;
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

    pub(crate) fn complete_upload(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let etag = self.try_with(&input.bucket, |bucket| {
            let upload = find_upload(bucket, &input.key, &input.upload_id)?;
            if named.is_empty() {
                return Err(s3_error!(MalformedXML));
            }
            if named.windows(2).any(|pair| pair[0].part_number >= pair[1].part_number) {
                return Err(s3_error!(InvalidPartOrder));
            }
            let mut bytes = Vec::new();
            let mut sums = Vec::new();
            for (at, part) in named.iter().enumerate() {
                let stored = part.part_number.and_then(|number| upload.parts.get(&number));
                let named_tag = part.e_tag.as_ref().map(ETag::value);
                let stored = stored.filter(|stored| named_tag == Some(stored.etag.as_str()));
                let stored = stored.ok_or_else(|| s3_error!(InvalidPart))?;
                if stored.bytes.len() < PART_BYTES_MIN && at + 1 < named.len() {
                    return Err(s3_error!(EntityTooSmall));
                }
                sums.extend(Md5::checksum(&stored.bytes));
                bytes.extend_from_slice(&stored.bytes);
            }
            let mut object = Stored::new(bytes.into(), upload.content_type.clone());
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

    pub(crate) fn abort_upload(
        &self,
        input: &AbortMultipartUploadInput,
    ) -> S3Result<AbortMultipartUploadOutput> {
        self.try_with(&input.bucket, |bucket| {
            find_upload(bucket, &input.key, &input.upload_id)?;
            bucket.uploads.remove(&(input.key.clone(), input.upload_id.clone()));
            Ok(AbortMultipartUploadOutput::default())
        })
    }

    pub(crate) fn list_uploads(
        &self,
        input: ListMultipartUploadsInput,
    ) -> S3Result<ListMultipartUploadsOutput> {
        let prefix = input.prefix.clone().unwrap_or_default();
        let encoding = input.encoding_type.as_ref();
        let after_key = input.key_marker.clone().unwrap_or_default();
        let after_id = input.upload_id_marker.clone();
        let (page, next) = self.with(&input.bucket, |bucket| {
            // A key marker without an id marker skips all uploads of that key.
            let wanted = |key: &String, id: &String| {
                key.starts_with(&prefix)
                    && (*key > after_key
                        || (*key == after_key && after_id.as_ref().is_some_and(|after| id > after)))
            };
            let mut rest = bucket.uploads.iter().filter(|((key, id), _)| wanted(key, id)).peekable();
            let (mut page, mut last) = (Vec::new(), None);
            for ((key, id), upload) in rest.by_ref().take(UPLOADS_PER_PAGE) {
                last = Some((encode_key(key, encoding), id.clone()));
                page.push(MultipartUpload {
                    key: Some(encode_key(key, encoding)),
                    upload_id: Some(id.clone()),
                    initiated: Some(upload.created.into()),
                    ..Default::default()
                });
            }
            (page, last.filter(|_| rest.peek().is_some()))
        })?;
        let is_truncated = Some(next.is_some());
        let (next_key_marker, next_upload_id_marker) = next.unzip();
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(encode_key(&prefix, encoding)),
            uploads: Some(page),
            is_truncated,
            next_key_marker,
            next_upload_id_marker,
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }
}
