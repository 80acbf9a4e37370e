//! Locks a spool folder for one process. Two processes on one folder would send and count the same batches.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::durable::sync_folder;

const LOCK: &str = ".wharfinger-lock";
/// Subfolders for processes that find the folder locked.
const SUBFOLDER: &str = "beside-";
const SUBFOLDERS_MAX: u32 = 64;

pub(super) struct DirLock {
    pub(super) root: PathBuf,
    /// Dropping the files releases the locks.
    locks: Vec<File>,
}

impl DirLock {
    /// Locks the folder, or the first free subfolder.
    pub(super) fn take(folder: &Path) -> io::Result<DirLock> {
        DirLock::first_free(
            std::iter::once(folder.to_path_buf())
                .chain((1..=SUBFOLDERS_MAX).map(|number| folder.join(format!("{SUBFOLDER}{number}")))),
        )
    }

    pub(super) fn first_free(folders: impl Iterator<Item = PathBuf>) -> io::Result<DirLock> {
        for root in folders {
            create(&root)?;
            if let Some(lock) = try_lock(&root)? {
                return Ok(DirLock { root, locks: vec![lock] });
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many processes use this folder"))
    }

    /// Locks a subfolder too, if it has a lock file. Returns false if another process holds the lock.
    pub(super) fn also_lock(&mut self, folder: &Path) -> io::Result<bool> {
        if !folder.join(LOCK).exists() {
            return Ok(true);
        }
        let lock = try_lock(folder)?;
        let is_free = lock.is_some();
        self.locks.extend(lock);
        Ok(is_free)
    }
}

/// Creates a folder and its parents. They survive a power failure.
fn create(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create(parent)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => Err(error),
        _ => sync_folder(parent),
    }
}

/// None: another process holds the lock.
fn try_lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
