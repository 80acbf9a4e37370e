//! The folder of one multipart upload. Everything here blocks. What changes `data` or a marker holds the folder's lock.
//!
//! After a crash between any two steps, a part whose marker exists is complete in `data`.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::key::ObjectKey;

use super::super::{BlobError, Part};
use super::incoming::{is_same, link_durably, metadata_if_present, remove_if_present, sync_folders_up};
use super::{MULTIPART_FOLDER, from_io_at, is_mounted, sync_folder, to_meta};

/// The key of the object, after the inode of `DATA`. Its modification time is the start of the upload.
pub(super) const ABOUT: &str = "upload";
/// The bytes of the object. Missing parts are holes.
const DATA: &str = "data";
const LOCK: &str = "lock";
/// The start of the temporary name of a part that is being received.
pub(super) const PART_TEMP: &str = "part.";
/// The start of the name of a folder that is being created, or removed.
pub(super) const NEW: &str = "new.";
pub(super) const GONE: &str = "gone.";

/// A folder `.multipart/<upload id>`. It appears complete, by a rename, and disappears by a rename.
#[derive(Clone, Debug)]
pub(super) struct UploadFolder {
    root: PathBuf,
    mounted: PathBuf,
    upload_id: String,
}

/// The right to change a folder. It ends when the last copy is dropped.
pub(super) type Lock = std::sync::Arc<File>;

/// A finished part. Its name is the name of an empty file, which exists from the moment when the part is durable in `DATA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) number: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Marker {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.number, self.offset, self.size)
    }

    fn parse(name: &str) -> Option<Marker> {
        let mut fields = name.splitn(3, '-');
        let number = fields.next()?.parse().ok()?;
        let offset = fields.next()?.parse().ok()?;
        let marker = Marker { number, offset, size: fields.next()?.parse().ok()? };
        (marker.name() == name).then_some(marker)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }

    /// The ETag differs if the part was sent again.
    fn part(&self, meta: &fs::Metadata) -> Part {
        let etag = format!("{}-{:x}", to_meta(meta).etag, self.size);
        Part { number: self.number, size: self.size, etag }
    }
}

/// The start of the id of each upload of this key, so that they are found without reading every folder.
pub(super) fn id_prefix(key: &ObjectKey) -> String {
    format!("{}-", &to_hex(&Sha256::digest(key.as_str().as_bytes()))[..32])
}

pub(super) fn is_upload_id(name: &str) -> bool {
    name.split_once('-').is_some_and(|(key, id)| {
        let is_hex = key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        key.len() == 32 && is_hex && Uuid::try_parse(id).is_ok_and(|parsed| parsed.to_string() == id)
    })
}

impl UploadFolder {
    /// `NotFound`: this is no upload of this key.
    pub(super) fn of(
        root: &Path,
        mounted: &Path,
        key: &ObjectKey,
        upload_id: &str,
    ) -> Result<UploadFolder, BlobError> {
        if !is_upload_id(upload_id) || !upload_id.starts_with(&id_prefix(key)) {
            return Err(BlobError::NotFound);
        }
        let (root, mounted) = (root.to_path_buf(), mounted.to_path_buf());
        Ok(UploadFolder { root, mounted, upload_id: upload_id.to_owned() })
    }

