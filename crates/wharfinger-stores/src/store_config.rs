//! Which store holds the objects, and how a driver for it is created.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::azure::{AzureOptions, AzureStore};
use super::gcs::{GcsOptions, GcsStore};
use super::s3::{S3Options, S3Store};
use super::{BlobError, BlobStore};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    Disk(PathBuf),
    S3(S3Options),
    Azure(AzureOptions),
    Gcs(GcsOptions),
}

impl StoreConfig {
    /// The kind of store, as stored in `pending_cleanups.storage_type`.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreConfig::Disk(_) => "disk",
            StoreConfig::S3(_) => "s3",
            StoreConfig::Azure(_) => "azure",
            StoreConfig::Gcs(_) => "gcs",
        }
    }

    /// The folder of a local store.
    pub fn folder(&self) -> Option<&PathBuf> {
        match self {
            StoreConfig::Disk(folder) => Some(folder),
            StoreConfig::S3(_) | StoreConfig::Azure(_) | StoreConfig::Gcs(_) => None,
        }
    }

    /// Creates a remote store. None for local disk, which the program serves itself.
    pub async fn connect(&self) -> Result<Option<Arc<dyn BlobStore>>, BlobError> {
        Ok(match self {
            StoreConfig::Disk(_) => None,
            StoreConfig::S3(options) => Some(Arc::new(S3Store::connect(options).await?)),
            StoreConfig::Azure(options) => Some(Arc::new(AzureStore::connect(options)?)),
            StoreConfig::Gcs(options) => Some(Arc::new(GcsStore::connect(options)?)),
        })
    }
}

impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreConfig::Disk(folder) => write!(f, "{}", folder.display()),
            StoreConfig::S3(options) => write!(f, "s3://{}/{}", options.bucket, options.prefix),
            StoreConfig::Azure(options) => write!(f, "az://{}/{}", options.container, options.prefix),
            StoreConfig::Gcs(options) => write!(f, "gs://{}/{}", options.bucket, options.prefix),
        }
    }
}
