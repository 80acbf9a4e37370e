//! The faults of the demo. They are caused in the server's own folders, without the server's knowledge.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

const MANY_ORPHANS: usize = 400;

/// A folder that is moved away, as if its disk had failed. It is moved back when this is dropped.
pub struct HiddenFolder {
    path: PathBuf,
    moved_to: PathBuf,
}

impl HiddenFolder {
    pub fn hide(path: &Path) -> io::Result<HiddenFolder> {
        let moved_to = path.with_extension("away");
        fs::rename(path, &moved_to)?;
        let hidden = HiddenFolder { path: path.to_owned(), moved_to };
        // A file at the old path stops the server from creating the folder again.
        fs::write(path, b"")?;
        Ok(hidden)
    }
}

impl Drop for HiddenFolder {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::rename(&self.moved_to, &self.path);
    }
}

/// An object without a row. Its key has the program's own form: an orphan with another key is
/// reported and not deleted.
pub fn create_orphan(blobs: &Path) -> io::Result<()> {
    let folder = blobs.join("uploads/globex/orphans");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(Uuid::now_v7().to_string()), vec![b'?'; 40_000])
}

/// So many orphans that the scan reaches its limit of deletes.
pub fn create_many_orphans(blobs: &Path) -> io::Result<PathBuf> {
    let folder = blobs.join("uploads/globex/restored");
    fs::create_dir_all(&folder)?;
    for _ in 0..MANY_ORPHANS {
        fs::write(folder.join(Uuid::now_v7().to_string()), vec![b'?'; 1_000])?;
    }
    Ok(folder)
}

fn object(blobs: &Path, (tenant, user): (&str, &str), file: &str) -> PathBuf {
    blobs.join("uploads").join(tenant).join(user).join(file)
}

/// Deletes the object of a live file.
pub fn delete_object(blobs: &Path, owner: (&str, &str), file: &str) -> io::Result<()> {
    fs::remove_file(object(blobs, owner, file))
}

/// Replaces an object by a folder that is not empty: the server cannot delete it. Returns the path of the folder.
pub fn make_undeletable(blobs: &Path, owner: (&str, &str), file: &str) -> io::Result<PathBuf> {
    let path = object(blobs, owner, file);
    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    fs::write(path.join("in the way"), b"")?;
    Ok(path)
}
