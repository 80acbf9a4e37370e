//! Blobs in S3 and in what speaks like it. Clients upload and download by URLs that are signed here and go
//! straight to the store; how much of a grant the store enforces is tried out at the start.

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
use crate::http::{Findings, Learned};
use crate::skew::Skew;
use crate::{
    BlobError, BlobStore, Caps, Chunks, GetGrant, Listed, ObjectMeta, PartStore, Probed, PutGrant,
    SignedRequest, UrlLife, WriteMode, encoding,
};
pub use connect::{S3Credentials, S3Options, http_client};
use error::{NOT_S3, explain, from_sdk};

/// As many keys as one bulk delete may name.
const DELETE_BATCH_MAX: usize = 1_000;

pub struct S3Store {
    bucket: String,
    /// Empty, or what every key begins with, its slash included.
    prefix: String,
    client: Client,
    /// The same with the address that clients see, for it is signed.
    public: Client,
    skew: Arc<Skew>,
    learned: Learned,
}

impl S3Store {
    /// Talks to nobody yet.
    pub async fn connect(options: &S3Options) -> Result<S3Store, BlobError> {
        let skew = Arc::new(Skew::default());
        let (client, public) = connect::clients(options, &skew).await?;
        Ok(S3Store {
            bucket: options.bucket.clone(),
            prefix: options.prefix.clone(),
            client,
            public,
            skew,
            learned: Learned::default(),
        })
    }

    fn full(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix)
    }

    /// By the store's clock: a URL that this machine's clock dates wrongly dies at another time than is known.
    fn presigning(&self, life: UrlLife) -> Result<PresigningConfig, BlobError> {
        PresigningConfig::builder()
            .start_time(self.skew.store_time())
            .expires_in(life.duration())
            .build()
            .map_err(|error| BlobError::Refused(error.to_string()))
    }

    /// A PUT of these very bytes: what the store is known to honour is bound, what it is not is left out.
    async fn sign_put_with(
        &self,
        client: &Client,
        grant: &PutGrant,
        bind: Findings,
    ) -> Result<SignedRequest, BlobError> {
        let mut put = client.put_object().bucket(&self.bucket).key(self.full(&grant.key));
        put = put.content_length(grant.size as i64).set_content_type(grant.content_type.clone());
        if let Some(sum) = grant.checksum_sha256.as_deref().and_then(from_hex).filter(|_| bind.binds_checksum)
        {
            put = put.checksum_sha256(STANDARD.encode(sum));
        }
        if bind.create_only {
            put = put.if_none_match("*");
        }
        let presigned = put.presigned(self.presigning(grant.life)?).await;
        Ok(to_signed("PUT", &presigned.map_err(|error| from_sdk(&error))?))
    }
}

