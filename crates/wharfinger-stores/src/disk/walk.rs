//! A walk over the store in the order of its keys, in constant memory. Folders are read in windows: a folder
//! of a million names is read a few times over rather than held.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tokio::sync::mpsc;

use super::super::{BlobError, Listed};
use super::{DISK_GONE, from_io, is_mounted};

const CHUNK_OBJECTS: usize = 1_000;
/// Names of one folder that are held at a time.
const WINDOW_NAMES: usize = 131_072;

type Chunk = Result<Vec<Listed>, BlobError>;

struct Walk {
    root: PathBuf,
    mounted: PathBuf,
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

fn of_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink())
}

/// Links in a circle, through a file, or to what can be no name. Not those whose target is only out of reach: that may be a
/// disk that is away for a moment.
fn leads_nowhere(error: &io::Error) -> bool {
    const LINKS_IN_A_CIRCLE: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };
    matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename)
        || error.raw_os_error() == Some(LINKS_IN_A_CIRCLE)
}

impl From<Abandoned> for Stop {
    fn from(_: Abandoned) -> Self {
        Stop::Abandoned
    }
}

pub(super) fn start(
    root: PathBuf,
    mounted: PathBuf,
    prefix: String,
    start_after: Option<String>,
) -> mpsc::Receiver<Chunk> {
    let (out, listing) = mpsc::channel(2);
    let mut walk = Walk {
        root,
        mounted,
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

/// The smallest names of a folder, at most [`WINDOW_NAMES`] of them. Twice as many are gathered and the larger
/// half thrown away, which costs a fraction of keeping them sorted.
#[derive(Default)]
struct Window {
    names: Vec<String>,
    overflowed: bool,
}

impl Window {
    fn add(&mut self, name: String) {
        self.names.push(name);
        if self.names.len() >= 2 * WINDOW_NAMES {
            self.names.select_nth_unstable(WINDOW_NAMES);
            self.names.truncate(WINDOW_NAMES);
            self.overflowed = true;
        }
    }

    /// True if these are all.
    fn in_order(mut self) -> (Vec<String>, bool) {
        self.names.sort_unstable();
        if self.names.len() > WINDOW_NAMES {
            self.names.truncate(WINDOW_NAMES);
            self.overflowed = true;
        }
        (self.names, !self.overflowed)
    }
}

impl Walk {
    /// A disk that went away in the middle of a walk must not look like an empty one.
    fn is_mounted(&self) -> Result<(), Stop> {
        if is_mounted(&self.mounted) { Ok(()) } else { Err(Stop::Failed(io::Error::other(DISK_GONE))) }
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
    fn window(&self, path: &Path, key_prefix: &str, after: &str) -> Result<(Vec<String>, bool), Stop> {
        let mut names = Window::default();
        let entries = match fs::read_dir(self.root.join(path)) {
            // Pruned, or gone since its parent was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.is_mounted()?;
                return Ok((Vec::new(), true));
            }
            entries => entries.map_err(|error| of_path(path, &error))?,
        };
        // What the walk asks for, seen from inside this folder.
        let start_after = self.start_after.strip_prefix(key_prefix).unwrap_or_default();
        let prefix = self.prefix.strip_prefix(key_prefix).unwrap_or_default();
        for entry in entries {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else { continue };
            // What we keep for ourselves.
            if name.starts_with('.') && self.mounted != self.root {
                continue;
            }
            let is_folder = entry.file_type()?.is_dir();
            if is_folder {
                name.push('/');
            }
            let in_prefix = name.starts_with(prefix) || (is_folder && prefix.starts_with(name.as_str()));
            let is_later =
                name.as_str() > start_after || (is_folder && start_after.starts_with(name.as_str()));
            if in_prefix && is_later && name.as_str() > after {
                names.add(name);
            }
        }
        Ok(names.in_order())
    }

    fn object(&mut self, path: &Path, key: String) -> Result<(), Stop> {
        let meta = match fs::metadata(self.root.join(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.is_mounted(),
            // A link that leads nowhere is no object either.
            Err(error) if leads_nowhere(&error) && is_link(&self.root.join(path)) => return Ok(()),
            meta => meta.map_err(|error| of_path(path, &error))?,
        };
        // A link to a folder is no object, whatever it is called: nobody is to take it for one and delete it.
        if !meta.is_file() {
            return Ok(());
        }
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
