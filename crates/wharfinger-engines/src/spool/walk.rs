//! What lies in the spool's folders: batches, and what crashes left of them. Everything else is left alone.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use wharfinger_events::name::{BatchName, META};

use super::SHARD;
use super::dir_lock::DirLock;
use super::durable::TEMPORARY;
use super::journal::{Entries, Noted};
use super::shares::TenantBytes;

const DEPTH_MAX: usize = 8;

#[derive(Default)]
pub(super) struct Found {
    /// Each below the root.
    pub(super) folders: Vec<(PathBuf, Vec<Batch>)>,
    pub(super) next_shard: u64,
}

pub(super) struct Batch {
    pub(super) name: BatchName,
    pub(super) noted: Noted,
}

/// Folders that cannot be read are left alone, and said so.
pub(super) fn walk(dir: &mut DirLock, known: &Entries) -> io::Result<Found> {
    let mut found = Found { next_shard: 1, ..Found::default() };
    let mut folders = vec![(PathBuf::new(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let path = dir.root.join(&folder);
        let is_root = depth == 0;
        let listed = match is_root || dir.also_take(&path)? {
            true => list(&path),
            false => continue,
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) if is_root => return Err(error),
            Err(error) => {
                tracing::error!(folder = %path.display(), error = %error, "a folder of the spool cannot be read");
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
            let noted = match names.and_then(|names| names.get(name.as_str())) {
                Some(known) => known.clone(),
                None => match fs::metadata(path.join(name.as_str())) {
                    Ok(metadata) => noted(&path, &name, metadata.len()),
                    Err(error) => {
                        tracing::error!(file = %name, error = %error, "a batch of the spool cannot be read");
                        continue;
                    }
                },
            };
            batches.push(Batch { name, noted });
        }
        found.folders.push((folder, batches));
    }
    Ok(found)
}

#[derive(Default)]
struct Listed {
    batches: Vec<BatchName>,
    folders: Vec<String>,
}

fn list(path: &Path) -> io::Result<Listed> {
    let mut listed = Listed::default();
    let mut metas: HashSet<String> = HashSet::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // What is no text is no name of ours.
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
    for of_nothing in metas {
        let _ = fs::remove_file(path.join(of_nothing));
    }
    Ok(listed)
}

#[derive(Default, Deserialize)]
struct Meta {
    num_events: Option<u64>,
    #[serde(default)]
    tenants: TenantBytes,
}

/// One event of no tenant, where the metadata says nothing else: other programs write none, or only the number.
fn noted(folder: &Path, name: &BatchName, bytes: u64) -> Noted {
    let text = fs::read(folder.join(format!("{name}{META}"))).unwrap_or_default();
    let meta: Meta = serde_json::from_slice(&text).unwrap_or_default();
    Noted { bytes, events: meta.num_events.unwrap_or(1), tenants: meta.tenants }
}
