//! Objects: put, get, list and delete, with the conditions of S3.

use bytes::Bytes;
use futures::TryStreamExt as _;
use s3s::checksum::ChecksumHasher;
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use crate::bucket::{Bucket, Buckets, Object as Stored, encode_key, hex, unhex};

/// A server may return fewer keys than requested. So listings have several pages without thousands of keys.
pub const KEYS_PER_PAGE: usize = 7;
const DELETE_MAX: usize = 1_000;

pub(crate) async fn read_body(body: Option<StreamingBlob>, length: Option<i64>) -> S3Result<Bytes> {
    let body = body.ok_or_else(|| s3_error!(IncompleteBody))?;
    let chunks: Vec<Bytes> = body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
    let bytes = chunks.concat();
    match length {
        Some(length) if usize::try_from(length) == Ok(bytes.len()) => Ok(bytes.into()),
        Some(_) => Err(s3_error!(IncompleteBody)),
        None => Err(s3_error!(MissingContentLength)),
    }
}

fn is_met(condition: &ETagCondition, found: Option<&Stored>) -> bool {
    match (condition, found) {
        (_, None) => false,
        (ETagCondition::Any, Some(_)) => true,
        (ETagCondition::ETag(etag), Some(found)) => etag.value() == found.etag,
    }
}

fn find<'a>(bucket: &'a Bucket, key: &str) -> S3Result<&'a Stored> {
    bucket.objects.get(key).ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist"))
}

impl Buckets {
    pub(crate) async fn put(&self, input: PutObjectInput) -> S3Result<PutObjectOutput> {
        let bytes = read_body(input.body, input.content_length).await?;
        let mut hasher = ChecksumHasher { sha256: Some(Default::default()), ..Default::default() };
        hasher.update(&bytes);
        if input.checksum_sha256.is_some() && input.checksum_sha256 != hasher.finalize().checksum_sha256 {
            return Err(s3_error!(
                BadDigest,
                "The SHA256 you specified did not match the calculated checksum"
            ));
        }
        let object = Stored::new(bytes, input.content_type);
        let e_tag = Some(ETag::Strong(object.etag.clone()));
        self.try_with(&input.bucket, |bucket| {
            let before = bucket.objects.get(&input.key);
            if input.if_none_match.is_some_and(|condition| is_met(&condition, before)) {
                return Err(s3_error!(PreconditionFailed));
            }
            bucket.objects.insert(input.key, object);
            Ok(())
        })?;
        Ok(PutObjectOutput { e_tag, ..Default::default() })
    }

    pub(crate) fn head(&self, input: &HeadObjectInput) -> S3Result<HeadObjectOutput> {
        let object = self.try_with(&input.bucket, |bucket| find(bucket, &input.key).cloned())?;
        if input.version_id.is_some() {
            return Err(s3_error!(NoSuchVersion));
        }
        Ok(HeadObjectOutput {
            content_length: object.size(),
            last_modified: object.modified(),
            content_type: object.content_type,
            e_tag: Some(ETag::Strong(object.etag)),
            ..Default::default()
        })
    }

    pub(crate) fn get(&self, input: &GetObjectInput) -> S3Result<GetObjectOutput> {
        let object = self.try_with(&input.bucket, |bucket| find(bucket, &input.key).cloned())?;
        if input.version_id.is_some() {
            return Err(s3_error!(NoSuchVersion));
        }
        if input.if_match.as_ref().is_some_and(|condition| !is_met(condition, Some(&object))) {
            return Err(s3_error!(PreconditionFailed));
        }
        let size = object.bytes.len() as u64;
        let range = input.range.as_ref().map(|range| range.check(size)).transpose()?;
        let content_range =
            range.as_ref().map(|range| format!("bytes {}-{}/{size}", range.start, range.end - 1));
        let bytes = match range {
            Some(range) => object.bytes.slice(range.start as usize..range.end as usize),
            None => object.bytes.clone(),
        };
        Ok(GetObjectOutput {
            content_length: i64::try_from(bytes.len()).ok(),
            content_range,
            last_modified: object.modified(),
            content_type: object.content_type,
            e_tag: Some(ETag::Strong(object.etag)),
            body: Some(s3s::Body::from(bytes).into()),
            ..Default::default()
        })
    }

    pub(crate) fn delete(&self, input: &DeleteObjectInput) -> S3Result<DeleteObjectOutput> {
        self.with(&input.bucket, |bucket| bucket.objects.remove(&input.key))?;
        Ok(DeleteObjectOutput::default())
    }

    pub(crate) fn delete_many(&self, input: DeleteObjectsInput) -> S3Result<DeleteObjectsOutput> {
        let named = input.delete.objects;
        if named.is_empty() || named.len() > DELETE_MAX {
            return Err(s3_error!(MalformedXML));
        }
        let deleted = self.with(&input.bucket, |bucket| {
            let delete = |named: ObjectIdentifier| {
                bucket.objects.remove(&named.key);
                DeletedObject { key: Some(named.key), version_id: named.version_id, ..Default::default() }
            };
            named.into_iter().map(delete).collect::<Vec<_>>()
        })?;
        Ok(DeleteObjectsOutput { deleted: Some(deleted), ..Default::default() })
    }

    pub(crate) fn list(&self, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
        let prefix = input.prefix.clone().unwrap_or_default();
        // The token is the last key of the previous page, in hexadecimal digits, because XML cannot contain all keys.
        let token = input.continuation_token.as_deref();
        let token = token.map(|token| unhex(token).ok_or_else(|| s3_error!(InvalidArgument))).transpose()?;
        let after = token.or_else(|| input.start_after.clone());
        let most = input.max_keys.and_then(|most| usize::try_from(most).ok()).unwrap_or(KEYS_PER_PAGE);
        let most = most.min(KEYS_PER_PAGE);
        let encoding = input.encoding_type.as_ref();
        let (page, next) = self.with(&input.bucket, |bucket| {
            let wanted =
                |key: &String| key.starts_with(&prefix) && after.as_ref().is_none_or(|after| key > after);
            let mut rest = bucket.objects.iter().filter(|(key, _)| wanted(key)).peekable();
            let (mut page, mut last) = (Vec::new(), None);
            for (key, object) in rest.by_ref().take(most) {
                last = Some(key.clone());
                page.push(Object {
                    key: Some(encode_key(key, encoding)),
                    size: object.size(),
                    last_modified: object.modified(),
                    e_tag: Some(ETag::Strong(object.etag.clone())),
                    ..Default::default()
                });
            }
            (page, last.filter(|_| rest.peek().is_some()))
        })?;
        Ok(ListObjectsV2Output {
            key_count: i32::try_from(page.len()).ok(),
            max_keys: input.max_keys.or(Some(1_000)),
            contents: Some(page),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next.map(|key| hex(key.as_bytes())),
            continuation_token: input.continuation_token,
            name: Some(input.bucket),
            prefix: Some(encode_key(&prefix, encoding)),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }
}
