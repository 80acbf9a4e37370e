//! The state of a comparison on disk until it ends: the sorted keys, the findings, and a checkpoint. A crash at any
//! moment leaves either a state that can be resumed, or none.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_reconcile::{Entries, Entry, HINT_OBJECTS_MAX, Hints, Totals};

use super::super::{Failure, failed};
use super::delete::Deletion;
use super::keys::KeyList;
use super::listing::Listing;
use super::recheck::Rechecked;
use crate::config::client_env;

/// An older state is not resumed, because too much may have changed.
const RESUME_MS_MAX: i64 = 86_400_000;
const CHECKPOINT: &str = "checkpoint.json";
const LOCK: &str = "wharfinger-reconcile.lock";

/// The position and the results so far.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkpoint {
    identity: String,
    started_at: UnixMs,
    pub(super) list: KeyList,
    pub(super) listing: Listing,
    /// The last object that was compared.
    pub(super) after: Option<String>,
    pub(super) is_compared: bool,
    pub(super) totals: Totals,
    /// The valid length of the lists on disk. The bytes after it were written after this checkpoint.
    orphans_bytes: u64,
    missing_bytes: u64,
    /// The first objects without a key, for a hint. Only collected while no object has a key.
    pub(super) unmatched_objects: Vec<String>,
    /// The key of a Wharfinger's marker, if one was listed.
    pub(super) marker: Option<String>,
    pub(super) rechecked: Option<Rechecked>,
    pub(super) deletion: Option<Deletion>,
}

pub(super) struct State {
    folder: PathBuf,
    identity: String,
    started_at: UnixMs,
    /// The system releases this lock when the process ends, also after a crash.
    _lock: File,
    findings: Option<Findings>,
    pub(super) checkpoint: Box<Checkpoint>,
}

struct Findings {
    orphans: AppendFile,
    missing: AppendFile,
}

struct AppendFile {
    out: BufWriter<File>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartMode {
    Fresh,
    Resumed,
}

/// A hash that is equal for equal commands.
pub(super) fn identity(parts: &[&str]) -> String {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update((part.len() as u64).to_be_bytes());
        sum.update(part);
    }
    to_hex(&sum.finalize())
}

pub(super) fn folder(given: Option<&Path>, identity: &str) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let cache = client_env("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| client_env("HOME").map(|home| Path::new(&home).join(".cache")));
    let parent = cache
        .map_or_else(|| PathBuf::from(".wharfinger-reconcile"), |cache| cache.join("wharfinger/reconcile"));
    parent.join(&identity[..16])
}

/// Removes the states of other interrupted runs that are too old to resume.
pub(super) fn remove_expired(folder: &Path) {
    let others = folder.parent().and_then(|parent| fs::read_dir(parent).ok()).into_iter().flatten().flatten();
    for other in others.map(|entry| entry.path()).filter(|other| other != folder) {
        let Ok(lock) = File::open(other.join(LOCK)) else { continue };
        let started = lock.metadata().and_then(|meta| meta.modified()).ok();
        let age_ms = started.and_then(|started| started.elapsed().ok()).map_or(0, |age| age.as_millis());
        // A running process holds its lock. If a folder cannot be removed, the next run tries again.
        if age_ms > RESUME_MS_MAX as u128 && lock.try_lock().is_ok() {
            drop(fs::remove_dir_all(&other));
        }
    }
}

