//! Receives an upload on local disk. The bytes go to a temporary file, which one hard link puts in place. The object
//! stays only if the file in the catalog still waits for it.
//!
//! The temporary name is removed after the caller has read the row again. After a crash in between,
//! [`DiskStore::leftover_uploads`] finds that name, and the sweep reads the row.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use uuid::Uuid;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::key::ObjectKey;

use super::super::{BlobError, ObjectMeta};
use super::{
    CHECK_TEMP, DiskStore, INCOMING_FOLDER, MARK_TEMP, MULTIPART_FOLDER, OWN_FOLDER, PUT_TEMP, blocking,
    from_io, from_io_at, sync_folder, to_meta, upload_folders,
};

#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    #[error("the upload has more bytes than announced")]
    TooLong,
    #[error("the upload has only {0} bytes")]
    TooShort(u64),
    #[error("the SHA-256 of the upload differs from the announced one")]
    Checksum,
    #[error("an object with this key exists already")]
    Exists,
    #[error(transparent)]
    Store(#[from] BlobError),
}

/// An upload that is being received. If it is dropped before it is placed, its temporary file is removed.
pub struct Incoming {
    temp: TempName,
    target: PathBuf,
    file: tokio::fs::File,
    size: u64,
    written: u64,
    checksum: Option<(Sha256, String)>,
}

/// An object that is in place. The caller reads the row again, then keeps or withdraws it.
pub struct Received {
    temp: TempName,
    target: PathBuf,
    pub meta: ObjectMeta,
}

/// A temporary name. It is removed on drop, unless recovery needs it.
pub(super) struct TempName {
    path: PathBuf,
    remove_on_drop: bool,
}

