//! The folder of all multipart uploads: which there are, and what crashes have left in it. Everything here blocks.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;

use super::super::{BlobError, UnfinishedUpload};
use super::incoming::{is_temporary, metadata_if_present, remove_temporary};
use super::upload_folder::{ABOUT, GONE, NEW, PART_TEMP, id_prefix, is_upload_id, remove_folder};
use super::{MULTIPART_FOLDER, from_io, from_io_at, is_mounted};

/// The names in the folder of all uploads. Without the folder there are none, if the disk is mounted.
fn names(uploads: &Path, mounted: &Path) -> Result<Vec<String>, BlobError> {
    let entries = match fs::read_dir(uploads) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_mounted(mounted) => return Ok(Vec::new()),
        entries => entries.map_err(|error| from_io_at(mounted, error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(from_io)?.file_name().into_string());
    }
    Ok(names)
}

/// The ids of the uploads of a key, also of those that are being removed.
pub(super) fn uploads_of(root: &Path, mounted: &Path, key: &ObjectKey) -> Result<Vec<String>, BlobError> {
    let prefix = id_prefix(key);
    let names = names(&root.join(MULTIPART_FOLDER), mounted)?;
    let ids = names.iter().map(|name| name.strip_prefix(GONE).unwrap_or(name));
    Ok(ids.filter(|id| id.starts_with(&prefix) && is_upload_id(id)).map(str::to_owned).collect())
}

/// All uploads under a prefix. One that cannot be read is skipped, so that it does not hide the others.
pub(super) fn unfinished(
    root: &Path,
    mounted: &Path,
    prefix: &str,
) -> Result<Vec<UnfinishedUpload>, BlobError> {
    let uploads = root.join(MULTIPART_FOLDER);
    let mut found = Vec::new();
    for upload_id in names(&uploads, mounted)?.into_iter().filter(|name| is_upload_id(name)) {
        match read_about(&uploads.join(&upload_id)) {
            Ok((key, started_at)) if key.starts_with(prefix) => {
                found.push(UnfinishedUpload { key, upload_id, started_at: Some(started_at) });
            }
            Ok(_) => {}
            // It has just ended.
            Err(_) if matches!(metadata_if_present(&uploads.join(&upload_id)), Ok(None)) => {}
            Err(error) => {
                tracing::warn!(upload = %upload_id, error = %error, "cannot read an unfinished multipart upload");
            }
        }
    }
    Ok(found)
}

fn read_about(folder: &Path) -> io::Result<(String, UnixMs)> {
    let path = folder.join(ABOUT);
    let text = fs::read_to_string(&path)?;
    let (_, key) = text.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
    let started = fs::metadata(&path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((key.to_owned(), i64::try_from(started.as_millis()).unwrap_or(i64::MAX)))
}

/// Removes what crashes have left: parts that were being received, and folders that were being created or removed. Returns
/// how many files and folders were removed. What cannot be removed is skipped.
pub(super) fn remove_temporary_files(uploads: &Path, min_age: Duration) -> io::Result<u64> {
    let entries = match fs::read_dir(uploads) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str() else { continue };
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
        let is_unfinished = is_temporary(name, &[NEW]) && age.is_some_and(|age| age >= min_age);
        if is_unfinished || name.strip_prefix(GONE).is_some_and(is_upload_id) {
            removed += u64::from(remove_folder(&path).is_ok());
        } else if is_upload_id(name) {
            removed += remove_temporary(&path, &[PART_TEMP], min_age).unwrap_or(0);
        }
    }
    Ok(removed)
}
