//! Lists the files of the store in the order of their keys, in bounded memory. A folder is read in windows: one with a
//! million names is read several times instead of being held in memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tokio::sync::mpsc;

use super::super::{BlobError, ListedObject};
use super::{DISK_GONE, from_io, is_mounted};

const CHUNK_OBJECTS: usize = 1_000;
/// The names of one folder that are held in memory at a time.
const WINDOW_NAMES: usize = 131_072;

type Chunk = Result<Vec<ListedObject>, BlobError>;

struct Walk {
    root: PathBuf,
    mounted: PathBuf,
    prefix: String,
    start_after: String,
    chunk: Vec<ListedObject>,
    out: mpsc::Sender<Chunk>,
}

/// The receiver of the listing was dropped.
struct ReceiverGone;

enum WalkError {
    ReceiverGone,
    Io(io::Error),
}

impl From<io::Error> for WalkError {
    fn from(error: io::Error) -> Self {
        WalkError::Io(error)
    }
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink())
}

/// Links in a loop, through a file, or to an invalid name. A link whose target is only unreachable is not one of these:
/// its disk may be unmounted for a moment.
fn is_invalid_link(error: &io::Error) -> bool {
    const ELOOP: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };
    matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename)
        || error.raw_os_error() == Some(ELOOP)
}

impl From<ReceiverGone> for WalkError {
    fn from(_: ReceiverGone) -> Self {
        WalkError::ReceiverGone
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
        let ended = walk.check_mounted().and_then(|()| walk.folder(&PathBuf::new(), ""));
        let flushed = match ended {
            Ok(()) => walk.flush(),
            Err(WalkError::ReceiverGone) => Err(ReceiverGone),
            Err(WalkError::Io(error)) => {
                walk.out.blocking_send(Err(from_io(error))).map_err(|_| ReceiverGone)
            }
        };
        // If the receiver is gone, the error has no reader.
        drop(flushed);
    });
    listing
}

/// The smallest names of a folder, at most [`WINDOW_NAMES`]. It collects twice as many and drops the larger half, which
/// is much cheaper than keeping them sorted.
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

    /// True: these are all names.
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
    /// A disk that is unmounted during a walk must not look like an empty one.
    fn check_mounted(&self) -> Result<(), WalkError> {
        if is_mounted(&self.mounted) { Ok(()) } else { Err(WalkError::Io(io::Error::other(DISK_GONE))) }
    }

    fn folder(&mut self, path: &Path, key_prefix: &str) -> Result<(), WalkError> {
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

    /// The next relevant names of a folder, in order. A subfolder's name ends in a slash, because it sorts that way in
    /// a key. True: there are no more.
    fn window(&self, path: &Path, key_prefix: &str, after: &str) -> Result<(Vec<String>, bool), WalkError> {
        let mut names = Window::default();
        let entries = match fs::read_dir(self.root.join(path)) {
            // Removed after its parent was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_mounted()?;
                return Ok((Vec::new(), true));
            }
            entries => entries.map_err(|error| with_path(path, &error))?,
        };
        // The start and the prefix of the walk, relative to this folder.
        let start_after = self.start_after.strip_prefix(key_prefix).unwrap_or_default();
        let prefix = self.prefix.strip_prefix(key_prefix).unwrap_or_default();
        for entry in entries {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else { continue };
            // The program's own folders start with a dot.
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

    fn object(&mut self, path: &Path, key: String) -> Result<(), WalkError> {
        let meta = match fs::metadata(self.root.join(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.check_mounted(),
            // An invalid link is not an object.
            Err(error) if is_invalid_link(&error) && is_link(&self.root.join(path)) => return Ok(()),
            meta => meta.map_err(|error| with_path(path, &error))?,
        };
        // A link to a folder is not an object. If it were listed, a delete could remove it.
        if !meta.is_file() {
            return Ok(());
        }
        let modified = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified_at = i64::try_from(modified.as_millis()).unwrap_or(i64::MAX);
        self.chunk.push(ListedObject { key, size: meta.len(), modified_at });
        if self.chunk.len() == CHUNK_OBJECTS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ReceiverGone> {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_OBJECTS));
        self.out.blocking_send(Ok(chunk)).map_err(|_| ReceiverGone)
    }
}
