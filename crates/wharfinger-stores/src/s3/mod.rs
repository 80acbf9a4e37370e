//! Objects in S3 and compatible stores. Clients use signed URLs and talk to the store directly. The probe at the start
//! detects what the store enforces.

mod connect;
mod delete;
mod error;
mod list;
mod parts;
mod probe;
mod skew;

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::presigning::{PresignedRequest, PresigningConfig};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::EncodingType;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::from_hex;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use crate::http::object::{self, unquoted};
use crate::http::{Features, SharedFeatures};
use crate::skew::Skew;
use crate::{
    BlobError, BlobStore, Capabilities, Chunks, GetGrant, ListedObject, MultipartStore, ObjectMeta,
    ProbeReport, PutGrant, SignedRequest, UrlLifetime, WriteMode, effective_encoding,
};
pub use connect::{S3Credentials, S3Options, http_client};
use error::{NOT_S3, from_sdk, from_sdk_while};

/// The most keys in one bulk delete.
const DELETE_BATCH_MAX: usize = 1_000;

pub struct S3Store {
    bucket: String,
    /// The prefix of every key. Empty, or it ends in a slash.
    prefix: String,
    client: Client,
    /// Signs URLs for clients. The signature covers the public address.
    public: Client,
    skew: Arc<Skew>,
    features: SharedFeatures,
}

impl S3Store {
    /// Makes no request to the store.
    pub async fn connect(options: &S3Options) -> Result<S3Store, BlobError> {
        let skew = Arc::new(Skew::default());
        let (client, public) = connect::clients(options, &skew).await?;
        Ok(S3Store {
            bucket: options.bucket.clone(),
            prefix: options.prefix.clone(),
            client,
            public,
            skew,
            features: SharedFeatures::default(),
        })
    }

    fn full(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Dated by the store's clock: with a wrong clock of this machine, the URL would expire at another time.
    fn presigning(&self, lifetime: UrlLifetime) -> Result<PresigningConfig, BlobError> {
        PresigningConfig::builder()
            .start_time(self.skew.store_time())
            .expires_in(lifetime.duration())
            .build()
            .map_err(|error| BlobError::Refused(error.to_string()))
    }

    /// Signs a PUT with the given conditions only: some stores refuse requests with conditions that they do not know.
    async fn sign_put_with(
        &self,
        client: &Client,
        grant: &PutGrant,
        conditions: Features,
    ) -> Result<SignedRequest, BlobError> {
        let mut put = client.put_object().bucket(&self.bucket).key(self.full(&grant.key));
        put = put.content_length(grant.size as i64).set_content_type(grant.content_type.clone());
        if let Some(sum) =
            grant.checksum_sha256.as_deref().and_then(from_hex).filter(|_| conditions.enforces_checksum)
        {
            put = put.checksum_sha256(STANDARD.encode(sum));
        }
        if conditions.create_only {
            put = put.if_none_match("*");
        }
        let presigned = put.presigned(self.presigning(grant.lifetime)?).await;
        Ok(to_signed("PUT", &presigned.map_err(|error| from_sdk(&error))?))
    }
}

fn to_signed(method: &'static str, presigned: &PresignedRequest) -> SignedRequest {
    // Every client sends the length and the host by itself, and browsers do not allow setting them.
    let is_automatic = |name: &str| matches!(name, "content-length" | "host");
    let headers = presigned.headers().filter(|(name, _)| !is_automatic(name));
    SignedRequest {
        method,
        url: presigned.uri().to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    }
}

#[async_trait]
impl BlobStore for S3Store {
    fn kind(&self) -> &'static str {
        "s3"
    }

    fn capabilities(&self) -> Capabilities {
        self.features.get().capabilities(DELETE_BATCH_MAX)
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_with(&self.public, grant, self.features.get()).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let get = self.public.get_object().bucket(&self.bucket).key(self.full(&grant.key));
        let get = get
            .set_version_id(grant.pin.version_id.clone())
            .response_content_disposition(grant.content_disposition())
            // Clients get the bytes as they are stored, whatever encoding the uploader set.
            .response_content_encoding("identity")
            .set_response_content_type(grant.content_type.clone());
        let presigned = get.presigned(self.presigning(grant.lifetime)?).await;
        Ok(to_signed("GET", &presigned.map_err(|error| from_sdk(&error))?))
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let head = self.client.head_object().bucket(&self.bucket).key(self.full(key));
        let answer = match head.set_version_id(version_id.map(str::to_owned)).send().await {
            Ok(answer) => answer,
            // The answer to a HEAD has no body, so the bucket may be missing. A GET shows which one it is.
            Err(error) if error.raw_response().is_some_and(|raw| raw.status().as_u16() == 404) => {
                return self.confirm_absence(key, version_id).await;
            }
            Err(error) => return Err(from_sdk(&error)),
        };
        let etag = answer.e_tag().map(unquoted).filter(|etag| !etag.is_empty());
        let version_id = answer.version_id().filter(|id| *id != "null").map(str::to_owned);
        if version_id.is_some() && !self.features.get().versioned {
            self.features.change(|features| features.versioned = true);
        }
        match (answer.content_length(), etag) {
            (Some(size), Some(etag)) => Ok(ObjectMeta {
                size: u64::try_from(size).unwrap_or(0),
                etag,
                version_id,
                modified_at: answer.last_modified().map(list::to_unix_ms),
                content_encoding: effective_encoding(answer.content_encoding()),
            }),
            _ => Err(BlobError::Unavailable(NOT_S3.into())),
        }
    }

