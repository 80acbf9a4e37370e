//! S3 Inventory: what a bucket held at some moment, as files of CSV or Parquet that a manifest names. Every file is
//! compared with the manifest's checksum before it is believed. Older versions and delete markers are passed over.

mod data;
mod manifest;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use futures::TryStreamExt as _;
use md5::{Digest as _, Md5};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use super::{Passed, Sink, SourceError};
use crate::{BlobError, BlobStore};
use data::read_data;
use manifest::DataFile;
pub use manifest::Manifest;

const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// A manifest and where its files are.
pub struct Inventory<'s> {
    pub manifest: Manifest,
    at: At<'s>,
}

enum At<'s> {
    /// The manifest's own path. Its files lie where they lay in the bucket, seen from one of the folders above, or
    /// beside it.
    Disk(PathBuf),
    Store(&'s dyn BlobStore),
}

impl<'s> Inventory<'s> {
    pub fn on_disk(path: &Path) -> Result<Inventory<'static>, SourceError> {
        let text = std::fs::read(path).map_err(|error| {
            SourceError::Unavailable(format!("{} cannot be read: {error}", path.display()))
        })?;
        Ok(Inventory { manifest: Manifest::parse(&text)?, at: At::Disk(path.to_owned()) })
    }

    /// The store is of the bucket that the manifest lies in, whole.
    pub async fn in_store(store: &'s dyn BlobStore, key: &str) -> Result<Inventory<'s>, SourceError> {
        let mut text = Vec::new();
        fetch(store, key, MANIFEST_BYTES_MAX, &mut text).await?;
        Ok(Inventory { manifest: Manifest::parse(&text)?, at: At::Store(store) })
    }

    /// Reads every file. One from a store is brought to `scratch` first, and removed again.
    pub async fn read(&self, scratch: &Path, sink: &mut Sink<'_>) -> Result<Passed, SourceError> {
        let mut passed = Passed::default();
        for file in &self.manifest.files {
            let (path, is_ours) = match &self.at {
                At::Disk(manifest) => (beside(manifest, &file.key)?, false),
                At::Store(store) => {
                    std::fs::create_dir_all(scratch).map_err(SourceError::Full)?;
                    let path = scratch.join("inventory");
                    let mut out = File::create(&path).map_err(SourceError::Full)?;
                    fetch(*store, &file.key, u64::MAX, &mut out).await?;
                    (path, true)
                }
            };
            let read = tokio::task::block_in_place(|| {
                verify(&path, file)?;
                read_data(&path, &self.manifest, file, sink)
            });
            if is_ours {
                std::fs::remove_file(&path).map_err(SourceError::Full)?;
            }
            passed.skipped += read?.skipped;
        }
        Ok(passed)
    }
}

async fn fetch(
    store: &dyn BlobStore,
    key: &str,
    bytes_max: u64,
    out: &mut (impl io::Write + Send),
) -> Result<(), SourceError> {
    let unavailable = |error: BlobError| SourceError::Unavailable(format!("{key} cannot be read: {error}"));
    let object =
        ObjectKey::from_foreign_bucket(key).map_err(|_| SourceError::Wrong(format!("{key:?} is no name of a file")))?;
    let meta = store.head(&object, None).await.map_err(unavailable)?;
    if meta.size > bytes_max {
        return Err(SourceError::Wrong(format!("{key} has {} bytes: it is no manifest", meta.size)));
    }
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    let mut chunks = store.get(&object, &pin, 0, None).await.map_err(unavailable)?;
    while let Some(chunk) = chunks.try_next().await.map_err(unavailable)? {
        out.write_all(&chunk).map_err(SourceError::Full)?;
    }
    out.flush().map_err(SourceError::Full)
}

/// Where a file of a manifest lies that was copied with it, or without its folders.
fn beside(manifest: &Path, key: &str) -> Result<PathBuf, SourceError> {
    let inside = !key.split('/').any(|part| part == "..") && !key.starts_with('/');
    let name = key.rsplit('/').next().unwrap_or(key);
    // One that is named without its folder lies in folders all the same.
    let manifest = std::path::absolute(manifest).unwrap_or_else(|_| manifest.to_owned());
    let folders = manifest.ancestors().skip(1);
    let places = folders.clone().map(|folder| folder.join(key));
    let near = folders.take(2).flat_map(|folder| [folder.join(name), folder.join("data").join(name)]);
    places.chain(near).filter(|_| inside).find(|path| path.is_file()).ok_or_else(|| {
        SourceError::Wrong(format!(
            "{key}, which the manifest names, is neither beside it nor in the folders above"
        ))
    })
}

/// A file that was cut off would make orphans of all that it lacks.
fn verify(path: &Path, file: &DataFile) -> Result<(), SourceError> {
    let unreadable =
        |error: io::Error| SourceError::Unavailable(format!("{} cannot be read: {error}", file.key));
    let mut input = File::open(path).map_err(unreadable)?;
    let (mut sum, mut size) = (Md5::new(), 0);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = input.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        sum.update(&buffer[..read]);
    }
    if file.size.is_some_and(|expected| expected != size) {
        return Err(SourceError::Wrong(format!(
            "{} has {size} bytes, and the manifest says otherwise",
            file.key
        )));
    }
    let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match &file.md5 {
        Some(expected) if !expected.eq_ignore_ascii_case(&sum) => {
            Err(SourceError::Wrong(format!("{} is damaged: its MD5 is not what the manifest says", file.key)))
        }
        _ => Ok(()),
    }
}