impl State {
    /// Opens and locks the folder. Reads the checkpoint of an interrupted run of the same command, if there is one.
    pub(super) fn open(
        folder: PathBuf,
        identity: &str,
        now: UnixMs,
        may_resume: impl Fn(&Checkpoint) -> bool,
    ) -> Result<(State, StartMode), Failure> {
        let folder_error = |error: io::Error| Failure::Failed(format!("{}: {error}", folder.display()));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(folder_error)?;
        if !folder.join(LOCK).exists() && fs::read_dir(&folder).map_err(folder_error)?.next().is_some() {
            return Err(Failure::Usage(format!(
                "--state: {} is not empty and has no state of an interrupted run",
                folder.display()
            )));
        }
        let lock = File::create(folder.join(LOCK)).map_err(folder_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::Failed(format!(
                    "{}: the same command is already running",
                    folder.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(folder_error(error)),
        }
        let saved: Option<Checkpoint> =
            fs::read(folder.join(CHECKPOINT)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let saved = saved.filter(|saved| {
            let age = now.saturating_sub(saved.started_at);
            saved.identity == identity && (0..RESUME_MS_MAX).contains(&age) && may_resume(saved)
        });
        let start = if saved.is_some() { StartMode::Resumed } else { StartMode::Fresh };
        let checkpoint = saved.unwrap_or_else(|| Checkpoint::empty(identity, now));
        let mut state = State {
            folder,
            identity: identity.to_owned(),
            started_at: checkpoint.started_at,
            _lock: lock,
            findings: None,
            checkpoint: Box::new(checkpoint),
        };
        if start == StartMode::Resumed {
            state.open_findings()?;
        } else {
            state.clear()?;
        }
        Ok((state, start))
    }

    /// Saves the first checkpoint. The keys are sorted, so from now on the run can be resumed.
    pub(super) fn start_comparison(
        &mut self,
        list: KeyList,
        listing: Listing,
        totals: Totals,
    ) -> Result<(), Failure> {
        let empty = Checkpoint::empty(&self.identity, self.started_at);
        *self.checkpoint = Checkpoint { list, listing, totals, ..empty };
        self.open_findings()?;
        self.save()
    }

    fn open_findings(&mut self) -> Result<(), Failure> {
        let (orphans_bytes, missing_bytes) = (self.checkpoint.orphans_bytes, self.checkpoint.missing_bytes);
        self.findings = Some(Findings {
            orphans: AppendFile::open(&self.folder.join("orphans"), orphans_bytes).map_err(failed)?,
            missing: AppendFile::open(&self.folder.join("missing"), missing_bytes).map_err(failed)?,
        });
        Ok(())
    }

    /// Orphans and missing keys with normalized names.
    pub(super) fn normalized(&self) -> [PathBuf; 2] {
        ["normalized-orphans", "normalized-missing"].map(|name| self.folder.join(name))
    }

    pub(super) fn sorting(&self) -> PathBuf {
        self.folder.join("sorting")
    }

    pub(super) fn keys(&self) -> PathBuf {
        self.folder.join("keys")
    }

    pub(super) fn objects(&self) -> PathBuf {
        self.folder.join("objects")
    }

    /// The missing keys after the second check.
    pub(super) fn still_missing(&self) -> PathBuf {
        self.folder.join("still-missing")
    }

    pub(super) fn add_orphan(&mut self, orphan: &Entry) -> io::Result<()> {
        self.findings.as_mut().map_or(Ok(()), |findings| findings.orphans.add(orphan))
    }

    pub(super) fn add_missing(&mut self, key: &Entry) -> io::Result<()> {
        self.findings.as_mut().map_or(Ok(()), |findings| findings.missing.add(key))
    }

    /// Saves the checkpoint, after the findings that it describes.
    pub(super) fn save(&mut self) -> Result<(), Failure> {
        if let Some(findings) = &mut self.findings {
            self.checkpoint.orphans_bytes = findings.orphans.sync().map_err(failed)?;
            self.checkpoint.missing_bytes = findings.missing.sync().map_err(failed)?;
        }
        let text = serde_json::to_vec(&*self.checkpoint).map_err(failed)?;
        let (next, path) = (self.folder.join("checkpoint.next"), self.folder.join(CHECKPOINT));
        let written = File::create(&next).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&next, &path)?;
            File::open(&self.folder)?.sync_all()
        });
        written.map_err(failed)
    }

    /// All orphans so far. The list is complete after the comparison.
    pub(super) fn orphans(&self) -> PathBuf {
        self.folder.join("orphans")
    }

    pub(super) fn missing(&self) -> PathBuf {
        match self.checkpoint.rechecked {
            Some(_) => self.still_missing(),
            None => self.folder.join("missing"),
        }
    }