    async fn get(
        &self,
        key: &ObjectKey,
        pin: &Pin,
        start: u64,
        length: Option<u64>,
    ) -> Result<Chunks, BlobError> {
        if length == Some(0) {
            return object::empty_range(self, key, pin).await;
        }
        let get = self.client.get_object().bucket(&self.bucket).key(self.full(key));
        let get = get.set_version_id(pin.version_id.clone()).set_range(object::range(start, length));
        let answer = match get.if_match(format!("\"{}\"", pin.etag)).send().await {
            Ok(answer) => answer,
            Err(error) if error.code() == Some("InvalidRange") => return Ok(stream::empty().boxed()),
            Err(error) => return Err(from_sdk(&error)),
        };
        match answer.e_tag().map(unquoted) {
            Some(etag) if etag == pin.etag => Ok(chunks(answer.body)),
            // Some stores ignore the condition and return another object.
            Some(_) => Err(BlobError::Changed),
            None => Err(BlobError::Unavailable(NOT_S3.into())),
        }
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError> {
        let mut put = self.client.put_object().bucket(&self.bucket).key(self.full(key));
        if mode == WriteMode::CreateOnly {
            if !self.features.get().create_only {
                match self.head(key, None).await {
                    Ok(_) => return Err(BlobError::Changed),
                    Err(BlobError::NotFound) => {}
                    Err(unknown) => return Err(unknown),
                }
            }
            put = put.set_if_none_match(self.features.get().create_only.then(|| "*".into()));
        }
        let answer = put.body(ByteStream::from(bytes)).send().await.map_err(|error| from_sdk(&error))?;
        // A success without an ETag comes from something else than S3, so the object may not be stored.
        answer.e_tag().map(drop).ok_or_else(|| BlobError::Unavailable(NOT_S3.into()))
    }

    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        self.delete_keys(keys).await
    }

    /// Sends no condition, because some compatible stores ignore conditions on deletes. If all versions are to be
    /// deleted, the newest must be the one in `seen`.
    async fn delete_if_unchanged(
        &self,
        seen: &[(ObjectKey, ObjectMeta)],
        with_older: bool,
    ) -> Vec<Result<(), BlobError>> {
        if with_older {
            let keys = seen.iter().map(|(key, meta)| (self.full(key), meta.version_id.clone()));
            return self.delete_whole(keys.collect()).await;
        }
        self.delete_newest(seen.iter().map(|(key, _)| self.full(key))).await
    }

    fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
    ) -> BoxStream<'static, Result<ListedObject, BlobError>> {
        list::objects(self, prefix, start_after)
    }

    fn now(&self) -> UnixMs {
        self.skew.store_now()
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        let list = self.client.list_objects_v2().bucket(&self.bucket).prefix(&self.prefix).max_keys(1);
        // The first key can contain characters that XML cannot.
        let list = list.encoding_type(EncodingType::Url);
        let answer = list.send().await.map_err(|error| from_sdk_while("list the bucket", &error))?;
        // An answer that is not a listing can parse as an empty one.
        match answer.name() {
            Some(_) => Ok(()),
            None => Err(BlobError::Unavailable(NOT_S3.into())),
        }
    }

    async fn probe(&self) -> Result<ProbeReport, BlobError> {
        self.run_probe().await
    }
}

impl S3Store {
    async fn confirm_absence(
        &self,
        key: &ObjectKey,
        version_id: Option<&str>,
    ) -> Result<ObjectMeta, BlobError> {
        let get = self.client.get_object().bucket(&self.bucket).key(self.full(key));
        match get.set_version_id(version_id.map(str::to_owned)).range("bytes=0-0").send().await {
            Ok(_) => Err(BlobError::Unavailable("the object appeared just now".into())),
            Err(error) => match error.code() {
                Some("NoSuchKey" | "NoSuchVersion") => Err(BlobError::NotFound),
                Some("InvalidRange") => Err(BlobError::Unavailable("the object appeared just now".into())),
                _ => Err(from_sdk(&error)),
            },
        }
    }
}

fn chunks(body: ByteStream) -> Chunks {
    stream::unfold(body, |mut body| async move {
        let chunk = body.next().await?;
        Some((chunk.map_err(|error| BlobError::Unavailable(error.to_string())), body))
    })
    .boxed()
}
