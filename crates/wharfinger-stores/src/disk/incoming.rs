//! An upload on its way to disk. It is written beside the store, linked into place in one step, and the link
//! is kept only if the file is still waiting for it.
//!
//! The temporary name outlives the link until somebody has looked at the row again: after a crash in between,
//! [`DiskStore::left_behind`] finds it and the look is made up for.

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
    CHECK_TEMP, DiskStore, INCOMING_FOLDER, MARK_TEMP, OWN_FOLDER, PUT_TEMP, blocking, from_io, sync_folder,
    to_meta,
};

#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    #[error("more bytes came than were announced")]
    TooLong,
    #[error("only {0} bytes came")]
    TooShort(u64),
    #[error("the SHA-256 of the bytes is another")]
    Checksum,
    #[error("there is an object under this key already")]
    Exists,
    #[error(transparent)]
    Store(#[from] BlobError),
}

/// Bytes that are arriving. Dropped before it is finished, it leaves nothing behind.
pub struct Incoming {
    temp: TempName,
    target: PathBuf,
    file: tokio::fs::File,
    size: u64,
    written: u64,
    checksum: Option<(Sha256, String)>,
}

/// Bytes that are in place, whose file has to be looked at once more.
pub struct Received {
    temp: TempName,
    target: PathBuf,
    pub meta: ObjectMeta,
}

/// A temporary name that is removed when dropped, unless it must be kept for recovery.
struct TempName {
    path: PathBuf,
    armed: bool,
}

impl Drop for TempName {
    fn drop(&mut self) {
        if self.armed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What an upload that never came to its end left in the folder of incoming files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    pub file: FileId,
    /// Its object is in place.
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
        let made = async { tokio::fs::File::create_new(&path).await.map_err(from_io) };
        let opened = self.faults.around("create temporary file", made).await?;
        Ok(Incoming {
            temp: TempName { path, armed: true },
            target: self.path(key),
            file: opened,
            size,
            written: 0,
            checksum: checksum_sha256.map(|expected| (Sha256::new(), expected)),
        })
    }

    /// Checks the bytes, makes them durable, and puts them in place if the place is free.
    pub async fn place(&self, incoming: Incoming) -> Result<Received, IncomingError> {
        let Incoming { mut temp, target, mut file, size, written, checksum } = incoming;
        if written != size {
            return Err(IncomingError::TooShort(written));
        }
        if let Some((hasher, expected)) = checksum
            && to_hex(&hasher.finalize()) != expected
        {
            return Err(IncomingError::Checksum);
        }
        let folder = self.root.join(INCOMING_FOLDER);
        let synced = async {
            file.flush().await.map_err(from_io)?;
            file.sync_all().await.map_err(from_io)?;
            // The temporary name too: after a power cut it must not be missing where the object is there.
            blocking(move || sync_folder(&folder).map_err(from_io)).await
        };
        self.faults.around("sync", synced).await?;
        drop(file);
        // From here on a crash may leave the object in place: the temporary name is the note that says so.
        temp.armed = false;
        let (from, to, root) = (temp.path.clone(), target.clone(), self.root.clone());
        let linked = blocking(move || Ok(link_durably(&root, &from, &to)));
        let meta = match self.faults.around("link", linked).await {
            Ok(Ok(meta)) => meta,
            Ok(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                temp.armed = true;
                return Err(IncomingError::Exists);
            }
            Ok(Err(error)) => return Err(IncomingError::Store(from_io(error))),
            Err(error) => return Err(IncomingError::Store(error)),
        };
        Ok(Received { temp, target, meta: to_meta(&meta) })
    }

    /// What crashed uploads left: those that are in place but were not looked at again, and those that have
    /// not been written to for `quiet`.
    pub async fn left_behind(&self, quiet: Duration) -> Result<Vec<LeftBehind>, BlobError> {
        let folder = self.root.join(INCOMING_FOLDER);
        blocking(move || find_left_behind(&folder, quiet).map_err(from_io)).await
    }

    /// Removes what killed writes of small objects, marks and checks left, once it has been there for `quiet`.
    pub async fn clear_temporary(&self, quiet: Duration) -> Result<u64, BlobError> {
        let root = self.root.clone();
        blocking(move || {
            let small = remove_temporary(&root.join(INCOMING_FOLDER), &[PUT_TEMP, CHECK_TEMP], quiet);
            let marks = remove_temporary(&root.join(OWN_FOLDER), &[MARK_TEMP], quiet);
            Ok(small.map_err(from_io)? + marks.map_err(from_io)?)
        })
        .await
    }

