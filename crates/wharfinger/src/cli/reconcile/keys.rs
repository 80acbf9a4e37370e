//! Reads the list of keys from a file, a query or an inventory, converts the keys to the bucket's spelling, and sorts
//! them.

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use wharfinger_lifecycle::UnixMs;
use wharfinger_reconcile::{Entry, Sorted, Sorter, normalized, percent_decoded};
use wharfinger_stores::key_sources::inventory::Inventory;
use wharfinger_stores::key_sources::{Column, ListFormat, ReadStats, SourceError, read_list, read_query};

use super::super::{Failure, failed};
use super::bucket::{Bucket, without_address};
use super::progress::Progress;
use super::state::State;
use crate::clock::Clock;
use crate::config::Flags;

pub(super) enum Source {
    File { path: PathBuf, format: ListFormat },
    Query { database: String, query: String },
    Inventory(String),
}

/// Converts a key of the list to a key of the bucket.
#[derive(Debug)]
pub(super) struct KeyMapping {
    pub(super) strip_prefix: String,
    pub(super) is_percent_encoded: bool,
    pub(super) key_prefix: String,
    /// Keys without this prefix are not compared.
    pub(super) bucket_prefix: String,
    /// Texts that may precede a key in a complete address.
    pub(super) addresses: Vec<String>,
}

/// The result of reading the list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeyList {
    pub(super) entries: u64,
    pub(super) duplicates: u64,
    /// Keys without the prefix of the bucket. Their objects are not listed either.
    pub(super) outside: u64,
    /// Keys that do not begin with `strip_prefix`. Their objects may be in the bucket under unknown names.
    pub(super) unstripped: u64,
    /// Rows without a key.
    pub(super) skipped: u64,
    pub(super) lacks_final_newline: bool,
    /// CSV rows with several lines: either quoted line breaks, or a quote is missing.
    pub(super) multiline_rows: u64,
    /// Whether the time of the list is certain: given by --as-of or by the inventory.
    pub(super) is_dated: bool,
    /// The time of the list, by the store's clock.
    pub(super) as_of: UnixMs,
}

const KEYS_PER_UPDATE: u64 = 1_000;
const SAME_CLOCK_MS: i64 = 1_000;
const STDIN: &str = "-";

pub(super) fn list_at(path: &Path, is_null: bool, column: Option<&str>) -> Result<Source, Failure> {
    let name = path.to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let is_csv = column.is_some() || name.to_ascii_lowercase().ends_with(".csv");
    let format = match (is_null, is_csv) {
        (true, _) => ListFormat::Null,
        (false, false) => ListFormat::Lines,
        (false, true) => ListFormat::Csv(match column.map(|column| (column, column.parse::<usize>())) {
            None => Column::Number(1),
            Some((_, Ok(0))) => return Err(Failure::Usage("--column counts from 1".into())),
            Some((_, Ok(number))) => Column::Number(number),
            Some((name, Err(_))) => Column::Name(name.to_owned()),
        }),
    };
    Ok(Source::File { path: path.to_owned(), format })
}

impl Source {
    /// Whether a truncated list can be detected, and the list can be read again. Neither is possible with a pipe.
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Source::File { path, .. } if path.as_os_str() == STDIN => false,
            Source::File { path, .. } => std::fs::metadata(path).map_or(true, |meta| meta.is_file()),
            Source::Query { .. } | Source::Inventory(_) => true,
        }
    }

    /// Whether it may change without a visible sign. A file has a modification time, a query does not.
    pub(super) fn may_change(&self) -> bool {
        matches!(self, Source::Query { .. })
    }

    /// The path, if it is on this machine.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match self {
            Source::File { path, .. } => Some(resolved(path)),
            Source::Query { database, .. } => sqlite_file(database).map(resolved),
            Source::Inventory(manifest) => local_manifest(manifest).map(resolved),
        }
    }

    /// Equal for the same list. An interrupted comparison resumes only with the same list, never with a pipe.
    pub(super) fn identity(&self) -> String {
        match self {
            _ if !self.is_complete() => uuid::Uuid::new_v4().to_string(),
            Source::File { path, format } => format!("{} {format:?}", file_identity(path)),
            Source::Query { database, query } => match sqlite_file(database) {
                Some(path) => format!("{:?} {query}", resolved(path)),
                None => format!("{database} {query}"),
            },
            Source::Inventory(manifest) => manifest_identity(manifest),
        }
    }
}

fn sqlite_file(database: &str) -> Option<&Path> {
    let path = database.strip_prefix("sqlite:")?;
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

/// The absolute path without symbolic links, also for a file that does not exist yet.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let absent = |_| {
        let path = std::path::absolute(path)?;
        match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) => Ok::<_, io::Error>(folder.canonicalize()?.join(name)),
            _ => Ok(path),
        }
    };
    path.canonicalize().or_else(absent).unwrap_or_else(|_| path.to_owned())
}

