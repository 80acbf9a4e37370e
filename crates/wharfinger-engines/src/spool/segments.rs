//! Segments: one file per batch that is open or not stored yet. Accepted events are appended to it. After a crash, the
//! next start sends the leftover segments.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use wharfinger_events::name::BatchName;

use super::dir_lock::DirLock;
use super::durable::sync_folder;

const SLOTS_MAX: u32 = 64;
const GZ: &str = ".gz";

/// One of a few numbered folders. Each process has its own.
pub struct SegmentFolder {
    dir: DirLock,
}

/// A segment of a process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverSegment {
    pub name: BatchName,
    pub path: PathBuf,
}

pub struct Segment {
    file: File,
    path: PathBuf,
    length: u64,
    /// A failed write left unknown bytes at the end. Further appends are refused.
    is_broken: bool,
}

impl SegmentFolder {
    /// Opens a free folder. Also returns the leftover segments of ended processes, the oldest first.
    pub fn open(root: &Path) -> io::Result<(SegmentFolder, Vec<LeftoverSegment>)> {
        let slot = |number: u32| root.join(number.to_string());
        let mut dir = DirLock::first_free((0..SLOTS_MAX).map(slot))?;
        let mut leftovers = Vec::new();
        for number in 0..SLOTS_MAX {
            let folder = slot(number);
            if folder == dir.root || (folder.exists() && dir.also_lock(&folder)?) {
                leftovers.extend(segments_in(&folder)?);
            }
        }
        leftovers.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((SegmentFolder { dir }, leftovers))
    }

    /// Creates a segment. After success, the file survives a power failure.
    pub fn create(&self, name: &BatchName) -> io::Result<Segment> {
        let path = self.dir.root.join(name.as_str().strip_suffix(GZ).unwrap_or(name.as_str()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        sync_folder(&self.dir.root).inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(Segment { file, path, length: 0, is_broken: false })
    }
}

fn segments_in(folder: &Path) -> io::Result<Vec<LeftoverSegment>> {
    let mut leftovers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_str().and_then(|name| BatchName::parse(&format!("{name}{GZ}")));
        if let Some(name) = name.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file())) {
            leftovers.push(LeftoverSegment { name, path: entry.path() });
        }
    }
    Ok(leftovers)
}

impl Segment {
    /// Appends all bytes, or none. After a failed write, the file is cut back to its old length.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("the segment is damaged by an earlier write error"));
        }
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            Err(_) => self.is_broken = self.truncate().is_err(),
        }
        written
    }

    fn truncate(&mut self) -> io::Result<()> {
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