    /// Clears up after a crashed upload. Its object stays only if its file is still waiting for it.
    pub async fn clear(
        &self,
        left: LeftBehind,
        key: Option<&ObjectKey>,
        keep: bool,
    ) -> Result<(), BlobError> {
        let target = key.map(|key| self.path(key));
        blocking(move || {
            if let (Some(target), false) = (target, keep) {
                remove_if_same(&left.temp, &target).map_err(from_io)?;
            }
            remove_if_there(&left.temp).map_err(from_io)
        })
        .await
    }
}

impl Incoming {
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
    /// The file still waits for these bytes.
    pub fn keep(mut self) {
        self.temp.armed = true;
    }

    /// The file has ended meanwhile: these bytes came too late.
    pub async fn withdraw(self) -> Result<(), BlobError> {
        let (temp, target) = (self.temp.path.clone(), self.target.clone());
        blocking(move || {
            remove_if_same(&temp, &target).map_err(from_io)?;
            remove_if_there(&temp).map_err(from_io)
        })
        .await
    }
}

/// How often an upload makes its folder again that was pruned, being empty, before the upload was in it.
const LINK_TRIES_MAX: u32 = 100;

/// A hard link takes a name only if nobody has it, which a rename does not.
fn link_durably(root: &Path, from: &Path, to: &Path) -> io::Result<fs::Metadata> {
    let folder = to.parent().unwrap_or(root);
    // Before the link: afterwards the file may end at any moment, and both names be gone with it.
    let meta = fs::metadata(from)?;
    let mut tries = 1;
    loop {
        match make_folder(root, folder).and_then(|()| fs::hard_link(from, to)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < LINK_TRIES_MAX => tries += 1,
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    sync_folders_up(root, folder)?;
    Ok(meta)
}

/// Every folder on the way, because another upload may have made one and not have synced it yet.
pub(super) fn sync_folders_up(root: &Path, folder: &Path) -> io::Result<()> {
    let mut folder = folder;
    loop {
        sync_folder_if_there(folder)?;
        match folder.parent() {
            Some(parent) if folder != root => folder = parent,
            _ => return Ok(()),
        }
    }
}

fn sync_folder_if_there(folder: &Path) -> io::Result<()> {
    match sync_folder(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn make_folder(root: &Path, folder: &Path) -> io::Result<()> {
    if folder == root || folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_folder(root, parent)?;
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Names that no upload has: of small writes that were cut off.
fn is_temporary(name: &str, prefixes: &[&str]) -> bool {
    prefixes
        .iter()
        .any(|prefix| name.strip_prefix(prefix).is_some_and(|id| uuid::Uuid::try_parse(id).is_ok()))
}

/// Answers how many were removed. One that cannot be looked at or removed keeps no other from going.
fn remove_temporary(folder: &Path, prefixes: &[&str], quiet: Duration) -> io::Result<u64> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| is_temporary(name, prefixes));
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_ours && age.is_some_and(|age| age >= quiet) && remove_if_there(&entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

fn find_left_behind(folder: &Path, quiet: Duration) -> io::Result<Vec<LeftBehind>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(file) = name.to_str().and_then(|name| name.split('.').next()?.parse().ok()) else {
            continue;
        };
        let Ok(meta) = entry.metadata() else { continue };
        let age = meta.modified()?.elapsed().unwrap_or_default();
        if meta.nlink() > 1 || age >= quiet {
            found.push(LeftBehind { file, placed: meta.nlink() > 1, temp: entry.path() });
        }
    }
    Ok(found)
}

/// Removes the target if it is the very file the temporary name stands for, and never another's.
fn remove_if_same(temp: &Path, target: &Path) -> io::Result<()> {
    let (Some(ours), Some(placed)) = (metadata_if_there(temp)?, metadata_if_there(target)?) else {
        return Ok(());
    };
    if (ours.dev(), ours.ino()) == (placed.dev(), placed.ino()) {
        remove_if_there(target)?;
        if let Some(folder) = target.parent() {
            sync_folder_if_there(folder)?;
        }
    }
    Ok(())
}

/// Only a clear "absent" is none; any other error is one.
fn metadata_if_there(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
