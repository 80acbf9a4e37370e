//! Tries out what the store does with a signed upload that is not what was signed, and whether it lets us do
//! everything we will need. What it leaves behind it deletes, and what an earlier one left after a crash too.

use aws_sdk_s3::types::BucketVersioningStatus;
use futures::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::{OWN, ObjectKey};

use super::super::{
    BlobError, BlobStore as _, Listed, PartStore as _, Probed, PutGrant, Unfinished, UrlLife,
};
use super::error::{explain, from_sdk};
use super::{Learned, S3Store};

const BYTES: &[u8] = b"wharfinger tries";
const TYPE: &str = "text/plain";
const LIFE: UrlLife = UrlLife { signed_at: 0, expires_at: 600_000 };
/// A probe that is older than this by the store's clock is not under way any more.
const LEFT_BEHIND_MS: i64 = 3_600_000;

/// What was sent with a signed URL.
struct Sent<'a> {
    bytes: &'a [u8],
    content_type: &'a str,
}

const RIGHT: Sent<'static> = Sent { bytes: BYTES, content_type: TYPE };

impl S3Store {
    pub(super) async fn find_out(&self) -> Result<Probed, BlobError> {
        let mut notes = Vec::new();
        self.check().await?;
        self.find_versions(&mut notes).await?;
        let key = ObjectKey::probe(&uuid::Uuid::new_v4().to_string());
        let found = self.find_bindings(&key).await;
        let gone = self.delete_keys(std::slice::from_ref(&key)).await.pop().unwrap_or(Ok(()));
        found?;
        gone.map_err(|error| doing("delete objects", error))?;
        self.find_absence(&key).await?;
        self.find_parts(&key).await?;
        self.clear_left_behind().await?;
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
        self.learn(|learned| learned.versioned = versioned);
        if versioned {
            let list =
                self.client.list_object_versions().bucket(&self.bucket).prefix(&self.prefix).max_keys(1);
            list.send().await.map_err(|error| explain("list the versions of objects", &error))?;
        }
        Ok(())
    }

    async fn find_bindings(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let http = reqwest::Client::new();
        let all = Learned { binds_checksum: true, create_only: true, ..Learned::default() };
        // A store that does not know a condition refuses even what is right.
        let mut bind = all;
        for less in [
            all,
            Learned { create_only: false, ..all },
            Learned { binds_checksum: false, ..all },
            Learned::default(),
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
        let cases = [
            Sent { bytes: &BYTES[1..], ..RIGHT },
            Sent { content_type: "text/html", ..RIGHT },
            Sent { bytes: b"wharfinger lies!", ..RIGHT },
        ];
        let mut refused = [false; 3];
        let free = Learned { create_only: false, ..bind };
        for (case, refused) in cases.iter().zip(&mut refused) {
            *refused = self.try_put(&http, key, free, case).await?.is_err();
        }
        let [binds_size, binds_content_type, other_bytes] = refused;
        let versioned = self.head(key, None).await?.version_id.is_some();
        self.learn(|learned| {
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
        bind: Learned,
        sent: &Sent<'_>,
    ) -> Result<Result<(), String>, BlobError> {
        let grant = PutGrant {
            key: key.clone(),
            size: BYTES.len() as u64,
            content_type: Some(TYPE.into()),
            checksum_sha256: Some(to_hex(&Sha256::digest(BYTES))),
            life: LIFE,
        };
        let signed = self.sign_put_with(&self.client, &grant, bind).await?;
        let mut request = http.put(&signed.url).timeout(std::time::Duration::from_secs(20));
        for (name, value) in signed.headers.iter().filter(|(name, _)| name != "content-type") {
            request = request.header(name, value);
        }
        let request = request.header("content-type", sent.content_type).body(sent.bytes.to_vec());
        let answer = request.send().await;
        let answer = answer.map_err(|error| BlobError::Unavailable(error.without_url().to_string()))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(Ok(()));
        }
        let text = answer.text().await.unwrap_or_default();
        let code = text.split("<Code>").nth(1).and_then(|rest| rest.split("</Code>").next());
        let said = code.map_or_else(|| format!("HTTP {status}"), str::to_owned);
        match status.as_u16() {
            429 | 500.. if code != Some("NotImplemented") => Err(BlobError::Unavailable(said)),
            _ => Ok(Err(said)),
        }
    }

    /// Those who may not list are told 403 of what is absent, and nothing could ever be known to be so.
    async fn find_absence(&self, key: &ObjectKey) -> Result<(), BlobError> {
        match self.head(key, None).await {
            Err(BlobError::NotFound) => Ok(()),
            Err(error) => Err(doing("tell what is absent", error)),
            Ok(_) => Err(BlobError::Refused("it still has what it said it had deleted".into())),
        }
    }

    async fn find_parts(&self, key: &ObjectKey) -> Result<(), BlobError> {
        let upload_id =
            self.begin(key, None).await.map_err(|error| doing("begin uploads in parts", error))?;
        let listed = self.parts(key, &upload_id).await;
        let known: Result<Vec<_>, _> = self.unfinished(key.as_str()).try_collect().await;
        self.abandon_one(key, &upload_id).await.map_err(|error| doing("abort uploads in parts", error))?;
        listed.map_err(|error| doing("list the parts of uploads", error))?;
        known.map_err(|error| doing("list unfinished uploads", error))?;
        Ok(())
    }

    async fn clear_left_behind(&self) -> Result<(), BlobError> {
        let folder = format!("{OWN}probe/");
        let old: Vec<Listed> = self.list(&folder, None).try_collect().await?;
        let keys: Vec<ObjectKey> = old
            .iter()
            .filter(|listed| listed.modified_at < self.now().saturating_sub(LEFT_BEHIND_MS))
            .filter_map(|listed| listed.key.strip_prefix(&folder).map(ObjectKey::probe))
            .collect();
        for outcome in self.delete_keys(&keys).await {
            outcome?;
        }
        let uploads: Vec<Unfinished> = self.unfinished(&folder).try_collect().await?;
        for upload in uploads {
            let old = upload.begun_at.is_some_and(|at| at < self.now().saturating_sub(LEFT_BEHIND_MS));
            if let (true, Some(name)) = (old, upload.key.strip_prefix(&folder)) {
                self.abandon_one(&ObjectKey::probe(name), &upload.upload_id).await?;
            }
        }
        Ok(())
    }
}

fn doing(what: &str, error: BlobError) -> BlobError {
    match error {
        BlobError::Refused(why) => BlobError::Refused(format!("it will not let us {what}: {why}")),
        BlobError::Unavailable(why) => BlobError::Unavailable(format!("it could not {what}: {why}")),
        other => BlobError::Refused(format!("it will not let us {what}: {other}")),
    }
}
