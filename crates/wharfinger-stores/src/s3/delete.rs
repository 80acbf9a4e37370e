//! Bulk deletes with one outcome per key. On a bucket with versions, a key is deleted when all its versions are.

use std::collections::BTreeMap;

use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use futures::stream::{self, StreamExt as _};
use wharfinger_lifecycle::key::ObjectKey;

use super::error::{NOT_S3, from_key_error, from_sdk};
use super::{DELETE_BATCH_MAX, S3Store};
use crate::BlobError;
use crate::http::{absent_is_ok, list::next_page};

/// How many keys are looked up or deleted concurrently, where each takes its own call.
const CONCURRENCY: usize = 16;

/// A key, or one of its versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    key: String,
    version_id: Option<String>,
}

/// The versions and delete markers of one key.
#[derive(Default)]
struct Versions {
    all: Vec<Target>,
    /// None: a delete marker hides the object.
    newest: Option<String>,
}

impl S3Store {
    pub(super) async fn delete_keys(&self, keys: &[ObjectKey]) -> Vec<Result<(), BlobError>> {
        self.delete_whole(keys.iter().map(|key| (self.full(key), None)).collect()).await
    }

    /// Deletes all versions of the keys. If a version is given, it must be the newest.
    pub(super) async fn delete_whole(
        &self,
        keys: Vec<(String, Option<String>)>,
    ) -> Vec<Result<(), BlobError>> {
        if !self.features.get().versioned {
            let outcomes = self.delete_newest(keys.iter().map(|(key, _)| key.clone())).await;
            if !self.features.get().versioned {
                return outcomes;
            }
            // Versioning was enabled after the probe: the delete has only hidden the objects.
        }
        let found: Vec<Result<Vec<Target>, BlobError>> = stream::iter(keys)
            .map(|(key, seen)| self.versions(key, seen))
            .buffered(CONCURRENCY)
            .collect()
            .await;
        let targets: Vec<Target> = found.iter().flatten().flatten().cloned().collect();
        let mut answers: BTreeMap<Target, Result<(), BlobError>> = BTreeMap::new();
        for (target, answer) in targets.iter().cloned().zip(self.delete_targets(&targets).await) {
            answers.insert(target, answer);
        }
        let outcome = |target: &Target| answers.get(target).cloned().unwrap_or(Ok(()));
        found.into_iter().map(|versions| versions?.iter().try_for_each(outcome)).collect()
    }

    /// On a bucket with versions, this only hides the objects.
    pub(super) async fn delete_newest(
        &self,
        keys: impl Iterator<Item = String>,
    ) -> Vec<Result<(), BlobError>> {
        let targets: Vec<Target> = keys.map(|key| Target { key, version_id: None }).collect();
        self.delete_targets(&targets).await
    }

    /// Every version and delete marker of one key. If a version is given, it must be the newest.
    async fn versions(&self, key: String, seen: Option<String>) -> Result<Vec<Target>, BlobError> {
        let found = self.all_versions(&key).await?;
        match seen {
            Some(seen) if found.newest.is_some_and(|newest| newest != seen) => Err(BlobError::Changed),
            _ => Ok(found.all),
        }
    }

    async fn all_versions(&self, key: &str) -> Result<Versions, BlobError> {
        let mut found = Versions::default();
        let (mut after_key, mut after_version) = (None, None);
        loop {
            let list = self.client.list_object_versions().bucket(&self.bucket).prefix(key);
            let page = list
                .set_key_marker(after_key)
                .set_version_id_marker(after_version)
                .send()
                .await
                .map_err(|error| from_sdk(&error))?;
            let versions = page.versions().iter();
            let versions = versions.map(|one| (one.key(), one.version_id(), one.is_latest() == Some(true)));
            let markers = page.delete_markers().iter().map(|one| (one.key(), one.version_id(), false));
            for (of, version_id, is_latest) in versions.chain(markers) {
                if of == Some(key) {
                    let version_id = version_id.map(str::to_owned);
                    if is_latest {
                        found.newest.clone_from(&version_id);
                    }
                    found.all.push(Target { key: key.to_owned(), version_id });
                }
            }
            if page.name().is_none() {
                return Err(BlobError::Unavailable(NOT_S3.into()));
            }
            let marker = page.next_key_marker().filter(|next| !next.is_empty());
            let Some(next) = next_page(page.is_truncated(), marker)? else { return Ok(found) };
            // Longer keys with this prefix sort after it.
            if next > key {
                return Ok(found);
            }
            after_key = Some(next.to_owned());
            after_version = page.next_version_id_marker().map(str::to_owned);
        }
    }

