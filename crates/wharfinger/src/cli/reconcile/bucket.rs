//! A bucket that does not belong to this program, given by its URL. Keys may have any spelling. A marker shows that a
//! Wharfinger stores its files there.

use std::path::PathBuf;
use std::sync::Arc;

use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::DiskStore;
use wharfinger_stores::{BlobError, BlobStore, StoreConfig};

use super::super::{Failure, failed};
use crate::config::{Flags, ForeignBucket, foreign_bucket};

pub(super) struct Bucket {
    /// The whole bucket: keys are full names.
    pub(super) store: Arc<dyn BlobStore>,
    /// Only keys with this prefix are compared. It is empty or ends in a slash, so that `images` does not match
    /// `images2/`.
    pub(super) prefix: String,
    /// For messages, without credentials.
    pub(super) url: String,
    config: StoreConfig,
}

impl Bucket {
    pub(super) async fn connect(flags: &Flags, name: &'static str, url: &str) -> Result<Bucket, Failure> {
        let ForeignBucket { place: config, prefix } = foreign_bucket(flags, name, url)?;
        let connected = config.connect().await.map_err(failed)?;
        let store: Arc<dyn BlobStore> = match (connected, config.folder()) {
            (Some(store), _) => store,
            (None, Some(folder)) => Arc::new(
                DiskStore::open_foreign(folder)
                    .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?,
            ),
            (None, None) => return Err(Failure::Usage(format!("{name}: {url} is not a supported store"))),
        };
        let url = format!("{config}{prefix}");
        // This call also reads the clock of the store.
        store.check().await.map_err(|error| Failure::Failed(format!("{url}: {error}")))?;
        Ok(Bucket { store, prefix, url, config })
    }

    /// Differs between any two buckets, also of different accounts and machines.
    pub(super) fn identity(&self) -> String {
        let location = match &self.config {
            StoreConfig::S3(options) => format!("{:?} {:?}", options.endpoint, options.region),
            StoreConfig::Azure(options) => format!("{} {:?}", options.account, options.endpoint),
            StoreConfig::Gcs(_) => String::new(),
            StoreConfig::Disk(_) => format!("{:?}", self.folder()),
        };
        format!("{} {location}", self.url)
    }

    /// The key for requests to the store. None: the store cannot have an object of that name. Folders allow fewer
    /// names.
    pub(super) fn key(&self, text: &str) -> Option<ObjectKey> {
        let is_path = self.config.folder().is_none() || text.split('/').all(|part| !part.is_empty());
        ObjectKey::from_foreign_bucket(text).ok().filter(|_| is_path)
    }

    /// The name of the bucket. A folder has none.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.config {
            StoreConfig::S3(options) => Some(&options.bucket),
            StoreConfig::Gcs(options) => Some(&options.bucket),
            StoreConfig::Azure(options) => Some(&options.container),
            StoreConfig::Disk(_) => None,
        }
    }

    /// The texts before a key in complete addresses of an object.
    pub(super) fn addresses(&self) -> Vec<String> {
        match self.name() {
            Some(name) => vec![
                self.config.to_string(),
                format!("{name}/"),
                format!("/{name}/"),
                format!("https://{name}.s3.amazonaws.com/"),
                format!("https://storage.googleapis.com/{name}/"),
            ],
            None => {
                let folders = [self.config.folder().cloned(), self.folder()].into_iter().flatten();
                let folders = folders.map(|folder| folder.display().to_string());
                let folders = folders.map(|folder| format!("{}/", folder.trim_end_matches('/')));
                folders
                    .flat_map(|folder| [format!("file://{folder}"), format!("file:{folder}"), folder])
                    .collect()
            }
        }
    }

    /// The path without symbolic links, if it is a folder.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        self.config.folder().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.clone()))
    }

    /// Whether a key is the marker of a Wharfinger's store.
    pub(super) fn is_marker(key: &str) -> bool {
        key.strip_suffix(ObjectKey::marker().as_str())
            .is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// A marker in a folder above the prefix: the objects below belong to that Wharfinger.
    pub(super) async fn marker_above(&self) -> Result<Option<String>, Failure> {
        // The folder may be inside a store, at any depth.
        if let Some(root) = self.folder() {
            for folder in root.ancestors() {
                if DiskStore::mark(folder).map_err(failed)?.is_some() {
                    return Ok(Some(folder.join(ObjectKey::marker().as_str()).display().to_string()));
                }
            }
        }
        let folders = self.prefix.match_indices('/').map(|(at, _)| &self.prefix[..=at]);
        for folder in std::iter::once("").chain(folders) {
            let marker = format!("{folder}{}", ObjectKey::marker());
            let Some(key) = self.key(&marker) else { continue };
            match self.store.head(&key, None).await {
                Ok(_) => return Ok(Some(marker)),
                Err(BlobError::NotFound) => {}
                Err(error) if error.is_retryable() => return Err(failed(error)),
                Err(error) => {
                    return Err(Failure::Failed(format!(
                        "cannot check whether a Wharfinger uses this bucket: {marker}: {error}. --delete needs the \
                         rights to read that object and to list the bucket"
                    )));
                }
            }
        }
        Ok(None)
    }
}

/// Removes the address before a key: one of `addresses`, or the scheme and host of any URL.
pub(super) fn without_address<'k>(key: &'k str, addresses: &[String]) -> &'k str {
    let known = |key: &'k str| addresses.iter().find_map(|address| key.strip_prefix(address.as_str()));
    let after_host = || key.split_once("://").and_then(|(_, address)| address.split_once('/'));
    known(key).or_else(|| after_host().map(|(_, path)| known(path).unwrap_or(path))).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_removed_for_any_host() {
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