impl Drop for TempName {
    fn drop(&mut self) {
        if self.remove_on_drop {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The temporary file of an upload that crashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverUpload {
    pub file: FileId,
    /// The object is in place.
    pub placed: bool,
    temp: PathBuf,
}

impl DiskStore {
    pub async fn receive(
        &self,
        file: FileId,
        key: &ObjectKey,
        size: u64,
        checksum_sha256: Option<String>,
    ) -> Result<Incoming, IncomingError> {
        let path = self.root.join(INCOMING_FOLDER).join(format!("{file}.{}", Uuid::new_v4()));
        self.create_incoming(path, key, size, checksum_sha256).await
    }

    /// `path`: the temporary file.
    pub(super) async fn create_incoming(
        &self,
        path: PathBuf,
        key: &ObjectKey,
        size: u64,
        checksum_sha256: Option<String>,
    ) -> Result<Incoming, IncomingError> {
        let create = async {
            let created = tokio::fs::File::create_new(&path).await;
            created.map_err(|error| from_io_at(&self.mounted, error))
        };
        let file = self.faults.around("create temporary file", create).await?;
        Ok(Incoming {
            temp: TempName { path, remove_on_drop: true },
            target: self.path(key),
            file,
            size,
            written: 0,
            checksum: checksum_sha256.map(|expected| (Sha256::new(), expected)),
        })
    }

    /// Checks the bytes, makes them durable, and puts them in place if no object has the key.
    pub async fn place(&self, incoming: Incoming) -> Result<Received, IncomingError> {
        let CompleteBytes { mut temp, target, file } = incoming.complete().await?;
        let folder = self.root.join(INCOMING_FOLDER);
        let synced = async {
            file.sync_all().await.map_err(from_io)?;
            // The temporary name must be durable too: after a power cut it must exist if the object exists.
            blocking(move || sync_folder(&folder).map_err(from_io)).await
        };
        self.faults.around("sync", synced).await?;
        drop(file);
        // From here on a crash may leave the object in place. Then the temporary name is what recovery finds.
        temp.remove_on_drop = false;
        let (from, to, root) = (temp.path.clone(), target.clone(), self.root.clone());
        let linked = blocking(move || Ok(link_durably(&root, &from, &to)));
        let meta = match self.faults.around("link", linked).await {
            Ok(Ok(meta)) => meta,
            Ok(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                temp.remove_on_drop = true;
                return Err(IncomingError::Exists);
            }
            Ok(Err(error)) => return Err(IncomingError::Store(from_io(error))),
            Err(error) => return Err(IncomingError::Store(error)),
        };
        Ok(Received { temp, target, meta: to_meta(&meta) })
    }

    /// Uploads whose object is in place but whose row was not read again, and uploads that were not written to for
    /// `min_age`.
    pub async fn leftover_uploads(&self, min_age: Duration) -> Result<Vec<LeftoverUpload>, BlobError> {
        let folder = self.root.join(INCOMING_FOLDER);
        blocking(move || find_leftovers(&folder, min_age).map_err(from_io)).await
    }

    /// Removes temporary files of killed writes (small objects, markers, checks, parts) that are at least `min_age` old.
    pub async fn remove_temporary_files(&self, min_age: Duration) -> Result<u64, BlobError> {
        let root = self.root.clone();
        blocking(move || {
            let small = remove_temporary(&root.join(INCOMING_FOLDER), &[PUT_TEMP, CHECK_TEMP], min_age);
            let marks = remove_temporary(&root.join(OWN_FOLDER), &[MARK_TEMP], min_age);
            let parts = upload_folders::remove_temporary_files(&root.join(MULTIPART_FOLDER), min_age);
            Ok(small.map_err(from_io)? + marks.map_err(from_io)? + parts.map_err(from_io)?)
        })
        .await
    }

    /// Cleans up after a crashed upload. `keep`: the file still waits for the object, so it stays.
    pub async fn clean_up(
        &self,
        left: LeftoverUpload,
        key: Option<&ObjectKey>,
        keep: bool,
    ) -> Result<(), BlobError> {
        let target = key.map(|key| self.path(key));
        blocking(move || {
            if let (Some(target), false) = (target, keep) {
                remove_if_same(&left.temp, &target).map_err(from_io)?;
            }
            remove_if_present(&left.temp).map_err(from_io)
        })
        .await
    }
}

/// All announced bytes, in a temporary file.
pub(super) struct CompleteBytes {
    pub(super) temp: TempName,
    pub(super) target: PathBuf,
    pub(super) file: tokio::fs::File,
}

impl Incoming {
    /// Checks length and checksum.
    pub(super) async fn complete(self) -> Result<CompleteBytes, IncomingError> {
        let Incoming { temp, target, mut file, size, written, checksum } = self;
        if written != size {
            return Err(IncomingError::TooShort(written));
        }
        if let Some((hasher, expected)) = checksum
            && to_hex(&hasher.finalize()) != expected
        {
            return Err(IncomingError::Checksum);
        }
        file.flush().await.map_err(|error| IncomingError::Store(from_io(error)))?;
        Ok(CompleteBytes { temp, target, file })
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), IncomingError> {
        self.written += bytes.len() as u64;
        if self.written > self.size {
            return Err(IncomingError::TooLong);
        }
        if let Some((hasher, _)) = &mut self.checksum {
            hasher.update(bytes);
        }
        self.file.write_all(bytes).await.map_err(|error| IncomingError::Store(from_io(error)))
    }
}

impl Received {
    /// Keeps the object: the file still waits for it.
    pub fn keep(mut self) {
        self.temp.remove_on_drop = true;
    }

    /// Removes the object: the file has ended in the meantime.
    pub async fn withdraw(self) -> Result<(), BlobError> {
        let (temp, target) = (self.temp.path.clone(), self.target.clone());
        blocking(move || {
            remove_if_same(&temp, &target).map_err(from_io)?;
            remove_if_present(&temp).map_err(from_io)
        })
        .await
    }
}

/// How often an upload creates its folder again after a delete has removed the empty folder.
const LINK_TRIES_MAX: u32 = 100;

/// Uses a hard link, because a rename would overwrite an existing object.
pub(super) fn link_durably(root: &Path, from: &Path, to: &Path) -> io::Result<fs::Metadata> {
    let folder = to.parent().unwrap_or(root);
    // Read before the link: after it the file may end at any moment, and both names may be removed.
    let meta = fs::metadata(from)?;
    let mut tries = 1;
    loop {
        match create_folder(root, folder).and_then(|()| fs::hard_link(from, to)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < LINK_TRIES_MAX => tries += 1,
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    sync_folders_up(root, folder)?;
    Ok(meta)
}

/// Syncs every folder up to the root, because another upload may have created one and not synced it yet.
pub(super) fn sync_folders_up(root: &Path, folder: &Path) -> io::Result<()> {
    let mut folder = folder;
    loop {
        sync_folder_if_present(folder)?;
        match folder.parent() {
            Some(parent) if folder != root => folder = parent,
            _ => return Ok(()),
        }
    }
}

fn sync_folder_if_present(folder: &Path) -> io::Result<()> {
    match sync_folder(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn create_folder(root: &Path, folder: &Path) -> io::Result<()> {
    if folder == root || folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        create_folder(root, parent)?;
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The names of small writes. Names of uploads start with a file id instead.
pub(super) fn is_temporary(name: &str, prefixes: &[&str]) -> bool {
    prefixes
        .iter()
        .any(|prefix| name.strip_prefix(prefix).is_some_and(|id| uuid::Uuid::try_parse(id).is_ok()))
}

/// Returns how many files were removed. A file that cannot be read or removed is skipped.
pub(super) fn remove_temporary(folder: &Path, prefixes: &[&str], min_age: Duration) -> io::Result<u64> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| is_temporary(name, prefixes));
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_ours && age.is_some_and(|age| age >= min_age) && remove_if_present(&entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

fn find_leftovers(folder: &Path, min_age: Duration) -> io::Result<Vec<LeftoverUpload>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(file) = name.to_str().and_then(|name| name.split('.').next()?.parse().ok()) else {
            continue;
        };
        let Ok(meta) = entry.metadata() else { continue };
        let age = meta.modified()?.elapsed().unwrap_or_default();
        if meta.nlink() > 1 || age >= min_age {
            found.push(LeftoverUpload { file, placed: meta.nlink() > 1, temp: entry.path() });
        }
    }
    Ok(found)
}

/// Removes the target only if it is the same file as the temporary one.
fn remove_if_same(temp: &Path, target: &Path) -> io::Result<()> {
    let (Some(ours), Some(placed)) = (metadata_if_present(temp)?, metadata_if_present(target)?) else {
        return Ok(());
    };
    if is_same(&ours, &placed) {
        remove_if_present(target)?;
        if let Some(folder) = target.parent() {
            sync_folder_if_present(folder)?;
        }
    }
    Ok(())
}

/// Whether these are names of one file.
pub(super) fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// None only if the file is clearly absent.
pub(super) fn metadata_if_present(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
