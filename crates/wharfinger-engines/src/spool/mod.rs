//! Batches of events that wait on disk until the store takes them: files of gzip with their metadata beside them, in
//! folders of a few thousand, with an index in memory. The files are the truth; the journal is the index's cache.

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
pub use segments::{Leftover, Segment, SegmentFolder};
use shares::{Shares, TenantBytes};

/// A folder of more than this is slow in many file systems, and stays so when it is empty again.
const SHARD_FILES_MAX: usize = 4_096;
const SHARD: &str = "shard-";
/// A batch is read whole, to be looked through and sent.
const FILE_BYTES_MAX: u64 = 1 << 30;

pub struct Spool {
    dir: DirLock,
    bytes_max: u64,
    shares: Arc<Shares>,
    inner: Mutex<Inner>,
}

/// What a batch consists of.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub events: u64,
    /// How its bytes are divided among tenants, before they were packed.
    pub tenants: BTreeMap<String, u64>,
}

struct Inner {
    index: Index,
    journal: Journal,
    /// The folder that new batches go to.
    shard: Option<usize>,
    next_shard: u64,
}

/// What is not in the spool any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    pub files: u64,
    pub events: u64,
}

impl Gone {
    fn add(&mut self, entry: Option<&Entry>) {
        self.files += u64::from(entry.is_some());
        self.events += entry.map_or(0, |entry| entry.events);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NotSaved {
    #[error("it has {bytes} bytes, and the spool may have {bytes_max}")]
    TooLarge { bytes: u64, bytes_max: u64 },
    #[error("{0}")]
    Disk(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    pub files: u64,
    pub bytes: u64,
    pub events: u64,
    /// When the oldest batch was begun, in seconds since 1970.
    pub oldest_unix: Option<i64>,
}

/// One batch of the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub name: BatchName,
    pub bytes: u64,
    pub events: u64,
    /// The store has it; only the file is left to be removed.
    pub is_stored: bool,
}

impl Spool {
    /// Takes the folder over as it is, whoever wrote it. Where another process works on it, a folder below it is ours.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Spool> {
        let mut dir = DirLock::take(folder)?;
        let known = Journal::read(&dir.root);
        let found = walk::walk(&mut dir, &known.entries)?;
        let next_shard = found.next_shard;
        let shares = Arc::new(Shares::default());
        let mut index = Index::counting_in(shares.clone());
        for (path, files) in found.folders {
            let is_shard = path.to_str().is_some_and(|name| name.starts_with(SHARD));
            let at = index.add_folder(path, is_shard);
            for walk::Batch { name, noted } in files {
                let name = match index.contains(&name) {
                    true => rename_twin(&dir.root.join(index.folder(at)), &name, &index)?,
                    false => name,
                };
                let journal::Noted { bytes, events, tenants } = noted;
                index.insert(name, Entry { folder: at, bytes, events, tenants });
            }
        }
        for folder in index.empty_shards() {
            let _ = fs::remove_dir(dir.root.join(index.folder(folder)));
        }
        let journal = match known.is_true_of(&index) {
            true => Journal::go_on(&dir.root, known.lines),
            false => Journal::anew(&dir.root, &index),
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

    /// Puts a batch on disk to stay; then the oldest make room for it, and the answer is what had to go. The same name
    /// again is the same batch.
    pub fn save(&self, name: &BatchName, gz: &[u8], contents: &Contents) -> Result<Gone, NotSaved> {
        let bytes = gz.len() as u64;
        let events = contents.events;
        let tenants = TenantBytes::divide(bytes, &contents.tenants);
        if bytes > self.bytes_max {
            return Err(NotSaved::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let (at, folder) = {
            let mut inner = self.lock();
            let at = match inner.index.entry(name) {
                Some(entry) => entry.folder,
                None => self.shard(&mut inner)?,
            };
            // So that nobody takes the folder away meanwhile.
            inner.index.expect(at);
            (at, self.dir.root.join(inner.index.folder(at)))
        };
        let meta = match tenants.is_empty() {
            true => format!("{{\"num_events\":{events}}}"),
            false => format!("{{\"num_events\":{events},\"tenants\":{}}}", tenants.to_json()),
        };
        let written = durable::write_pair(&folder, name, gz, meta.as_bytes());
        let mut inner = self.lock();
        inner.index.expected(at);
        if let Err(error) = written {
            // A folder that does not take it is not tried again; the next batch gets another.
            if inner.shard == Some(at) {
                inner.shard = None;
            }
            if inner.index.is_empty_shard(at) {
                let _ = fs::remove_dir(&folder);
            }
            return Err(error.into());
        }
        inner.index.insert(name.clone(), Entry { folder: at, bytes, events, tenants });
        inner.note_added(name);
        Ok(self.make_room(&mut inner))
    }

    fn make_room(&self, inner: &mut Inner) -> Gone {
        let mut gone = Gone::default();
        while inner.index.bytes() > self.bytes_max {
            let Some(name) = inner.index.oldest_to_remove() else { break };
            gone.add(inner.index.unstored(&name));
            // What cannot be removed is not counted any more: the limit is on what we would still send.
            if let Err(error) = self.take_away(inner, &name) {
                tracing::error!(file = %name, error = %error, "a batch could not be removed from the spool");
                inner.forget(&name, &self.dir.root);
            }
        }
        gone
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

    /// The oldest batch that is not set aside.
    pub fn oldest(&self, now: UnixMs) -> Option<Held> {
        self.lock().index.oldest(now)
    }

    /// Nothing can be done with it before this; the others go on.
    pub fn set_aside(&self, name: &BatchName, until: UnixMs, is_stored: bool) {
        self.lock().index.set_aside(name, until, is_stored);
    }

    /// It is being sent: no limit takes it away meanwhile. None: nothing is.
    pub fn send(&self, name: Option<&BatchName>) {
        self.lock().index.send(name.cloned());
    }

    fn path(&self, inner: &Inner, name: &BatchName) -> Option<PathBuf> {
        let entry = inner.index.entry(name)?;
        Some(self.dir.root.join(inner.index.folder(entry.folder)).join(name.as_str()))
    }

    pub fn read(&self, name: &BatchName) -> io::Result<Vec<u8>> {
        let path = self.path(&self.lock(), name).ok_or(io::ErrorKind::NotFound)?;
        if fs::metadata(&path)?.len() > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than a batch may be"));
        }
        fs::read(path)
    }

    /// The store has it, or nobody will ever: what lies here goes.
    pub fn remove(&self, name: &BatchName) -> io::Result<()> {
        self.take_away(&mut self.lock(), name)
    }

    /// The data first: what is left by a crash is metadata of nothing.
    fn take_away(&self, inner: &mut Inner, name: &BatchName) -> io::Result<()> {
        let Some(path) = self.path(inner, name) else { return Ok(()) };
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut meta = path.into_os_string();
        meta.push(META);
        // Without its data it is removed at the next start.
        let _ = fs::remove_file(meta);
        inner.forget(name, &self.dir.root);
        Ok(())
    }

    /// Removes what was begun before this second, however far it is on its way; answers what it was.
    pub fn expire(&self, before_unix: i64) -> Gone {
        let mut gone = Gone::default();
        loop {
            let mut inner = self.lock();
            let Some(name) = inner.index.oldest_to_remove().filter(|name| name.unix() < before_unix) else {
                return gone;
            };
            gone.add(inner.index.unstored(&name));
            if let Err(error) = self.take_away(&mut inner, &name) {
                tracing::error!(file = %name, error = %error, "an old batch could not be removed from the spool");
                inner.forget(&name, &self.dir.root);
            }
        }
    }

    /// Whether the spool is nearly full and this tenant has more than an equal share of it.
    pub fn is_over_share(&self, tenant: &str) -> bool {
        self.shares.is_over(tenant, self.bytes_max)
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
    fn note_added(&mut self, name: &BatchName) {
        if let Some(entry) = self.index.entry(name) {
            self.journal.added(self.index.folder(entry.folder), name, entry);
        }
    }

    fn forget(&mut self, name: &BatchName, root: &Path) {
        let Some(entry) = self.index.remove(name) else { return };
        self.journal.removed(self.index.folder(entry.folder), name);
        if self.index.is_empty_shard(entry.folder) {
            let _ = fs::remove_dir(root.join(self.index.folder(entry.folder)));
            if self.shard == Some(entry.folder) {
                self.shard = None;
            }
        }
        self.journal.keep_short(&self.index, root);
    }
}

/// Two batches of one name in two folders would be one object in the store: the second gets a name of its own.
fn rename_twin(folder: &Path, name: &BatchName, index: &Index) -> io::Result<BatchName> {
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
            tracing::warn!(file = %name, now = %other, "two batches of the spool had the same name");
            return Ok(other);
        }
        counter += 1;
    }
}

#[cfg(test)]
mod tests;
