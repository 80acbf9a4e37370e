//! What goes wrong: done to the server's own folders, behind its back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

const ORPHANS: usize = 400;

/// A folder that was taken away; its place is empty, as that of a disk that is not mounted.
pub struct Away {
    place: PathBuf,
    kept: PathBuf,
}

impl Away {
    pub fn take(place: &Path) -> io::Result<Away> {
        let kept = place.with_extension("away");
        fs::rename(place, &kept)?;
        let away = Away { place: place.to_owned(), kept };
        // Nothing can be written where a file stands in the way.
        fs::write(place, b"")?;
        Ok(away)
    }
}

/// It comes back in any case.
impl Drop for Away {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.place);
        let _ = fs::rename(&self.kept, &self.place);
    }
}

/// An object without a row, under a name as this program makes them: others are never deleted.
pub fn leave_orphan(blobs: &Path) -> io::Result<()> {
    let folder = blobs.join("uploads/globex/orphans");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(Uuid::now_v7().to_string()), vec![b'?'; 40_000])
}

/// So many that deleting them would look like a mistake.
pub fn leave_many_orphans(blobs: &Path) -> io::Result<PathBuf> {
    let folder = blobs.join("uploads/globex/restored");
    fs::create_dir_all(&folder)?;
    for _ in 0..ORPHANS {
        fs::write(folder.join(Uuid::now_v7().to_string()), vec![b'?'; 1_000])?;
    }
    Ok(folder)
}

fn object(blobs: &Path, (tenant, user): (&str, &str), file: &str) -> PathBuf {
    blobs.join("uploads").join(tenant).join(user).join(file)
}

/// A live file loses its object.
pub fn lose_object(blobs: &Path, owner: (&str, &str), file: &str) -> io::Result<()> {
    fs::remove_file(object(blobs, owner, file))
}

/// An object that cannot be deleted: a folder with something in it.
pub fn make_undeletable(blobs: &Path, owner: (&str, &str), file: &str) -> io::Result<PathBuf> {
    let path = object(blobs, owner, file);
    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    fs::write(path.join("in the way"), b"")?;
    Ok(path)
}
