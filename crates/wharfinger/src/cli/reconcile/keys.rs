//! The list of keys: from a file, a query or an inventory, into the spelling and the order of the bucket.

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use wharfinger_lifecycle::UnixMs;
use wharfinger_reconcile::{Entry, Sorted, Sorter, bare, percent_decoded};
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

/// How a key of the list is written in the bucket.
#[derive(Debug)]
pub(super) struct Spelling {
    pub(super) strip_prefix: String,
    pub(super) is_percent_encoded: bool,
    pub(super) key_prefix: String,
    /// Keys elsewhere are none of ours.
    pub(super) below: String,
    /// What people write before a key.
    pub(super) addresses: Vec<String>,
}

/// What was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeyList {
    pub(super) entries: u64,
    pub(super) duplicates: u64,
    /// Keys that do not lie below the prefix: their objects are not looked at either.
    pub(super) outside: u64,
    /// Keys that do not begin with what was to be stripped: whose they are is not known, and their objects may well be here.
    pub(super) unstripped: u64,
    /// Rows without a key.
    pub(super) skipped: u64,
    /// The last line has no end.
    pub(super) lacks_final_newline: bool,
    /// Rows of CSV that go over several lines: because of their quotes, or because of one that is missing.
    pub(super) multiline_rows: u64,
    /// Whether somebody has said when it was made.
    pub(super) is_dated: bool,
    /// When it was made, by the store's clock.
    pub(super) as_of: UnixMs,
}

