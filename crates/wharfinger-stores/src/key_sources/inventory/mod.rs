//! S3 Inventory: a list of a bucket's objects at one moment, in CSV or Parquet files that a manifest names. Each data
//! file is checked against the size and the MD5 that the manifest gives. Older versions and delete markers are skipped.

mod data;
mod manifest;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use futures::TryStreamExt as _;
use md5::{Digest as _, Md5};
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;

use super::{ReadStats, Sink, SourceError};
use crate::{BlobError, BlobStore};
use data::read_data;
use manifest::DataFile;
pub use manifest::Manifest;

const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// A manifest and the location of its data files.
pub struct Inventory<'s> {
    pub manifest: Manifest,
    location: Location<'s>,
}

enum Location<'s> {
    /// The manifest's path. Its data files are beside it, or at their keys below one of the parent folders.
    Disk(PathBuf),
    Store(&'s dyn BlobStore),
}

impl<'s> Inventory<'s> {
    pub fn on_disk(path: &Path) -> Result<Inventory<'static>, SourceError> {
        let text = std::fs::read(path)
            .map_err(|error| SourceError::Unavailable(format!("cannot read {}: {error}", path.display())))?;
        Ok(Inventory { manifest: Manifest::parse(&text)?, location: Location::Disk(path.to_owned()) })
    }

    /// `store`: the whole bucket that contains the manifest, without a prefix.
    pub async fn in_store(store: &'s dyn BlobStore, key: &str) -> Result<Inventory<'s>, SourceError> {
        let mut text = Vec::new();
        fetch(store, key, MANIFEST_BYTES_MAX, &mut text).await?;
        Ok(Inventory { manifest: Manifest::parse(&text)?, location: Location::Store(store) })
    }

    /// Reads every data file. A file in a store is downloaded to `scratch` first, and removed afterwards.
    pub async fn read(&self, scratch: &Path, sink: &mut Sink<'_>) -> Result<ReadStats, SourceError> {
        let mut stats = ReadStats::default();
        for file in &self.manifest.files {
            let (path, is_temporary) = match &self.location {
                Location::Disk(manifest) => (find_data_file(manifest, &file.key)?, false),
                Location::Store(store) => {
                    std::fs::create_dir_all(scratch).map_err(SourceError::Write)?;
                    let path = scratch.join("inventory");
                    let mut out = File::create(&path).map_err(SourceError::Write)?;
                    fetch(*store, &file.key, u64::MAX, &mut out).await?;
                    (path, true)
                }
            };
            let read = tokio::task::block_in_place(|| {
                verify(&path, file)?;
                read_data(&path, &self.manifest, file, sink)
            });
            if is_temporary {
                std::fs::remove_file(&path).map_err(SourceError::Write)?;
            }
            stats.skipped += read?.skipped;
        }
        Ok(stats)
    }
}

async fn fetch(
    store: &dyn BlobStore,
    key: &str,
    bytes_max: u64,
    out: &mut (impl io::Write + Send),
) -> Result<(), SourceError> {
    let unavailable = |error: BlobError| SourceError::Unavailable(format!("cannot read {key}: {error}"));
    let object = ObjectKey::from_foreign_bucket(key)
        .map_err(|_| SourceError::Invalid(format!("{key:?} is not a valid key")))?;
    let meta = store.head(&object, None).await.map_err(unavailable)?;
    if meta.size > bytes_max {
        return Err(SourceError::Invalid(format!("{key} has {} bytes: it is not a manifest", meta.size)));
    }
    let pin = Pin { etag: meta.etag, version_id: meta.version_id };
    let mut chunks = store.get(&object, &pin, 0, None).await.map_err(unavailable)?;
    while let Some(chunk) = chunks.try_next().await.map_err(unavailable)? {
        out.write_all(&chunk).map_err(SourceError::Write)?;
    }
    out.flush().map_err(SourceError::Write)
}

/// The path of a data file that was copied with the manifest, with or without its folders.
fn find_data_file(manifest: &Path, key: &str) -> Result<PathBuf, SourceError> {
    let inside = !key.split('/').any(|part| part == "..") && !key.starts_with('/');
    let name = key.rsplit('/').next().unwrap_or(key);
    // A relative path has parent folders too.
    let manifest = std::path::absolute(manifest).unwrap_or_else(|_| manifest.to_owned());
    let folders = manifest.ancestors().skip(1);
    let places = folders.clone().map(|folder| folder.join(key));
    let near = folders.take(2).flat_map(|folder| [folder.join(name), folder.join("data").join(name)]);
    places.chain(near).filter(|_| inside).find(|path| path.is_file()).ok_or_else(|| {
        SourceError::Invalid(format!(
            "cannot find the data file {key} of the manifest, neither beside it nor in its parent folders"
        ))
    })
}

/// A truncated data file would turn the objects that it lacks into orphans.
fn verify(path: &Path, file: &DataFile) -> Result<(), SourceError> {
    let unreadable =
        |error: io::Error| SourceError::Unavailable(format!("cannot read {}: {error}", file.key));
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
    if let Some(expected) = file.size.filter(|expected| *expected != size) {
        return Err(SourceError::Invalid(format!(
            "{} has {size} bytes, but the manifest says {expected} bytes",
            file.key
        )));
    }
    let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match &file.md5 {
        Some(expected) if !expected.eq_ignore_ascii_case(&sum) => {
            Err(SourceError::Invalid(format!("{} is damaged: its MD5 differs from the manifest", file.key)))
        }
        _ => Ok(()),
    }
}
