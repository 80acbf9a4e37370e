//! A bucket of somebody else's: reached by its URL, asked for keys of any spelling, and looked at for marks of ours.

use std::path::PathBuf;
use std::sync::Arc;

use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::DiskStore;
use wharfinger_stores::{BlobError, BlobStore, StoreConfig};

use super::super::{Failure, failed};
use crate::config::{Flags, ForeignBucket, foreign_bucket};

pub(super) struct Bucket {
    /// Of the whole bucket: keys are full names.
    pub(super) store: Arc<dyn BlobStore>,
    /// What is looked at: empty, or ends in a slash, so that `images` does not mean `images2/` too.
    pub(super) prefix: String,
    pub(super) shown: String,
    place: StoreConfig,
}

impl Bucket {
    pub(super) async fn reach(flags: &Flags, name: &'static str, url: &str) -> Result<Bucket, Failure> {
        let ForeignBucket { place, prefix } = foreign_bucket(flags, name, url)?;
        let connected = place.connect().await.map_err(failed)?;
        let store: Arc<dyn BlobStore> = match (connected, place.folder()) {
            (Some(store), _) => store,
            (None, Some(folder)) => Arc::new(
                DiskStore::open_foreign(folder)
                    .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?,
            ),
            (None, None) => return Err(Failure::Usage(format!("{name}: no store is known for {url}"))),
        };
        let shown = format!("{place}{prefix}");
        // Also tells the store's time.
        store.check().await.map_err(|error| Failure::Failed(format!("{shown}: {error}")))?;
        Ok(Bucket { store, prefix, shown, place })
    }

    /// What tells it from all others, of other accounts and machines too.
    pub(super) fn identity(&self) -> String {
        let place = match &self.place {
            StoreConfig::S3(options) => format!("{:?} {:?}", options.endpoint, options.region),
            StoreConfig::Azure(options) => format!("{} {:?}", options.account, options.endpoint),
            StoreConfig::Gcs(_) => String::new(),
            StoreConfig::Disk(_) => format!("{:?}", self.folder()),
        };
        format!("{} {place}", self.shown)
    }

    /// A name that the store can be asked for. In a folder there are fewer than in a bucket.
    pub(super) fn key(&self, text: &str) -> Option<ObjectKey> {
        let is_path = self.place.folder().is_none() || text.split('/').all(|part| !part.is_empty());
        ObjectKey::from_foreign_bucket(text).ok().filter(|_| is_path)
    }

    /// The bucket's own name, where it has one.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.place {
            StoreConfig::S3(options) => Some(&options.bucket),
            StoreConfig::Gcs(options) => Some(&options.bucket),
            StoreConfig::Azure(options) => Some(&options.container),
            StoreConfig::Disk(_) => None,
        }
    }

    /// What stands before a key where people write whole addresses.
    pub(super) fn addresses(&self) -> Vec<String> {
        match self.name() {
            Some(name) => vec![
                self.place.to_string(),
                format!("{name}/"),
                format!("/{name}/"),
                format!("https://{name}.s3.amazonaws.com/"),
                format!("https://storage.googleapis.com/{name}/"),
            ],
            None => {
                let folders = [self.place.folder().cloned(), self.folder()].into_iter().flatten();
                let folders = folders.map(|folder| folder.display().to_string());
                let folders = folders.map(|folder| format!("{}/", folder.trim_end_matches('/')));
                folders
                    .flat_map(|folder| [format!("file://{folder}"), format!("file:{folder}"), folder])
                    .collect()
            }
        }
    }

    /// Where it really is, if it is a folder.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        self.place.folder().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.clone()))
    }

    /// Whether a key is the mark of a store that a Wharfinger keeps.
    pub(super) fn is_mark(key: &str) -> bool {
        key.strip_suffix(ObjectKey::marker().as_str())
            .is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// A mark in a folder above what is looked at: what is below is that Wharfinger's.
    pub(super) async fn mark_above(&self) -> Result<Option<String>, Failure> {
        // A folder may lie within a store, at any depth.
        if let Some(root) = self.folder() {
            for folder in root.ancestors() {
                if DiskStore::mark(folder).map_err(failed)?.is_some() {
                    return Ok(Some(folder.join(ObjectKey::marker().as_str()).display().to_string()));
                }
            }
        }
        let folders = self.prefix.match_indices('/').map(|(at, _)| &self.prefix[..=at]);
        for folder in std::iter::once("").chain(folders) {
            let mark = format!("{folder}{}", ObjectKey::marker());
            let Some(key) = self.key(&mark) else { continue };
            match self.store.head(&key, None).await {
                Ok(_) => return Ok(Some(mark)),
                Err(BlobError::NotFound) => {}
                Err(error) if error.is_retryable() => return Err(failed(error)),
                Err(error) => {
                    return Err(Failure::Failed(format!(
                        "whether a Wharfinger keeps this bucket cannot be seen: {mark}: {error}. Before anything is \
                         deleted, the right to read that name is needed, and to list the bucket"
                    )));
                }
            }
        }
        Ok(None)
    }
}

/// A key that is written as an address, without what stands before it there: what is known, or any host.
pub(super) fn without_address<'k>(key: &'k str, addresses: &[String]) -> &'k str {
    let known = |key: &'k str| addresses.iter().find_map(|address| key.strip_prefix(address.as_str()));
    let behind_host = || key.split_once("://").and_then(|(_, address)| address.split_once('/'));
    known(key).or_else(|| behind_host().map(|(_, path)| known(path).unwrap_or(path))).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_whatever_its_host() {
        let addresses = ["s3://pics/", "pics/", "/pics/"].map(str::to_owned);
        for written in [
            "images/a",
            "s3://pics/images/a",
            "pics/images/a",
            "https://pics.s3.eu-west-1.amazonaws.com/images/a",
            "https://s3.eu-west-1.amazonaws.com/pics/images/a",
            "http://127.0.0.1:9000/pics/images/a",
        ] {
            assert_eq!(without_address(written, &addresses), "images/a", "{written}");
        }
        assert_eq!(without_address("https://pics", &addresses), "https://pics");
    }
}