    async fn delete_targets(&self, targets: &[Target]) -> Vec<Result<(), BlobError>> {
        let mut outcomes = Vec::with_capacity(targets.len());
        for batch in targets.chunks(DELETE_BATCH_MAX) {
            outcomes.extend(self.delete_batch(batch).await);
        }
        outcomes
    }

    async fn delete_batch(&self, batch: &[Target]) -> Vec<Result<(), BlobError>> {
        if self.features.get().deletes_one_by_one {
            return self.delete_one_by_one(batch).await;
        }
        let objects: Vec<ObjectIdentifier> =
            batch.iter().filter_map(|target| identify(target).ok()).collect();
        let Ok(delete) = Delete::builder().set_objects(Some(objects)).quiet(false).build() else {
            return vec![Err(BlobError::Refused("a bulk delete without keys".into())); batch.len()];
        };
        let sent = self.client.delete_objects().bucket(&self.bucket).delete(delete).send().await;
        let answer = match sent {
            Ok(answer) => answer,
            Err(error) if matches!(error.code(), Some("NotImplemented" | "MethodNotAllowed")) => {
                self.features.change(|features| features.deletes_one_by_one = true);
                return self.delete_one_by_one(batch).await;
            }
            Err(error) => return vec![Err(from_sdk(&error)); batch.len()],
        };
        let mut answers: BTreeMap<Target, Result<(), BlobError>> = BTreeMap::new();
        for deleted in answer.deleted() {
            if deleted.delete_marker() == Some(true) {
                self.features.change(|features| features.versioned = true);
            }
            if let Some(key) = deleted.key() {
                let version_id = deleted.version_id().map(str::to_owned);
                answers.insert(Target { key: key.to_owned(), version_id }, Ok(()));
                answers.entry(Target { key: key.to_owned(), version_id: None }).or_insert(Ok(()));
            }
        }
        for error in answer.errors() {
            let Some(key) = error.key() else { continue };
            let outcome =
                Err::<(), _>(from_key_error(error.code().unwrap_or(""), error.message().unwrap_or("")));
            let version_id = error.version_id().filter(|id| !id.is_empty()).map(str::to_owned);
            answers.insert(Target { key: key.to_owned(), version_id }, absent_is_ok(outcome));
        }
        let unanswered =
            || Err(BlobError::Unavailable("the answer to the bulk delete does not mention this key".into()));
        batch.iter().map(|target| answers.get(target).cloned().unwrap_or_else(unanswered)).collect()
    }

    async fn delete_one_by_one(&self, batch: &[Target]) -> Vec<Result<(), BlobError>> {
        let delete = |target: Target| {
            let delete = self.client.delete_object().bucket(&self.bucket).key(target.key);
            let delete = delete.set_version_id(target.version_id);
            async move { absent_is_ok(delete.send().await.map_err(|error| from_sdk(&error))) }
        };
        stream::iter(batch.to_vec()).map(delete).buffered(CONCURRENCY).collect().await
    }
}

fn identify(target: &Target) -> Result<ObjectIdentifier, aws_sdk_s3::error::BuildError> {
    ObjectIdentifier::builder().key(&target.key).set_version_id(target.version_id.clone()).build()
}
