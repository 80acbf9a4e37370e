//! Which folder is ours: two processes on one spool would send, and count, the same batches.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::durable::sync_folder;

const LOCK: &str = ".wharfinger-lock";
/// Of processes that found the folder taken.
const BESIDE: &str = "beside-";
const BESIDE_MAX: u32 = 64;

pub(super) struct DirLock {
    pub(super) root: PathBuf,
    /// Held as long as the process lives.
    locks: Vec<File>,
}

impl DirLock {
    /// The folder, or the first one below it that nobody works on.
    pub(super) fn take(folder: &Path) -> io::Result<DirLock> {
        DirLock::first_free(
            std::iter::once(folder.to_path_buf())
                .chain((1..=BESIDE_MAX).map(|number| folder.join(format!("{BESIDE}{number}")))),
        )
    }

    pub(super) fn first_free(folders: impl Iterator<Item = PathBuf>) -> io::Result<DirLock> {
        for root in folders {
            make(&root)?;
            if let Some(lock) = lock(&root)? {
                return Ok(DirLock { root, locks: vec![lock] });
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many processes work on it"))
    }

    /// Whether a folder below is nobody else's; from now on it is ours.
    pub(super) fn also_take(&mut self, folder: &Path) -> io::Result<bool> {
        if !folder.join(LOCK).exists() {
            return Ok(true);
        }
        let lock = lock(folder)?;
        let is_free = lock.is_some();
        self.locks.extend(lock);
        Ok(is_free)
    }
}

/// A folder that is there after a power cut, too, with all that lead to it.
fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make(parent)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => Err(error),
        _ => sync_folder(parent),
    }
}

fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
