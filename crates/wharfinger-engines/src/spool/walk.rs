//! Lists the batches in the folders of the spool, and removes leftover temporary files. All other files are left alone.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use wharfinger_events::name::{BatchName, META};

use super::SHARD;
use super::dir_lock::DirLock;
use super::durable::TEMPORARY;
use super::journal::{BatchInfo, Entries};
use super::shares::TenantBytes;

const DEPTH_MAX: usize = 8;

#[derive(Default)]
pub(super) struct SpoolFiles {
    /// Folders relative to the root, with their batches.
    pub(super) folders: Vec<(PathBuf, Vec<FoundBatch>)>,
    pub(super) next_shard: u64,
}

pub(super) struct FoundBatch {
    pub(super) name: BatchName,
    pub(super) info: BatchInfo,
}

/// Lists all folders. A subfolder that cannot be read is logged and skipped.
pub(super) fn walk(dir: &mut DirLock, known: &Entries) -> io::Result<SpoolFiles> {
    let mut found = SpoolFiles { next_shard: 1, ..SpoolFiles::default() };
    let mut folders = vec![(PathBuf::new(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let path = dir.root.join(&folder);
        let is_root = depth == 0;
        let listed = match is_root || dir.also_lock(&path)? {
            true => list(&path),
            false => continue,
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) if is_root => return Err(error),
            Err(error) => {
                tracing::error!(folder = %path.display(), error = %error, "cannot read a folder of the spool");
                continue;
            }
        };
        if depth < DEPTH_MAX {
            folders.extend(listed.folders.into_iter().map(|name| (folder.join(name), depth + 1)));
        }
        if let Some(number) = folder.to_str().and_then(|name| name.strip_prefix(SHARD)?.parse::<u64>().ok()) {
            found.next_shard = found.next_shard.max(number.saturating_add(1));
        }
        let names = known.get(&folder);
        let mut batches = Vec::with_capacity(listed.batches.len());
        for name in listed.batches {
            let info = match names.and_then(|names| names.get(name.as_str())) {
                Some(known) => known.clone(),
                None => match fs::metadata(path.join(name.as_str())) {
                    Ok(metadata) => read_info(&path, &name, metadata.len()),
                    Err(error) => {
                        tracing::error!(file = %name, error = %error, "cannot read an event file on disk, it is kept");
                        continue;
                    }
                },
            };
            batches.push(FoundBatch { name, info });
        }
        found.folders.push((folder, batches));
    }
    Ok(found)
}

#[derive(Default)]
struct FolderListing {
    batches: Vec<BatchName>,
    folders: Vec<String>,
}

fn list(path: &Path) -> io::Result<FolderListing> {
    let mut listed = FolderListing::default();
    let mut metas: HashSet<String> = HashSet::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // Our file names are always UTF-8.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = entry.file_type()?;
        if kind.is_dir() && !name.starts_with('.') {
            listed.folders.push(name);
        } else if kind.is_file() {
            if let Some(batch) = BatchName::parse(&name) {
                listed.batches.push(batch);
            } else if name.starts_with('.') && name.ends_with(TEMPORARY) {
                let _ = fs::remove_file(path.join(&name));
            } else if name.strip_suffix(META).is_some_and(|batch| BatchName::parse(batch).is_some()) {
                metas.insert(name);
            }
        }
    }
    for batch in &listed.batches {
        metas.remove(&format!("{batch}{META}"));
    }
    for orphan in metas {
        let _ = fs::remove_file(path.join(orphan));
    }
    Ok(listed)
}

#[derive(Default, Deserialize)]
struct Meta {
    num_events: Option<u64>,
    #[serde(default)]
    tenants: TenantBytes,
}

/// Reads the metadata of a batch. Without metadata it counts as one event without a tenant. Other programs write no
/// metadata, or only the number of events.
fn read_info(folder: &Path, name: &BatchName, bytes: u64) -> BatchInfo {
    let text = fs::read(folder.join(format!("{name}{META}"))).unwrap_or_default();
    let meta: Meta = serde_json::from_slice(&text).unwrap_or_default();
    BatchInfo { bytes, events: meta.num_events.unwrap_or(1), tenants: meta.tenants }
}