    /// Creates a durable folder under a temporary name and renames it.
    pub(super) fn start(root: &Path, mounted: &Path, key: &ObjectKey) -> Result<UploadFolder, BlobError> {
        let upload_id = format!("{}{}", id_prefix(key), Uuid::new_v4());
        let started = UploadFolder { root: root.to_path_buf(), mounted: mounted.to_path_buf(), upload_id };
        let new = started.uploads().join(format!("{NEW}{}", Uuid::new_v4()));
        let create = || {
            match fs::create_dir(&new) {
                // An operator may have removed the folder of all uploads.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_mounted(mounted) => {
                    fs::create_dir(started.uploads())?;
                    sync_folder(root)?;
                    fs::create_dir(&new)?;
                }
                created => created?,
            }
            let data = File::create_new(new.join(DATA))?;
            data.sync_all()?;
            let about = new.join(ABOUT);
            fs::write(&about, format!("{} {key}", data.metadata()?.ino()))?;
            File::open(&about)?.sync_all()?;
            sync_folder(&new)?;
            fs::rename(&new, started.path())?;
            sync_folder(&started.uploads())
        };
        create().map_err(|error| {
            let _ = remove_folder(&new);
            started.failed(error)
        })?;
        Ok(started)
    }

    pub(super) fn upload_id(&self) -> &str {
        &self.upload_id
    }

    fn uploads(&self) -> PathBuf {
        self.root.join(MULTIPART_FOLDER)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.uploads().join(&self.upload_id)
    }

    fn failed(&self, error: io::Error) -> BlobError {
        from_io_at(&self.mounted, error)
    }

    /// `NotFound`: the upload has ended, or `DATA` is another file than at the start. A backup of a running server can
    /// have copied markers of parts that are missing in its copy of `DATA`.
    pub(super) fn check(&self) -> Result<fs::Metadata, BlobError> {
        let read = || {
            let about = fs::read_to_string(self.path().join(ABOUT))?;
            Ok((about, fs::metadata(self.path().join(DATA))?))
        };
        let (about, data) = read().map_err(|error| self.failed(error))?;
        let inode = about.split_once(' ').and_then(|(inode, _)| inode.parse().ok());
        if inode == Some(data.ino()) { Ok(data) } else { Err(BlobError::NotFound) }
    }

    /// None: another holder has the lock.
    pub(super) fn try_lock(&self) -> Result<Option<Lock>, BlobError> {
        let path = self.path().join(LOCK);
        let mut open = File::options();
        let file = open.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| self.failed(error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(self.failed(error)),
        }
        // The folder may have been renamed before the lock was free.
        let now = metadata_if_present(&path).map_err(|error| self.failed(error))?;
        let locked = file.metadata().map_err(|error| self.failed(error))?;
        match now {
            Some(now) if is_same(&now, &locked) => Ok(Some(file.into())),
            _ => Err(self.failed(io::ErrorKind::NotFound.into())),
        }
    }

    /// The finished parts, in the order of their numbers.
    fn markers(&self) -> io::Result<Vec<Marker>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path())? {
            found.extend(entry?.file_name().to_str().and_then(Marker::parse));
        }
        found.sort_by_key(|marker| marker.number);
        Ok(found)
    }

    fn parts_of(&self, data: &fs::Metadata) -> io::Result<Vec<(Marker, Part)>> {
        let mut parts = Vec::new();
        for marker in self.markers()?.into_iter().filter(|marker| marker.end() <= data.len()) {
            // It is removed while the part is replaced.
            if let Some(meta) = metadata_if_present(&self.path().join(marker.name()))? {
                parts.push((marker, marker.part(&meta)));
            }
        }
        Ok(parts)
    }

    pub(super) fn parts(&self) -> Result<Vec<Part>, BlobError> {
        let found = self.parts_of(&self.check()?).map_err(|error| self.failed(error))?;
        Ok(found.into_iter().map(|(_, part)| part).collect())
    }

    /// Removes the marker of a part, before the part is written. `Changed`: the object is in place, and a part would change
    /// it, because it is the same file as `DATA`.
    pub(super) fn unmark(&self, _lock: &Lock, number: u32, target: &Path) -> Result<(), BlobError> {
        let data = self.check()?;
        let placed = metadata_if_present(target).map_err(|error| self.failed(error))?;
        if placed.is_some_and(|placed| is_same(&placed, &data)) {
            return Err(BlobError::Changed);
        }
        let remove = || {
            let markers = self.markers()?;
            let earlier: Vec<&Marker> = markers.iter().filter(|marker| marker.number == number).collect();
            for marker in &earlier {
                remove_if_present(&self.path().join(marker.name()))?;
            }
            if earlier.is_empty() { Ok(()) } else { sync_folder(&self.path()) }
        };
        remove().map_err(|error| self.failed(error))
    }

    /// Copies a part into `DATA` and makes it durable.
    pub(super) fn copy(&self, _lock: &Lock, bytes: &mut File, part: Marker) -> Result<(), BlobError> {
        let mut copy = || {
            let mut data = File::options().write(true).open(self.path().join(DATA))?;
            data.seek(SeekFrom::Start(part.offset))?;
            bytes.rewind()?;
            let copied = io::copy(bytes, &mut data)?;
            if copied != part.size {
                return Err(io::Error::other(format!("only {copied} bytes of a part were copied")));
            }
            // The modification time need not be durable yet.
            data.sync_data()
        };
        copy().map_err(|error| self.failed(error))
    }

    pub(super) fn mark(&self, _lock: &Lock, part: Marker) -> Result<Part, BlobError> {
        let mark = || {
            let file = File::create_new(self.path().join(part.name()))?;
            sync_folder(&self.path())?;
            file.metadata()
        };
        mark().map(|meta| part.part(&meta)).map_err(|error| self.failed(error))
    }

    /// Puts `DATA` in place as the object if it consists of exactly these parts. `Changed`: there is another object.
    pub(super) fn link(&self, _lock: &Lock, target: &Path, wanted: &[Part]) -> Result<(), BlobError> {
        let data = self.check()?;
        let have = self.parts_of(&data).map_err(|error| self.failed(error))?;
        let mut size = 0;
        for part in wanted {
            let found = have.binary_search_by_key(&part.number, |(marker, _)| marker.number);
            match found.ok().map(|at| &have[at]).filter(|(_, held)| held == part) {
                Some((marker, _)) if marker.offset == size => size = marker.end(),
                Some(_) => return Err(BlobError::Refused("the parts of the upload have gaps".into())),
                None => return Err(BlobError::NotFound),
            }
        }
        if wanted.is_empty() || size != data.len() {
            return Err(BlobError::Refused(format!(
                "the parts have {size} bytes, and the upload has {}",
                data.len()
            )));
        }
        let path = self.path().join(DATA);
        let link = || match metadata_if_present(target)? {
            // An earlier call has put it in place.
            Some(placed) if is_same(&placed, &data) => {
                sync_folders_up(&self.root, target.parent().unwrap_or(&self.root)).map(|()| true)
            }
            Some(_) => Ok(false),
            None => {
                File::open(&path)?.sync_all()?;
                match link_durably(&self.root, &path, target) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                    linked => linked.map(|_| true),
                }
            }
        };
        match link().map_err(|error| self.failed(error))? {
            true => Ok(()),
            false => Err(BlobError::Changed),
        }
    }

    /// Ends the upload: from the rename on, no part can be written. The object stays if it is in place.
    pub(super) fn end(&self, _lock: &Lock) -> Result<(), BlobError> {
        let end = || {
            fs::rename(self.path(), self.gone())?;
            // Otherwise the folder could come back after a power cut, without some of its files.
            sync_folder(&self.uploads())
        };
        end().map_err(|error| self.failed(error))?;
        self.remove_ended()
    }

    /// Removes what a crash during the end of this upload has left.
    pub(super) fn remove_ended(&self) -> Result<(), BlobError> {
        let removed = remove_folder(&self.gone()).and_then(|()| sync_folder(&self.uploads()));
        removed.map_err(|error| self.failed(error))
    }

    fn gone(&self) -> PathBuf {
        self.uploads().join(format!("{GONE}{}", self.upload_id))
    }
}

/// Removes a folder of files. Another process may be removing it too.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        remove_if_present(&entry?.path())?;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_write_are_markers_and_ids() {
        let marker = Marker { number: 7, offset: 100, size: 16 };
        assert_eq!(Marker::parse("7-100-16"), Some(marker));
        for other in
            ["7-100", "7-100-16-1", "07-100-16", "+7-100-16", "7-100-x", "", "part.7", "data", "-1-2-3"]
        {
            assert_eq!(Marker::parse(other), None, "{other}");
        }
        let key = ObjectKey::parse("uploads/t/u/f").expect("a key");
        let id = format!("{}{}", id_prefix(&key), Uuid::new_v4());
        assert!(is_upload_id(&id));
        for other in
            ["", "..", "../uploads", &id[1..], &id.to_uppercase(), &format!("{id}/.."), &format!("{NEW}{id}")]
        {
            assert!(!is_upload_id(other), "{other}");
        }
    }
}
