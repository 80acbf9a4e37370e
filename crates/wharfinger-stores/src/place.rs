//! Where the blobs lie: the one list of stores, and the one way from it to a driver.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::azure::{AzureOptions, AzureStore};
use super::gcs::{GcsOptions, GcsStore};
use super::s3::{S3Options, S3Store};
use super::{BlobError, BlobStore};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobPlace {
    Disk(PathBuf),
    S3(S3Options),
    Azure(AzureOptions),
    Gcs(GcsOptions),
}

impl BlobPlace {
    /// A word for the kind of store, as it stands in `pending_cleanups.storage_type`.
    pub fn kind(&self) -> &'static str {
        match self {
            BlobPlace::Disk(_) => "disk",
            BlobPlace::S3(_) => "s3",
            BlobPlace::Azure(_) => "azure",
            BlobPlace::Gcs(_) => "gcs",
        }
    }

    /// The folder, if that is what it is.
    pub fn folder(&self) -> Option<&PathBuf> {
        match self {
            BlobPlace::Disk(folder) => Some(folder),
            BlobPlace::S3(_) | BlobPlace::Azure(_) | BlobPlace::Gcs(_) => None,
        }
    }

    /// A store that others serve; none for local disk, which the program serves itself. Talks to nobody yet.
    pub async fn connect(&self) -> Result<Option<Arc<dyn BlobStore>>, BlobError> {
        Ok(match self {
            BlobPlace::Disk(_) => None,
            BlobPlace::S3(options) => Some(Arc::new(S3Store::connect(options).await?)),
            BlobPlace::Azure(options) => Some(Arc::new(AzureStore::connect(options)?)),
            BlobPlace::Gcs(options) => Some(Arc::new(GcsStore::connect(options)?)),
        })
    }
}

impl fmt::Display for BlobPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlobPlace::Disk(folder) => write!(f, "{}", folder.display()),
            BlobPlace::S3(options) => write!(f, "s3://{}/{}", options.bucket, options.prefix),
            BlobPlace::Azure(options) => write!(f, "az://{}/{}", options.container, options.prefix),
            BlobPlace::Gcs(options) => write!(f, "gs://{}/{}", options.bucket, options.prefix),
        }
    }
}
