//! Which files a command line means.

use std::path::{Path, PathBuf};

use super::client::{Trouble, local_trouble};

pub(super) struct LocalFile {
    pub(super) path: PathBuf,
    /// Where it lay below the folder that was named, with `/` between the parts.
    pub(super) relative: Option<String>,
    pub(super) name: String,
    pub(super) size: u64,
}

impl LocalFile {
    /// For reading, if it is still as long as it was.
    pub(super) async fn open(&self) -> Result<tokio::fs::File, Trouble> {
        let opened = tokio::fs::File::open(&self.path).await.map_err(local_trouble)?;
        if opened.metadata().await.map_err(local_trouble)?.len() != self.size {
            let message = "the file was changed while it was uploaded".to_owned();
            return Err(Trouble::Final { code: String::new(), message });
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
    /// In the order of names. Links inside a folder are passed over: they may lead out of it, or in circles.
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
