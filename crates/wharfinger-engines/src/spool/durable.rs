//! Files that are there whole or not at all, and stay through a power cut once a call has answered.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use wharfinger_events::name::{BatchName, META};

/// Hidden, and of no other program: what is left of one is removed at the next start.
pub(super) const TEMPORARY: &str = ".wharfinger-tmp";

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A batch and its metadata. The metadata's name comes first: where there is data there is metadata.
pub(super) fn write_pair(folder: &Path, name: &BatchName, data: &[u8], meta: &[u8]) -> io::Result<()> {
    let written = try_write_pair(folder, name, data, meta);
    if written.is_err() {
        for left in [temporary(name.as_str()), temporary(&format!("{name}{META}"))] {
            let _ = fs::remove_file(folder.join(left));
        }
        // What may be gone after a power cut is not there: the data first, as always.
        let _ = fs::remove_file(folder.join(name.as_str()));
        let _ = fs::remove_file(folder.join(format!("{name}{META}")));
    }
    written
}

fn try_write_pair(folder: &Path, name: &BatchName, data: &[u8], meta: &[u8]) -> io::Result<()> {
    let meta_name = format!("{name}{META}");
    for (name, bytes) in [(name.as_str(), data), (meta_name.as_str(), meta)] {
        let mut file = File::create(folder.join(temporary(name)))?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    for name in [meta_name.as_str(), name.as_str()] {
        fs::rename(folder.join(temporary(name)), folder.join(name))?;
    }
    sync_folder(folder)
}

fn temporary(name: &str) -> String {
    format!(".{name}{TEMPORARY}")
}