fn file_identity(path: &Path) -> String {
    let meta = std::fs::metadata(path).ok();
    let modified = meta.as_ref().and_then(|meta| meta.modified().ok());
    format!("{:?} {modified:?} {:?}", resolved(path), meta.map(|meta| meta.len()))
}

pub(super) fn manifest_identity(manifest: &str) -> String {
    match local_manifest(manifest) {
        Some(path) => file_identity(path),
        None => manifest.to_owned(),
    }
}

/// The path of the manifest, if it is a local file.
pub(super) fn local_manifest(manifest: &str) -> Option<&Path> {
    let path = manifest.strip_prefix("file:").unwrap_or(manifest);
    (!path.contains("://")).then(|| Path::new(path))
}

#[derive(Debug, PartialEq, Eq)]
enum MappedKey {
    Key(String),
    Outside,
    Unstripped,
}

impl KeyMapping {
    fn apply(&self, key: String) -> Result<MappedKey, String> {
        let Some(rest) = key.strip_prefix(&self.strip_prefix) else { return Ok(MappedKey::Unstripped) };
        let rest = match self.is_percent_encoded {
            true => percent_decoded(rest).ok_or_else(|| format!("{key:?} is not percent-encoded text"))?,
            false => rest.to_owned(),
        };
        let full = if self.key_prefix.is_empty() { rest } else { format!("{}{rest}", self.key_prefix) };
        // A key that another spelling would bring below the prefix counts as missing, not as outside. It most likely
        // belongs to an object there.
        let has_prefix = full.starts_with(&self.bucket_prefix)
            || normalized(without_address(&full, &self.addresses))
                .starts_with(&normalized(&self.bucket_prefix));
        Ok(if has_prefix && !full.is_empty() { MappedKey::Key(full) } else { MappedKey::Outside })
    }
}

pub(super) struct KeyListReader<'a> {
    pub(super) flags: &'a Flags,
    pub(super) bucket: &'a Bucket,
    pub(super) source: &'a Source,
    pub(super) mapping: &'a KeyMapping,
    /// The time of the list, if it is given.
    pub(super) as_of: Option<UnixMs>,
}