    /// The missing keys before the second check. None: no key was missing.
    pub(super) fn missing_before_recheck(&self) -> Option<PathBuf> {
        (self.checkpoint.missing_bytes > 0).then(|| self.folder.join("missing"))
    }

    pub(super) fn position(&self) -> String {
        match (&self.checkpoint.deletion, self.checkpoint.is_compared, &self.checkpoint.after) {
            (Some(deletion), ..) => format!("{} deleted", deletion.deleted.objects),
            (None, true, _) => "everything is compared".into(),
            (None, false, Some(after)) => {
                format!("{} objects, up to {after:?}", self.checkpoint.totals.listed.objects)
            }
            (None, false, None) => "the keys are read".into(),
        }
    }

    /// A hint about the spelling of the list, for a list of which no key is in the bucket.
    pub(super) fn hint(&self, addresses: &[String]) -> Option<&'static str> {
        let hints = Hints::new(self.checkpoint.unmatched_objects.iter().map(String::as_str), addresses);
        Entries::open(&self.keys()).ok()?.filter_map(Result::ok).find_map(|entry| hints.hint_for(&entry.key))
    }

    pub(super) fn first_key(&self) -> Option<String> {
        Entries::open(&self.keys()).ok()?.next()?.ok().map(|entry| entry.key)
    }

    /// Remembers an object without a key, for a hint.
    pub(super) fn remember_unmatched(&mut self, key: &str) {
        if self.checkpoint.totals.kept.objects == 0
            && self.checkpoint.unmatched_objects.len() < HINT_OBJECTS_MAX
        {
            self.checkpoint.unmatched_objects.push(key.to_owned());
        }
    }

    /// Removes only the files that a run writes.
    fn clear(&self) -> Result<(), Failure> {
        let ignore_absent = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        // The checkpoint first: without it the other files are not used.
        ignore_absent(fs::remove_file(self.folder.join(CHECKPOINT)))?;
        for name in [
            "checkpoint.next",
            "keys",
            "objects",
            "orphans",
            "missing",
            "still-missing",
            "normalized-orphans",
            "normalized-missing",
        ] {
            ignore_absent(fs::remove_file(self.folder.join(name)))?;
        }
        ignore_absent(fs::remove_dir_all(self.sorting()))
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        self.clear()?;
        // This keeps a folder that has other files.
        drop(fs::remove_file(self.folder.join(LOCK)).and_then(|()| fs::remove_dir(&self.folder)));
        Ok(())
    }
}

impl Checkpoint {
    fn empty(identity: &str, started_at: UnixMs) -> Checkpoint {
        let list = KeyList {
            entries: 0,
            duplicates: 0,
            outside: 0,
            unstripped: 0,
            skipped: 0,
            lacks_final_newline: false,
            multiline_rows: 0,
            is_dated: false,
            as_of: started_at,
        };
        Checkpoint {
            identity: identity.to_owned(),
            started_at,
            totals: Totals::new(wharfinger_reconcile::Times { as_of: started_at, grace_ms: 0 }, 0, 1),
            list,
            listing: Listing::Bucket,
            after: None,
            is_compared: false,
            orphans_bytes: 0,
            missing_bytes: 0,
            unmatched_objects: Vec::new(),
            marker: None,
            rechecked: None,
            deletion: None,
        }
    }
}

impl AppendFile {
    /// Truncates the file to its length at the last checkpoint. The rest is written again.
    fn open(path: &Path, bytes: u64) -> io::Result<AppendFile> {
        let file = File::options().create(true).append(true).open(path)?;
        if file.metadata()?.len() < bytes {
            return Err(io::Error::other(format!("{} is shorter than it was", path.display())));
        }
        file.set_len(bytes)?;
        Ok(AppendFile { out: BufWriter::new(file), bytes })
    }

    fn add(&mut self, entry: &Entry) -> io::Result<()> {
        self.bytes += entry.write_to(&mut self.out)?;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<u64> {
        self.out.flush()?;
        self.out.get_ref().sync_data()?;
        Ok(self.bytes)
    }
}
