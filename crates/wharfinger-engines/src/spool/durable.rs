//! Writes files atomically. After a successful call, the files survive a power failure.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use wharfinger_events::name::{BatchName, META};

/// Suffix of hidden temporary files. The next start removes leftover ones.
pub(super) const TEMPORARY: &str = ".wharfinger-tmp";

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes a batch and its metadata. The metadata is renamed first, so that every data file has metadata.
pub(super) fn write_pair(folder: &Path, name: &BatchName, data: &[u8], meta: &[u8]) -> io::Result<()> {
    let written = try_write_pair(folder, name, data, meta);
    if written.is_err() {
        for leftover in [temporary(name.as_str()), temporary(&format!("{name}{META}"))] {
            let _ = fs::remove_file(folder.join(leftover));
        }
        // After an error the files might not survive a power failure, so they are removed, the data first.
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
