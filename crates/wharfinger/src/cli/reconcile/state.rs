//! What a comparison keeps on disk until it has ended: the sorted keys, what was found, and how far it has come. Written
//! so that a crash at any moment leaves a state to go on from, or none.

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

/// An interrupted comparison is gone on with for so long; after that too much may have changed.
const GOES_ON_MS_MAX: i64 = 86_400_000;
const CHECKPOINT: &str = "checkpoint.json";
const LOCK: &str = "wharfinger-reconcile.lock";

/// How far it has come.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkpoint {
    identity: String,
    begun_at: UnixMs,
    pub(super) list: KeyList,
    pub(super) listing: Listing,
    /// Everything up to this object was compared.
    pub(super) after: Option<String>,
    pub(super) is_compared: bool,
    pub(super) totals: Totals,
    /// How much of the lists on disk is true.
    orphans_bytes: u64,
    missing_bytes: u64,
    /// Objects that no key answers for, as long as no key answers for any.
    pub(super) strangers: Vec<String>,
    /// Where a Wharfinger's mark was seen.
    pub(super) mark: Option<String>,
    pub(super) looked_again: Option<Rechecked>,
    pub(super) deletion: Option<Deletion>,
}

pub(super) struct State {
    folder: PathBuf,
    identity: String,
    begun_at: UnixMs,
    /// Ends with the process, however that ends.
    _lock: File,
    found: Option<Found>,
    pub(super) at: Box<Checkpoint>,
}

struct Found {
    orphans: Appended,
    missing: Appended,
}

/// A list that grows.
struct Appended {
    out: BufWriter<File>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    Anew,
    GoesOn,
}

/// What makes two commands the same.
pub(super) fn identity(parts: &[&str]) -> String {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update((part.len() as u64).to_be_bytes());
        sum.update(part);
    }
    to_hex(&sum.finalize())
}