impl KeyListReader<'_> {
    /// Reads and sorts the list. An object that is stored meanwhile is younger than the list.
    pub(super) async fn run(
        &self,
        state: &State,
        progress: &mut Progress,
        stop: &CancellationToken,
    ) -> Result<KeyList, Failure> {
        let KeyListReader { flags, bucket, source, mapping, as_of: given } = self;
        progress.phase("reading keys", "keys");
        let mut as_of = bucket.store.now();
        as_of = as_of.min(given.unwrap_or(as_of));
        let mut is_dated = given.is_some();
        let file = match source {
            Source::File { path, .. } if path.as_os_str() != STDIN => Some((path, open(path)?)),
            _ => None,
        };
        let file = file.as_ref();
        let mut sorter = Sorter::new(&state.sorting()).map_err(failed)?;
        let (mut read, mut outside, mut unstripped, mut problem) = (0u64, 0u64, 0u64, None);
        let mut sink = |entry: Entry| -> io::Result<()> {
            read += 1;
            if read.is_multiple_of(KEYS_PER_UPDATE) {
                progress.update(read, file.and_then(|(_, file)| share_read(file)));
                if stop.is_cancelled() {
                    problem = Some("interrupted while reading the keys".to_owned());
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
            }
            match mapping.apply(entry.key) {
                Ok(MappedKey::Key(key)) => sorter.push(Entry { key, size: entry.size, modified_at: None }),
                Ok(MappedKey::Outside) => {
                    outside += 1;
                    Ok(())
                }
                Ok(MappedKey::Unstripped) => {
                    unstripped += 1;
                    Ok(())
                }
                Err(undecodable) => {
                    problem = Some(undecodable);
                    Err(io::Error::from(io::ErrorKind::InvalidData))
                }
            }
        };
        let stats: Result<ReadStats, SourceError> = match source {
            Source::File { format, .. } => match file {
                Some((path, file)) => {
                    as_of = as_of.min(file_time(file, bucket.store.now()).unwrap_or(as_of));
                    read_file(path, file, format, &mut sink)?
                }
                None => tokio::task::block_in_place(|| read_list(io::stdin().lock(), format, &mut sink)),
            },
            Source::Query { database, query } => read_query(database, query, &mut sink).await,
            Source::Inventory(manifest) => {
                let (created_at, stats) = read_inventory(flags, manifest, None, state, &mut sink).await?;
                let Some(created_at) = created_at else {
                    let problem = "has no time (creationTimestamp)";
                    return Err(Failure::Failed(format!("{manifest} {problem}")));
                };
                as_of = as_of.min(created_at);
                is_dated = true;
                stats
            }
        };
        if let Some(problem) = problem {
            return Err(Failure::Failed(problem));
        }
        let stats = stats.map_err(failed)?;
        let Sorted { entries, duplicates, .. } =
            tokio::task::block_in_place(|| sorter.finish(&state.keys())).map_err(failed)?;
        let ReadStats { skipped, lacks_final_newline, multiline_rows } = stats;
        Ok(KeyList {
            entries,
            duplicates,
            outside,
            unstripped,
            skipped,
            lacks_final_newline,
            multiline_rows,
            is_dated,
            as_of,
        })
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
}

/// The share of a file that was read.
fn share_read(mut file: &File) -> Option<f64> {
    let size = file.metadata().ok()?.len();
    Some(file.stream_position().ok()? as f64 / size.max(1) as f64)
}

/// Reads a list, and fails if it is written to meanwhile.
fn read_file(
    path: &Path,
    file: &File,
    format: &ListFormat,
    sink: &mut (dyn FnMut(Entry) -> io::Result<()> + Send),
) -> Result<Result<ReadStats, SourceError>, Failure> {
    let size_and_time = || {
        let meta = file.metadata().and_then(|meta| Ok((meta.len(), meta.modified()?)));
        meta.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    };
    let before = size_and_time()?;
    let stats = tokio::task::block_in_place(|| read_list(file, format, sink));
    if size_and_time()? != before {
        let problem = "changed while it was read: wait until the list is complete";
        return Err(Failure::Failed(format!("{} {problem}", path.display())));
    }
    Ok(stats)
}

/// The time of a file, by the store's clock. The list in it is as old.
fn file_time(file: &File, store_now: UnixMs) -> Option<UnixMs> {
    let modified = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let ahead = Clock::system().machine_now().saturating_sub(store_now);
    // The clocks are read one after the other, so a small difference is not a real one.
    let ahead = if ahead.abs() < SAME_CLOCK_MS { 0 } else { ahead };
    Some(i64::try_from(modified.as_millis()).ok()?.saturating_sub(ahead))
}

/// Reads an inventory from a file or a bucket, and returns its time.
pub(super) async fn read_inventory(
    flags: &Flags,
    manifest: &str,
    of_bucket: Option<&str>,
    state: &State,
    sink: &mut (dyn FnMut(Entry) -> io::Result<()> + Send),
) -> Result<(Option<UnixMs>, Result<ReadStats, SourceError>), Failure> {
    let file = local_manifest(manifest);
    let location = match file.is_none() {
        true => {
            let (folder, name) = manifest.rsplit_once('/').unwrap_or((manifest, ""));
            let bucket = Bucket::connect(flags, "manifest", folder).await?;
            Some((format!("{}{name}", bucket.prefix), bucket))
        }
        false => None,
    };
    let inventory = match &location {
        Some((key, bucket)) => Inventory::in_store(&*bucket.store, key).await,
        None => Inventory::on_disk(file.unwrap_or(Path::new(manifest))),
    };
    let inventory = inventory.map_err(failed)?;
    let listed = &inventory.manifest.source_bucket;
    if let Some(wanted) = of_bucket.filter(|wanted| wanted != listed) {
        return Err(Failure::Failed(format!(
            "the inventory belongs to the bucket {listed}, not to {wanted}"
        )));
    }
    Ok((inventory.manifest.created_at, inventory.read(&state.sorting(), sink).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_converted_to_the_buckets_spelling() {
        let mapping = KeyMapping {
            strip_prefix: "/".into(),
            is_percent_encoded: true,
            key_prefix: "images/".into(),
            bucket_prefix: "images/a/".into(),
            addresses: vec!["s3://bucket/".into()],
        };
        let apply = |key: &str| mapping.apply(key.into());
        assert_eq!(apply("/a/%C3%BC+%2B"), Ok(MappedKey::Key("images/a/ü++".into())));
        assert_eq!(apply("a/b"), Ok(MappedKey::Unstripped));
        assert_eq!(apply("/b/c"), Ok(MappedKey::Outside));
        assert_eq!(apply("/a/"), Ok(MappedKey::Key("images/a/".into())));
        assert!(apply("/a/100%").is_err());
        let plain = KeyMapping { strip_prefix: String::new(), key_prefix: String::new(), ..mapping };
        for other_spelling in ["/images/a/b", "Images/A/b", "images//a/b", "s3://bucket/images/a/b"] {
            assert_eq!(plain.apply(other_spelling.into()), Ok(MappedKey::Key(other_spelling.into())));
        }
    }
}
