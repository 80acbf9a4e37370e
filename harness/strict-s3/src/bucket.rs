//! The server's data: buckets with objects and multipart uploads, in the order of their keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::{EncodingType, Timestamp};
use s3s::{S3Result, s3_error};

#[derive(Clone, Default)]
pub(crate) struct Buckets(Arc<Mutex<BTreeMap<String, Bucket>>>);

#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) objects: BTreeMap<String, Object>,
    /// By key and upload id, the order of the listing.
    pub(crate) uploads: BTreeMap<(String, String), Upload>,
    pub(crate) uploads_created: u64,
}

#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) content_type: Option<String>,
    pub(crate) etag: String,
    pub(crate) modified: SystemTime,
}

pub(crate) struct Upload {
    pub(crate) content_type: Option<String>,
    pub(crate) created: SystemTime,
    pub(crate) parts: BTreeMap<i32, Object>,
}

impl Buckets {
    pub(crate) fn create(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Bucket::default());
    }

    pub(crate) fn with<T>(&self, name: &str, act: impl FnOnce(&mut Bucket) -> T) -> S3Result<T> {
        self.try_with(name, |bucket| Ok(act(bucket)))
    }

    pub(crate) fn try_with<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut Bucket) -> S3Result<T>,
    ) -> S3Result<T> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.get_mut(name);
        act(bucket.ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?)
    }
}

impl Object {
    pub(crate) fn new(bytes: Bytes, content_type: Option<String>) -> Object {
        let etag = hex(&Md5::checksum(&bytes));
        Object { bytes, content_type, etag, modified: SystemTime::now() }
    }

    pub(crate) fn size(&self) -> Option<i64> {
        i64::try_from(self.bytes.len()).ok()
    }

    pub(crate) fn modified(&self) -> Option<Timestamp> {
        Some(self.modified.into())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<String> {
    let bytes = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

/// A key in a listing. Clients ask for encoded keys, because XML cannot contain all characters.
pub(crate) fn encode_key(key: &str, encoding: Option<&EncodingType>) -> String {
    if encoding.is_none_or(|encoding| encoding.as_str() != EncodingType::URL) {
        return key.to_owned();
    }
    key.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b' ' => out.push('+'),
            b'-' | b'_' | b'.' | b'*' | b'/' => out.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}
