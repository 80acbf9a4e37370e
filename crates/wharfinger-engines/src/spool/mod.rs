//! The event spool: batches that wait on disk until the store accepts them. Each batch is a gzip file with a metadata
//! file, in folders with a few thousand files. The index is in memory, and a journal on disk speeds up the start.

mod dir_lock;
mod durable;
mod index;
mod journal;
mod segments;
mod shares;
mod walk;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use wharfinger_events::name::{BatchName, META};
use wharfinger_lifecycle::UnixMs;

use dir_lock::DirLock;
use index::{Entry, Index};
use journal::Journal;
pub use segments::{LeftoverSegment, Segment, SegmentFolder};
use shares::{Shares, TenantBytes};

/// Larger folders are slow in many file systems, even after they are empty again.
const SHARD_FILES_MAX: usize = 4_096;
const SHARD: &str = "shard-";
/// Batches are read completely into memory, so larger files are refused.
const FILE_BYTES_MAX: u64 = 1 << 30;

pub struct Spool {
    dir: DirLock,
    bytes_max: u64,
    shares: Arc<Shares>,
    inner: Mutex<Inner>,
}

/// The events of a batch.
#[derive(Clone, Debug, Default)]
pub struct BatchContents {
    pub events: u64,
    /// Uncompressed bytes per tenant.
    pub tenants: BTreeMap<String, u64>,
}

struct Inner {
    index: Index,
    journal: Journal,
    /// The folder for new batches.
    shard: Option<usize>,
    next_shard: u64,
}

/// The unsent batches that a call removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub events: u64,
}

impl Removed {
    fn add(&mut self, entry: Option<&Entry>) {
        self.files += u64::from(entry.is_some());
        self.events += entry.map_or(0, |entry| entry.events);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("the batch has {bytes} bytes, the limit of the spool is {bytes_max}")]
    TooLarge { bytes: u64, bytes_max: u64 },
    #[error("{0}")]
    Disk(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    pub files: u64,
    pub bytes: u64,
    pub events: u64,
    /// When the oldest batch was opened, in seconds since 1970.
    pub oldest_unix: Option<i64>,
}

/// One batch of the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpooledBatch {
    pub name: BatchName,
    pub bytes: u64,
    pub events: u64,
    /// The store has the batch. Only its file must still be removed.
    pub is_stored: bool,
}