fn to_signed(method: &'static str, presigned: &PresignedRequest) -> SignedRequest {
    // The length and the host are sent by every client on its own, and browsers forbid setting them.
    let sent_anyway = |name: &str| matches!(name, "content-length" | "host");
    let headers = presigned.headers().filter(|(name, _)| !sent_anyway(name));
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

    fn caps(&self) -> Caps {
        self.learned.get().caps(DELETE_BATCH_MAX)
    }

    async fn sign_put(&self, grant: &PutGrant) -> Result<SignedRequest, BlobError> {
        self.sign_put_with(&self.public, grant, self.learned.get()).await
    }

    async fn sign_get(&self, grant: &GetGrant) -> Result<SignedRequest, BlobError> {
        let get = self.public.get_object().bucket(&self.bucket).key(self.full(&grant.key));
        let get = get
            .set_version_id(grant.pin.version_id.clone())
            .response_content_disposition(grant.disposition())
            // The bytes as they are stored, whatever their uploader said about them.
            .response_content_encoding("identity")
            .set_response_content_type(grant.content_type.clone());
        let presigned = get.presigned(self.presigning(grant.life)?).await;
        Ok(to_signed("GET", &presigned.map_err(|error| from_sdk(&error))?))
    }

    async fn head(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let head = self.client.head_object().bucket(&self.bucket).key(self.full(key));
        let answer = match head.set_version_id(version_id.map(str::to_owned)).send().await {
            Ok(answer) => answer,
            // Without a body it may as well be the bucket that is missing: asked again in a way that tells.
            Err(error) if error.raw_response().is_some_and(|raw| raw.status().as_u16() == 404) => {
                return self.tell_absent(key, version_id).await;
            }
            Err(error) => return Err(from_sdk(&error)),
        };
        let etag = answer.e_tag().map(unquoted).filter(|etag| !etag.is_empty());
        let version_id = answer.version_id().filter(|id| *id != "null").map(str::to_owned);
        if version_id.is_some() && !self.learned.get().versioned {
            self.learned.change(|learned| learned.versioned = true);
        }
        match (answer.content_length(), etag) {
            (Some(size), Some(etag)) => Ok(ObjectMeta {
                size: u64::try_from(size).unwrap_or(0),
                etag,
                version_id,
                modified_at: answer.last_modified().map(list::to_unix_ms),
                content_encoding: encoding(answer.content_encoding()),
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
            return object::nothing(self, key, pin).await;
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
            // A store that ignores the condition answers with what it has.
            Some(_) => Err(BlobError::Changed),
            None => Err(BlobError::Unavailable(NOT_S3.into())),
        }
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes, mode: WriteMode) -> Result<(), BlobError> {
        let mut put = self.client.put_object().bucket(&self.bucket).key(self.full(key));
        if mode == WriteMode::CreateOnly {
            if !self.learned.get().create_only {
                match self.head(key, None).await {
                    Ok(_) => return Err(BlobError::Changed),
                    Err(BlobError::NotFound) => {}
                    Err(unknown) => return Err(unknown),
                }
            }
            put = put.set_if_none_match(self.learned.get().create_only.then(|| "*".into()));
        }
        let answer = put.body(ByteStream::from(bytes)).send().await.map_err(|error| from_sdk(&error))?;
        // What anybody says to anything is no receipt.
        answer.e_tag().map(drop).ok_or_else(|| BlobError::Unavailable(NOT_S3.into()))
    }

    async fn delete_many(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        self.delete_keys(keys).await
    }

    /// Compatible stores pass over a condition that they do not know: none is sent. Where all versions go, the newest
    /// must be the one that was seen.
    async fn delete_seen(
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

    fn list(&self, prefix: &str, start_after: Option<&str>) -> BoxStream<'static, Result<Listed, BlobError>> {
        list::objects(self, prefix, start_after)
    }

    fn now(&self) -> UnixMs {
        self.skew.store_now()
    }

    fn in_parts(&self) -> Option<&dyn PartStore> {
        Some(self)
    }

    async fn check(&self) -> Result<(), BlobError> {
        let list = self.client.list_objects_v2().bucket(&self.bucket).prefix(&self.prefix).max_keys(1);
        // The first key may be somebody's that XML cannot hold.
        let list = list.encoding_type(EncodingType::Url);
        let answer = list.send().await.map_err(|error| explain("list the bucket", &error))?;
        // What is no listing may still parse as an empty one.
        match answer.name() {
            Some(_) => Ok(()),
            None => Err(BlobError::Unavailable(NOT_S3.into())),
        }
    }

    async fn probe(&self) -> Result<Probed, BlobError> {
        self.find_out().await
    }
}

impl S3Store {
    async fn tell_absent(&self, key: &ObjectKey, version_id: Option<&str>) -> Result<ObjectMeta, BlobError> {
        let get = self.client.get_object().bucket(&self.bucket).key(self.full(key));
        match get.set_version_id(version_id.map(str::to_owned)).range("bytes=0-0").send().await {
            Ok(_) => Err(BlobError::Unavailable("the object appeared at this moment".into())),
            Err(error) => match error.code() {
                Some("NoSuchKey" | "NoSuchVersion") => Err(BlobError::NotFound),
                Some("InvalidRange") => {
                    Err(BlobError::Unavailable("the object appeared at this moment".into()))
                }
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
