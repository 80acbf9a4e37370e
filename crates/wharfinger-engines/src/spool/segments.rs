//! The batches that are open or not stored yet, as files that what was accepted is appended to: what a crash leaves of
//! them is taken up at the next start.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use wharfinger_events::name::BatchName;

use super::dir_lock::DirLock;
use super::durable::sync_folder;

const SLOTS_MAX: u32 = 64;
const GZ: &str = ".gz";

/// One of a few numbered folders: each process has its own.
pub struct SegmentFolder {
    dir: DirLock,
}

/// A segment of a process that is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub name: BatchName,
    pub path: PathBuf,
}

pub struct Segment {
    file: File,
    path: PathBuf,
    length: u64,
    /// What it ends with is unknown: nothing is appended any more.
    is_broken: bool,
}

impl SegmentFolder {
    /// With what was left in all of them by processes that are no more, the oldest first.
    pub fn open(root: &Path) -> io::Result<(SegmentFolder, Vec<Leftover>)> {
        let slot = |number: u32| root.join(number.to_string());
        let mut dir = DirLock::first_free((0..SLOTS_MAX).map(slot))?;
        let mut left = Vec::new();
        for number in 0..SLOTS_MAX {
            let folder = slot(number);
            if folder == dir.root || (folder.exists() && dir.also_take(&folder)?) {
                left.extend(left_in(&folder)?);
            }
        }
        left.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((SegmentFolder { dir }, left))
    }

    /// It is there after a power cut, too, once this has answered.
    pub fn create(&self, name: &BatchName) -> io::Result<Segment> {
        let path = self.dir.root.join(name.as_str().strip_suffix(GZ).unwrap_or(name.as_str()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        sync_folder(&self.dir.root).inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(Segment { file, path, length: 0, is_broken: false })
    }
}

fn left_in(folder: &Path) -> io::Result<Vec<Leftover>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_str().and_then(|name| BatchName::parse(&format!("{name}{GZ}")));
        if let Some(name) = name.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file())) {
            left.push(Leftover { name, path: entry.path() });
        }
    }
    Ok(left)
}

impl Segment {
    /// All of it or, as far as anybody will read it, nothing.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("the segment is broken"));
        }
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            Err(_) => self.is_broken = self.cut_back().is_err(),
        }
        written
    }

    fn cut_back(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length))?;
        Ok(())
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