pub(super) fn folder(asked: Option<&Path>, identity: &str) -> PathBuf {
    if let Some(asked) = asked {
        return asked.to_owned();
    }
    let cache = client_env("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| client_env("HOME").map(|home| Path::new(&home).join(".cache")));
    let ours = cache
        .map_or_else(|| PathBuf::from(".wharfinger-reconcile"), |cache| cache.join("wharfinger/reconcile"));
    ours.join(&identity[..16])
}

/// Clears away what interrupted runs left beside this one, and nobody went on with in time.
pub(super) fn forget_old(folder: &Path) {
    let others = folder.parent().and_then(|ours| fs::read_dir(ours).ok()).into_iter().flatten().flatten();
    for other in others.map(|entry| entry.path()).filter(|other| other != folder) {
        let Ok(lock) = File::open(other.join(LOCK)) else { continue };
        let begun = lock.metadata().and_then(|meta| meta.modified()).ok();
        let age_ms = begun.and_then(|begun| begun.elapsed().ok()).map_or(0, |age| age.as_millis());
        // Whoever is still at it holds the lock. What cannot be removed is tried again by the next.
        if age_ms > GOES_ON_MS_MAX as u128 && lock.try_lock().is_ok() {
            drop(fs::remove_dir_all(&other));
        }
    }
}

impl State {
    /// Opens the folder, which nobody else may use at the same time, and reads what an interrupted run of the same
    /// command left there.
    pub(super) fn open(
        folder: PathBuf,
        identity: &str,
        now: UnixMs,
        may_go_on: impl Fn(&Checkpoint) -> bool,
    ) -> Result<(State, Begun), Failure> {
        let shown = |error: io::Error| Failure::Failed(format!("{}: {error}", folder.display()));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(shown)?;
        if !folder.join(LOCK).exists() && fs::read_dir(&folder).map_err(shown)?.next().is_some() {
            return Err(Failure::Usage(format!("--state: {} holds something else", folder.display())));
        }
        let lock = File::create(folder.join(LOCK)).map_err(shown)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::Failed(format!("{}: the same comparison is running", folder.display())));
            }
            Err(TryLockError::Error(error)) => return Err(shown(error)),
        }
        let left: Option<Checkpoint> =
            fs::read(folder.join(CHECKPOINT)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let left = left.filter(|left| {
            let age = now.saturating_sub(left.begun_at);
            left.identity == identity && (0..GOES_ON_MS_MAX).contains(&age) && may_go_on(left)
        });
        let begun = if left.is_some() { Begun::GoesOn } else { Begun::Anew };
        let at = left.unwrap_or_else(|| Checkpoint::nothing(identity, now));
        let mut state = State {
            folder,
            identity: identity.to_owned(),
            begun_at: at.begun_at,
            _lock: lock,
            found: None,
            at: Box::new(at),
        };
        if begun == Begun::GoesOn {
            state.open_found()?;
        } else {
            state.clear()?;
        }
        Ok((state, begun))
    }

    /// Sorted keys are there: from here on it can be gone on with.
    pub(super) fn begin(&mut self, list: KeyList, listing: Listing, totals: Totals) -> Result<(), Failure> {
        let nothing = Checkpoint::nothing(&self.identity, self.begun_at);
        *self.at = Checkpoint { list, listing, totals, ..nothing };
        self.open_found()?;
        self.save()
    }

    fn open_found(&mut self) -> Result<(), Failure> {
        self.found = Some(Found {
            orphans: Appended::open(&self.folder.join("orphans"), self.at.orphans_bytes).map_err(failed)?,
            missing: Appended::open(&self.folder.join("missing"), self.at.missing_bytes).map_err(failed)?,
        });
        Ok(())
    }

    /// Orphans and missing keys by their bare names.
    pub(super) fn bare(&self) -> [PathBuf; 2] {
        ["bare-orphans", "bare-missing"].map(|name| self.folder.join(name))
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

    /// What is missing, after it was looked for again.
    pub(super) fn still_missing(&self) -> PathBuf {
        self.folder.join("still-missing")
    }

    pub(super) fn add_orphan(&mut self, orphan: &Entry) -> io::Result<()> {
        self.found.as_mut().map_or(Ok(()), |found| found.orphans.add(orphan))
    }

    pub(super) fn add_missing(&mut self, key: &Entry) -> io::Result<()> {
        self.found.as_mut().map_or(Ok(()), |found| found.missing.add(key))
    }

    /// Writes down how far it has come, after what was found on the way.
    pub(super) fn save(&mut self) -> Result<(), Failure> {
        if let Some(found) = &mut self.found {
            self.at.orphans_bytes = found.orphans.sync().map_err(failed)?;
            self.at.missing_bytes = found.missing.sync().map_err(failed)?;
        }
        let text = serde_json::to_vec(&*self.at).map_err(failed)?;
        let (next, place) = (self.folder.join("checkpoint.next"), self.folder.join(CHECKPOINT));
        let written = File::create(&next).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&next, &place)?;
            File::open(&self.folder)?.sync_all()
        });
        written.map_err(failed)
    }

    /// All orphans; complete once everything was compared.
    pub(super) fn orphans(&self) -> PathBuf {
        self.folder.join("orphans")
    }

    pub(super) fn missing(&self) -> PathBuf {
        match self.at.looked_again {
            Some(_) => self.still_missing(),
            None => self.folder.join("missing"),
        }
    }

    /// As it was before it was looked for again; none if nothing was missing.
    pub(super) fn missing_at_first(&self) -> Option<PathBuf> {
        (self.at.missing_bytes > 0).then(|| self.folder.join("missing"))
    }

    pub(super) fn position(&self) -> String {
        match (&self.at.deletion, self.at.is_compared, &self.at.after) {
            (Some(deletion), ..) => format!("{} deleted", deletion.deleted.objects),
            (None, true, _) => "all was compared".into(),
            (None, false, Some(after)) => {
                format!("{} objects, up to {after:?}", self.at.totals.listed.objects)
            }
            (None, false, None) => "the keys were read".into(),
        }
    }

    /// What the keys in the list may have to do with the objects, where none of them is the same.
    pub(super) fn hint(&self, addresses: &[String]) -> Option<&'static str> {
        let hints = Hints::new(self.at.strangers.iter().map(String::as_str), addresses);
        Entries::open(&self.keys()).ok()?.filter_map(Result::ok).find_map(|entry| hints.of(&entry.key))
    }

    pub(super) fn first_key(&self) -> Option<String> {
        Entries::open(&self.keys()).ok()?.next()?.ok().map(|entry| entry.key)
    }

    /// Remembers an object that no key answers for, for a hint.
    pub(super) fn remember_stranger(&mut self, key: &str) {
        if self.at.totals.kept.objects == 0 && self.at.strangers.len() < HINT_OBJECTS_MAX {
            self.at.strangers.push(key.to_owned());
        }
    }

    /// Only what is ours.
    fn clear(&self) -> Result<(), Failure> {
        let absent_is_fine = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        // First, for without it nothing else means anything.
        absent_is_fine(fs::remove_file(self.folder.join(CHECKPOINT)))?;
        for name in [
            "checkpoint.next",
            "keys",
            "objects",
            "orphans",
            "missing",
            "still-missing",
            "bare-orphans",
            "bare-missing",
        ] {
            absent_is_fine(fs::remove_file(self.folder.join(name)))?;
        }
        absent_is_fine(fs::remove_dir_all(self.sorting()))
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        self.clear()?;
        // In a folder that holds something else, that stays.
        drop(fs::remove_file(self.folder.join(LOCK)).and_then(|()| fs::remove_dir(&self.folder)));
        Ok(())
    }
}

impl Checkpoint {
    fn nothing(identity: &str, begun_at: UnixMs) -> Checkpoint {
        let list = KeyList {
            entries: 0,
            duplicates: 0,
            outside: 0,
            unstripped: 0,
            skipped: 0,
            lacks_final_newline: false,
            multiline_rows: 0,
            is_dated: false,
            as_of: begun_at,
        };
        Checkpoint {
            identity: identity.to_owned(),
            begun_at,
            totals: Totals::new(wharfinger_reconcile::Times { as_of: begun_at, grace_ms: 0 }, 0, 1),
            list,
            listing: Listing::Bucket,
            after: None,
            is_compared: false,
            orphans_bytes: 0,
            missing_bytes: 0,
            strangers: Vec::new(),
            mark: None,
            looked_again: None,
            deletion: None,
        }
    }
}

impl Appended {
    /// What was written after the last checkpoint is written again.
    fn open(path: &Path, bytes: u64) -> io::Result<Appended> {
        let file = File::options().create(true).append(true).open(path)?;
        if file.metadata()?.len() < bytes {
            return Err(io::Error::other(format!("{} is shorter than it was", path.display())));
        }
        file.set_len(bytes)?;
        Ok(Appended { out: BufWriter::new(file), bytes })
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