const TELL_EVERY: u64 = 1_000;
const SAME_CLOCK_MS: i64 = 1_000;
/// Standard input.
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
    /// Whether all of it can be told from a part of it, and it can be read again: neither holds for what comes by a pipe.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            Source::File { path, .. } if path.as_os_str() == STDIN => false,
            Source::File { path, .. } => std::fs::metadata(path).map_or(true, |meta| meta.is_file()),
            Source::Query { .. } | Source::Inventory(_) => true,
        }
    }

    /// Whether it may be another the next time it is read, and nobody can tell by looking at it.
    pub(super) fn may_change(&self) -> bool {
        matches!(self, Source::Query { .. })
    }

    /// Where it lies, if that is on this machine.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match self {
            Source::File { path, .. } => Some(whole(path)),
            Source::Query { database, .. } => sqlite_file(database).map(whole),
            Source::Inventory(manifest) => local_manifest(manifest).map(whole),
        }
    }

    /// What makes two lists the same: an interrupted comparison goes on only with the same. A pipe never is.
    pub(super) fn identity(&self) -> String {
        match self {
            _ if !self.is_whole() => uuid::Uuid::new_v4().to_string(),
            Source::File { path, format } => format!("{} {format:?}", file_identity(path)),
            Source::Query { database, query } => match sqlite_file(database) {
                Some(path) => format!("{:?} {query}", whole(path)),
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

/// Where a path really leads, or would if there were such a file.
pub(super) fn whole(path: &Path) -> PathBuf {
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
    format!("{:?} {modified:?} {:?}", whole(path), meta.map(|meta| meta.len()))
}

pub(super) fn manifest_identity(manifest: &str) -> String {
    match local_manifest(manifest) {
        Some(path) => file_identity(path),
        None => manifest.to_owned(),
    }
}

/// Where a manifest is a file.
pub(super) fn local_manifest(manifest: &str) -> Option<&Path> {
    let path = manifest.strip_prefix("file:").unwrap_or(manifest);
    (!path.contains("://")).then(|| Path::new(path))
}

/// What a key of the list is in the bucket.
#[derive(Debug, PartialEq, Eq)]
enum Spelt {
    Key(String),
    Outside,
    Unstripped,
}

impl Spelling {
    fn apply(&self, key: String) -> Result<Spelt, String> {
        let Some(rest) = key.strip_prefix(&self.strip_prefix) else { return Ok(Spelt::Unstripped) };
        let rest = match self.is_percent_encoded {
            true => percent_decoded(rest).ok_or_else(|| format!("{key:?} is not percent-encoded text"))?,
            false => rest.to_owned(),
        };
        let full = if self.key_prefix.is_empty() { rest } else { format!("{}{rest}", self.key_prefix) };
        // What would lie below if it were written otherwise is most likely an object's that is looked at: it is missing.
        let is_below = full.starts_with(&self.below)
            || bare(without_address(&full, &self.addresses)).starts_with(&bare(&self.below));
        Ok(if is_below && !full.is_empty() { Spelt::Key(full) } else { Spelt::Outside })
    }
}

/// A list that is to be read.
pub(super) struct Reading<'a> {
    pub(super) flags: &'a Flags,
    pub(super) bucket: &'a Bucket,
    pub(super) source: &'a Source,
    pub(super) spelling: &'a Spelling,
    /// When it was made, if somebody says so.
    pub(super) as_of: Option<UnixMs>,
}

impl Reading<'_> {
    /// Reads the list, and sorts it. What is stored while it is read is younger than the list.
    pub(super) async fn run(
        &self,
        state: &State,
        progress: &mut Progress,
        stop: &CancellationToken,
    ) -> Result<KeyList, Failure> {
        let Reading { flags, bucket, source, spelling, as_of: given } = self;
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
            if read.is_multiple_of(TELL_EVERY) {
                progress.at(read, file.and_then(|(_, file)| share_read(file)));
                if stop.is_cancelled() {
                    problem = Some("interrupted while the keys were read".to_owned());
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
            }
            match spelling.apply(entry.key) {
                Ok(Spelt::Key(key)) => sorter.push(Entry { key, size: entry.size, modified_at: None }),
                Ok(Spelt::Outside) => {
                    outside += 1;
                    Ok(())
                }
                Ok(Spelt::Unstripped) => {
                    unstripped += 1;
                    Ok(())
                }
                Err(misspelt) => {
                    problem = Some(misspelt);
                    Err(io::Error::from(io::ErrorKind::InvalidData))
                }
            }
        };
        let passed: Result<ReadStats, SourceError> = match source {
            Source::File { format, .. } => match file {
                Some((path, file)) => {
                    as_of = as_of.min(made_at(file, bucket.store.now()).unwrap_or(as_of));
                    read_file(path, file, format, &mut sink)?
                }
                None => tokio::task::block_in_place(|| read_list(io::stdin().lock(), format, &mut sink)),
            },
            Source::Query { database, query } => read_query(database, query, &mut sink).await,
            Source::Inventory(manifest) => {
                let (created_at, passed) = read_inventory(flags, manifest, None, state, &mut sink).await?;
                let Some(created_at) = created_at else {
                    let problem = "does not say when it was made (creationTimestamp)";
                    return Err(Failure::Failed(format!("{manifest} {problem}")));
                };
                as_of = as_of.min(created_at);
                is_dated = true;
                passed
            }
        };
        if let Some(problem) = problem {
            return Err(Failure::Failed(problem));
        }
        let passed = passed.map_err(failed)?;
        let Sorted { entries, duplicates, .. } =
            tokio::task::block_in_place(|| sorter.finish(&state.keys())).map_err(failed)?;
        let ReadStats { skipped, lacks_final_newline, multiline_rows } = passed;
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

/// How much of a file was read.
fn share_read(mut file: &File) -> Option<f64> {
    let size = file.metadata().ok()?.len();
    Some(file.stream_position().ok()? as f64 / size.max(1) as f64)
}

/// Reads a list that nobody writes to meanwhile.
fn read_file(
    path: &Path,
    file: &File,
    format: &ListFormat,
    sink: &mut (dyn FnMut(Entry) -> io::Result<()> + Send),
) -> Result<Result<ReadStats, SourceError>, Failure> {
    let stamp = || {
        let stamp = file.metadata().and_then(|meta| Ok((meta.len(), meta.modified()?)));
        stamp.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    };
    let before = stamp()?;
    let passed = tokio::task::block_in_place(|| read_list(file, format, sink));
    if stamp()? != before {
        let problem = "is being written: a list must be whole before it is read";
        return Err(Failure::Failed(format!("{} {problem}", path.display())));
    }
    Ok(passed)
}

/// When a file was written, by the store's clock: the list in it is as old.
fn made_at(file: &File, store_now: UnixMs) -> Option<UnixMs> {
    let modified = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let ahead = Clock::system().machine_now().saturating_sub(store_now);
    // Two clocks that are read one after the other are never quite the same.
    let ahead = if ahead.abs() < SAME_CLOCK_MS { 0 } else { ahead };
    Some(i64::try_from(modified.as_millis()).ok()?.saturating_sub(ahead))
}

/// Reads an inventory from a file or a bucket; answers when it was made.
pub(super) async fn read_inventory(
    flags: &Flags,
    manifest: &str,
    of_bucket: Option<&str>,
    state: &State,
    sink: &mut (dyn FnMut(Entry) -> io::Result<()> + Send),
) -> Result<(Option<UnixMs>, Result<ReadStats, SourceError>), Failure> {
    let file = local_manifest(manifest);
    let place = match file.is_none() {
        true => {
            let (folder, name) = manifest.rsplit_once('/').unwrap_or((manifest, ""));
            let bucket = Bucket::reach(flags, "manifest", folder).await?;
            Some((format!("{}{name}", bucket.prefix), bucket))
        }
        false => None,
    };
    let inventory = match &place {
        Some((key, bucket)) => Inventory::in_store(&*bucket.store, key).await,
        None => Inventory::on_disk(file.unwrap_or(Path::new(manifest))),
    };
    let inventory = inventory.map_err(failed)?;
    let listed = &inventory.manifest.source_bucket;
    if let Some(wanted) = of_bucket.filter(|wanted| wanted != listed) {
        return Err(Failure::Failed(format!("the inventory is of the bucket {listed}, not of {wanted}")));
    }
    Ok((inventory.manifest.created_at, inventory.read(&state.sorting(), sink).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelt_as_the_bucket_spells_them() {
        let spelling = Spelling {
            strip_prefix: "/".into(),
            is_percent_encoded: true,
            key_prefix: "images/".into(),
            below: "images/a/".into(),
            addresses: vec!["s3://bucket/".into()],
        };
        let apply = |key: &str| spelling.apply(key.into());
        assert_eq!(apply("/a/%C3%BC+%2B"), Ok(Spelt::Key("images/a/ü++".into())));
        assert_eq!(apply("a/b"), Ok(Spelt::Unstripped));
        assert_eq!(apply("/b/c"), Ok(Spelt::Outside));
        assert_eq!(apply("/a/"), Ok(Spelt::Key("images/a/".into())));
        assert!(apply("/a/100%").is_err());
        let bare = Spelling { strip_prefix: String::new(), key_prefix: String::new(), ..spelling };
        for disguised in ["/images/a/b", "Images/A/b", "images//a/b", "s3://bucket/images/a/b"] {
            assert_eq!(bare.apply(disguised.into()), Ok(Spelt::Key(disguised.into())));
        }
    }
}