impl Spool {
    /// Opens the folder, also one that another program wrote. If another process uses it, a subfolder is opened
    /// instead.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Spool> {
        let mut dir = DirLock::take(folder)?;
        let journaled = Journal::read(&dir.root);
        let found = walk::walk(&mut dir, &journaled.entries)?;
        let next_shard = found.next_shard;
        let shares = Arc::new(Shares::default());
        let mut index = Index::with_shares(shares.clone());
        for (path, files) in found.folders {
            let is_shard = path.to_str().is_some_and(|name| name.starts_with(SHARD));
            let at = index.add_folder(path, is_shard);
            for walk::FoundBatch { name, info } in files {
                let name = match index.contains(&name) {
                    true => rename_duplicate(&dir.root.join(index.folder(at)), &name, &index)?,
                    false => name,
                };
                let journal::BatchInfo { bytes, events, tenants } = info;
                index.insert(name, Entry { folder: at, bytes, events, tenants });
            }
        }
        for folder in index.empty_shards() {
            let _ = fs::remove_dir(dir.root.join(index.folder(folder)));
        }
        let journal = match journaled.matches(&index) {
            true => Journal::append_to(&dir.root, journaled.lines),
            false => Journal::rebuild(&dir.root, &index),
        };
        let inner = Inner { index, journal, shard: None, next_shard };
        Ok(Spool { dir, bytes_max, shares, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn folder(&self) -> &Path {
        &self.dir.root
    }

    /// Writes a batch durably. If the spool is then over its limit, the oldest batches are removed and returned. Saving
    /// the same name again replaces the batch.
    pub fn save(&self, name: &BatchName, gz: &[u8], contents: &BatchContents) -> Result<Removed, SaveError> {
        let bytes = gz.len() as u64;
        let events = contents.events;
        let tenants = TenantBytes::divide(bytes, &contents.tenants);
        if bytes > self.bytes_max {
            return Err(SaveError::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let (at, folder) = {
            let mut inner = self.lock();
            let at = match inner.index.entry(name) {
                Some(entry) => entry.folder,
                None => self.shard(&mut inner)?,
            };
            // Keeps other threads from removing the folder.
            inner.index.begin_write(at);
            (at, self.dir.root.join(inner.index.folder(at)))
        };
        let meta = match tenants.is_empty() {
            true => format!("{{\"num_events\":{events}}}"),
            false => format!("{{\"num_events\":{events},\"tenants\":{}}}", tenants.to_json()),
        };
        let written = durable::write_pair(&folder, name, gz, meta.as_bytes());
        let mut inner = self.lock();
        inner.index.end_write(at);
        if let Err(error) = written {
            // The next batch uses another folder.
            if inner.shard == Some(at) {
                inner.shard = None;
            }
            if inner.index.is_empty_shard(at) {
                let _ = fs::remove_dir(&folder);
            }
            return Err(error.into());
        }
        inner.index.insert(name.clone(), Entry { folder: at, bytes, events, tenants });
        inner.record_added(name);
        Ok(self.remove_oldest(&mut inner))
    }

    fn remove_oldest(&self, inner: &mut Inner) -> Removed {
        let mut removed = Removed::default();
        while inner.index.bytes() > self.bytes_max {
            let Some(name) = inner.index.oldest_to_remove() else { break };
            removed.add(inner.index.unstored(&name));
            // A file that cannot be removed leaves the index, so that the loop ends. It is not sent any more.
            if let Err(error) = self.remove_files(inner, &name) {
                tracing::error!(file = %name, error = %error, "cannot remove a batch from the spool");
                inner.forget(&name, &self.dir.root);
            }
        }
        removed
    }

    fn shard(&self, inner: &mut Inner) -> io::Result<usize> {
        if let Some(at) = inner.shard.filter(|at| inner.index.files_in(*at) < SHARD_FILES_MAX) {
            return Ok(at);
        }
        loop {
            let name = PathBuf::from(format!("{SHARD}{:08}", inner.next_shard));
            inner.next_shard += 1;
            match fs::create_dir(self.dir.root.join(&name)) {
                Ok(()) => {
                    durable::sync_folder(&self.dir.root)?;
                    let at = inner.index.add_folder(name, true);
                    inner.shard = Some(at);
                    return Ok(at);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The oldest batch that is not deferred.
    pub fn oldest(&self, now: UnixMs) -> Option<SpooledBatch> {
        self.lock().index.oldest(now)
    }

    /// Skips a batch until this time. Other batches are not affected.
    pub fn defer(&self, name: &BatchName, until: UnixMs, is_stored: bool) {
        self.lock().index.defer(name, until, is_stored);
    }

    /// Marks the batch that is being sent, which no limit removes. `None`: no batch.
    pub fn set_sending(&self, name: Option<&BatchName>) {
        self.lock().index.set_sending(name.cloned());
    }

    fn path(&self, inner: &Inner, name: &BatchName) -> Option<PathBuf> {
        let entry = inner.index.entry(name)?;
        Some(self.dir.root.join(inner.index.folder(entry.folder)).join(name.as_str()))
    }

    pub fn read(&self, name: &BatchName) -> io::Result<Vec<u8>> {
        let path = self.path(&self.lock(), name).ok_or(io::ErrorKind::NotFound)?;
        if fs::metadata(&path)?.len() > FILE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the file is larger than a batch may be",
            ));
        }
        fs::read(path)
    }

    /// Removes a batch that the store has, or that is given up.
    pub fn remove(&self, name: &BatchName) -> io::Result<()> {
        self.remove_files(&mut self.lock(), name)
    }

    /// Removes the data first: after a crash, only metadata without data can remain.
    fn remove_files(&self, inner: &mut Inner, name: &BatchName) -> io::Result<()> {
        let Some(path) = self.path(inner, name) else { return Ok(()) };
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut meta = path.into_os_string();
        meta.push(META);
        // The next start removes metadata without data.
        let _ = fs::remove_file(meta);
        inner.forget(name, &self.dir.root);
        Ok(())
    }

    /// Removes all batches that were opened before this second, except the one that is being sent. Returns the removed
    /// batches.
    pub fn expire(&self, before_unix: i64) -> Removed {
        let mut removed = Removed::default();
        loop {
            let mut inner = self.lock();
            let Some(name) = inner.index.oldest_to_remove().filter(|name| name.unix() < before_unix) else {
                return removed;
            };
            removed.add(inner.index.unstored(&name));
            if let Err(error) = self.remove_files(&mut inner, &name) {
                tracing::error!(file = %name, error = %error, "cannot remove an expired batch from the spool");
                inner.forget(&name, &self.dir.root);
            }
        }
    }

    /// Whether the spool is nearly full and this tenant uses more than an equal share.
    pub fn is_over_share(&self, tenant: &str) -> bool {
        self.shares.is_over_share(tenant, self.bytes_max)
    }

    pub fn status(&self) -> SpoolStatus {
        let inner = self.lock();
        SpoolStatus {
            files: inner.index.files() as u64,
            bytes: inner.index.bytes(),
            events: inner.index.events(),
            oldest_unix: inner.index.oldest_of_all().map(|name| name.unix()),
        }
    }
}

impl Inner {
    fn record_added(&mut self, name: &BatchName) {
        if let Some(entry) = self.index.entry(name) {
            self.journal.record_added(self.index.folder(entry.folder), name, entry);
        }
    }

    fn forget(&mut self, name: &BatchName, root: &Path) {
        let Some(entry) = self.index.remove(name) else { return };
        self.journal.record_removed(self.index.folder(entry.folder), name);
        if self.index.is_empty_shard(entry.folder) {
            let _ = fs::remove_dir(root.join(self.index.folder(entry.folder)));
            if self.shard == Some(entry.folder) {
                self.shard = None;
            }
        }
        self.journal.compact(&self.index, root);
    }
}

/// Renames a batch whose name exists in another folder. Both would otherwise become the same object in the store.
fn rename_duplicate(folder: &Path, name: &BatchName, index: &Index) -> io::Result<BatchName> {
    let mut counter = 1;
    loop {
        let other = name.renamed(counter);
        let path = folder.join(other.as_str());
        if !path.exists() && !index.contains(&other) {
            let meta = |name: &BatchName| folder.join(format!("{name}{META}"));
            if meta(name).exists() {
                fs::rename(meta(name), meta(&other))?;
            }
            fs::rename(folder.join(name.as_str()), path)?;
            tracing::warn!(file = %name, new_name = %other, "renamed a spooled batch with a duplicate name");
            return Ok(other);
        }
        counter += 1;
    }
}

#[cfg(test)]
mod tests;
