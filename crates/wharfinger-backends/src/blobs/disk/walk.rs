//! A walk over the store in the order of its keys, in constant memory. Folders are read in windows: a folder
//! of a million names is read a few times over rather than held.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tokio::sync::mpsc;

use super::super::{BlobError, Listed};
use super::{DISK_GONE, from_io, is_mounted};

const CHUNK_OBJECTS: usize = 1_000;
/// Names of one folder that are held at a time.
const WINDOW_NAMES: usize = 65_536;

type Chunk = Result<Vec<Listed>, BlobError>;

struct Walk {
    root: PathBuf,
    prefix: String,
    start_after: String,
    chunk: Vec<Listed>,
    out: mpsc::Sender<Chunk>,
}

/// Nobody listens any more.
struct Abandoned;

enum Stop {
    Abandoned,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Failed(error)
    }
}

impl From<Abandoned> for Stop {
    fn from(_: Abandoned) -> Self {
        Stop::Abandoned
    }
}

pub(super) fn start(root: PathBuf, prefix: String, start_after: Option<String>) -> mpsc::Receiver<Chunk> {
    let (out, listing) = mpsc::channel(2);
    let mut walk = Walk {
        root,
        prefix,
        start_after: start_after.unwrap_or_default(),
        chunk: Vec::with_capacity(CHUNK_OBJECTS),
        out,
    };
    tokio::task::spawn_blocking(move || {
        let ended = walk.is_mounted().and_then(|()| walk.folder(&PathBuf::new(), ""));
        let flushed = match ended {
            Ok(()) => walk.flush(),
            Err(Stop::Abandoned) => Err(Abandoned),
            Err(Stop::Failed(error)) => walk.out.blocking_send(Err(from_io(error))).map_err(|_| Abandoned),
        };
        // An abandoned walk has nobody to tell.
        drop(flushed);
    });
    listing
}

impl Walk {
    /// A disk that went away in the middle of a walk must not look like an empty one.
    fn is_mounted(&self) -> Result<(), Stop> {
        if is_mounted(&self.root) { Ok(()) } else { Err(Stop::Failed(io::Error::other(DISK_GONE))) }
    }

    fn folder(&mut self, path: &Path, key_prefix: &str) -> Result<(), Stop> {
        let mut after = String::new();
        loop {
            let (window, complete) = self.window(path, key_prefix, &after)?;
            for name in &window {
                let key = format!("{key_prefix}{name}");
                match name.strip_suffix('/') {
                    Some(folder) => self.folder(&path.join(folder), &key)?,
                    None => self.object(&path.join(name), key)?,
                }
            }
            match window.into_iter().next_back() {
                Some(last) if !complete => after = last,
                _ => return Ok(()),
            }
        }
    }

    /// The next names of a folder that can matter, in order; a folder's name ends in a slash, because that is
    /// how it sorts in a key. True if there are no more.
    fn window(&self, path: &Path, key_prefix: &str, after: &str) -> Result<(BTreeSet<String>, bool), Stop> {
        let mut names = BTreeSet::new();
        let mut complete = true;
        let entries = match fs::read_dir(self.root.join(path)) {
            // Pruned, or gone since its parent was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.is_mounted()?;
                return Ok((names, true));
            }
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') {
                continue;
            }
            if entry.file_type()?.is_dir() {
                name.push('/');
            }
            if name.as_str() <= after || !self.matters(&format!("{key_prefix}{name}")) {
                continue;
            }
            names.insert(name);
            if names.len() > WINDOW_NAMES {
                names.pop_last();
                complete = false;
            }
        }
        Ok((names, complete))
    }

    fn matters(&self, key: &str) -> bool {
        if key.ends_with('/') {
            let in_prefix = key.starts_with(&self.prefix) || self.prefix.starts_with(key);
            in_prefix && (key > self.start_after.as_str() || self.start_after.starts_with(key))
        } else {
            key.starts_with(&self.prefix) && key > self.start_after.as_str()
        }
    }

    fn object(&mut self, path: &Path, key: String) -> Result<(), Stop> {
        let meta = match fs::metadata(self.root.join(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.is_mounted(),
            meta => meta?,
        };
        let modified = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified_at = i64::try_from(modified.as_millis()).unwrap_or(i64::MAX);
        self.chunk.push(Listed { key, size: meta.len(), modified_at });
        if self.chunk.len() == CHUNK_OBJECTS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Abandoned> {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_OBJECTS));
        self.out.blocking_send(Ok(chunk)).map_err(|_| Abandoned)
    }
}
