//! The files that the arguments of `put` select.

use std::path::{Path, PathBuf};

use super::client::{CallError, read_error};

pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    /// The path below the folder in the arguments, with `/` between the parts.
    pub(super) relative: Option<String>,
    pub(super) name: String,
    pub(super) size: u64,
}

impl LocalFile {
    /// Opens the file for reading. Fails if its size has changed.
    pub(super) async fn open(&self) -> Result<tokio::fs::File, CallError> {
        let opened = tokio::fs::File::open(&self.path).await.map_err(read_error)?;
        if opened.metadata().await.map_err(read_error)?.len() != self.size {
            let message = "the file was changed during the upload".to_owned();
            return Err(CallError::Final { code: String::new(), message });
        }
        Ok(opened)
    }
}

#[derive(Default)]
pub(super) struct Found {
    pub(super) files: Vec<LocalFile>,
    pub(super) problems: Vec<(PathBuf, String)>,
}

pub(super) fn find(paths: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for path in paths {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => found.walk(path, path),
            Ok(meta) => found.take(path, None, &meta),
            Err(error) => found.problems.push((path.clone(), error.to_string())),
        }
    }
    found
}

impl Found {
    /// In the order of names. Symbolic links inside a folder are skipped: they may lead out of it or form a cycle.
    fn walk(&mut self, root: &Path, folder: &Path) {
        let entries = std::fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.problems.push((folder.to_path_buf(), error.to_string())),
        };
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            match entry.metadata() {
                Ok(meta) if meta.is_symlink() => {}
                Ok(meta) if meta.is_dir() => self.walk(root, &path),
                Ok(meta) => {
                    let relative = path.strip_prefix(root).ok().and_then(Path::to_str).map(str::to_owned);
                    self.take(&path, relative, &meta);
                }
                Err(error) => self.problems.push((path, error.to_string())),
            }
        }
    }

    fn take(&mut self, path: &Path, relative: Option<String>, meta: &std::fs::Metadata) {
        if !meta.is_file() {
            return self.problems.push((path.to_path_buf(), "not a regular file".into()));
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return self.problems.push((path.to_path_buf(), "its name is not valid UTF-8".into()));
        };
        let file = LocalFile { path: path.to_path_buf(), relative, name: name.to_owned(), size: meta.len() };
        self.files.push(file);
    }
}
