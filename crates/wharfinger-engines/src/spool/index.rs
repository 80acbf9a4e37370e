//! The batches of the spool, ordered by age, in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharfinger_events::name::BatchName;
use wharfinger_lifecycle::UnixMs;

use super::SpooledBatch;
use super::shares::{Shares, TenantBytes};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) folder: usize,
    pub(super) bytes: u64,
    pub(super) events: u64,
    pub(super) tenants: TenantBytes,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    waiting: BTreeMap<BatchName, Entry>,
    deferred: BTreeMap<BatchName, Deferred>,
    folders: Vec<Folder>,
    bytes: u64,
    events: u64,
    shares: Arc<Shares>,
    sending: Option<BatchName>,
}

#[derive(Debug)]
struct Deferred {
    entry: Entry,
    until: UnixMs,
    is_stored: bool,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    files: usize,
    /// Files that are being written.
    writing: usize,
    is_shard: bool,
}

impl Index {
    pub(super) fn with_shares(shares: Arc<Shares>) -> Index {
        Index { shares, ..Index::default() }
    }

    pub(super) fn add_folder(&mut self, path: PathBuf, is_shard: bool) -> usize {
        self.folders.push(Folder { path, files: 0, writing: 0, is_shard });
        self.folders.len() - 1
    }

    pub(super) fn folder(&self, at: usize) -> &Path {
        &self.folders[at].path
    }

    pub(super) fn files_in(&self, at: usize) -> usize {
        self.folders[at].files + self.folders[at].writing
    }

    pub(super) fn begin_write(&mut self, at: usize) {
        self.folders[at].writing += 1;
    }

    pub(super) fn end_write(&mut self, at: usize) {
        self.folders[at].writing -= 1;
    }

    pub(super) fn is_empty_shard(&self, at: usize) -> bool {
        self.folders[at].is_shard && self.files_in(at) == 0
    }

    pub(super) fn empty_shards(&self) -> Vec<usize> {
        (0..self.folders.len()).filter(|at| self.is_empty_shard(*at)).collect()
    }

    pub(super) fn contains(&self, name: &BatchName) -> bool {
        self.entry(name).is_some()
    }

    pub(super) fn entry(&self, name: &BatchName) -> Option<&Entry> {
        self.waiting.get(name).or_else(|| self.deferred.get(name).map(|deferred| &deferred.entry))
    }

    /// The batch, unless the store already has it.
    pub(super) fn unstored(&self, name: &BatchName) -> Option<&Entry> {
        let is_stored = self.deferred.get(name).is_some_and(|deferred| deferred.is_stored);
        self.entry(name).filter(|_| !is_stored)
    }

    pub(super) fn insert(&mut self, name: BatchName, entry: Entry) {
        self.remove(&name);
        self.shares.add(entry.bytes, &entry.tenants);
        self.bytes += entry.bytes;
        self.events += entry.events;
        self.folders[entry.folder].files += 1;
        self.waiting.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: &BatchName) -> Option<Entry> {
        let entry = self
            .waiting
            .remove(name)
            .or_else(|| self.deferred.remove(name).map(|deferred| deferred.entry))?;
        self.shares.subtract(entry.bytes, &entry.tenants);
        self.bytes -= entry.bytes;
        self.events -= entry.events;
        self.folders[entry.folder].files -= 1;
        Some(entry)
    }

    pub(super) fn defer(&mut self, name: &BatchName, until: UnixMs, is_stored: bool) {
        let entry =
            self.waiting.remove(name).or_else(|| self.deferred.remove(name).map(|deferred| deferred.entry));
        if let Some(entry) = entry {
            self.deferred.insert(name.clone(), Deferred { entry, until, is_stored });
        }
    }

    /// The scan is short: few batches are deferred, each after an error.
    pub(super) fn oldest(&self, now: UnixMs) -> Option<SpooledBatch> {
        let due = self.deferred.iter().find(|(_, deferred)| deferred.until <= now);
        let due = due.map(|(name, deferred)| (name, &deferred.entry, deferred.is_stored));
        let waiting = self.waiting.first_key_value().map(|(name, entry)| (name, entry, false));
        let (name, entry, is_stored) = match (due, waiting) {
            (Some(due), Some(waiting)) if due.0 < waiting.0 => due,
            (Some(due), None) => due,
            (_, waiting) => waiting?,
        };
        Some(SpooledBatch { name: name.clone(), bytes: entry.bytes, events: entry.events, is_stored })
    }

    pub(super) fn set_sending(&mut self, name: Option<BatchName>) {
        self.sending = name;
    }

    pub(super) fn oldest_to_remove(&self) -> Option<BatchName> {
        let of_waiting = self.waiting.keys().find(|name| self.sending.as_ref() != Some(name));
        let of_deferred = self.deferred.keys().find(|name| self.sending.as_ref() != Some(name));
        of_waiting.into_iter().chain(of_deferred).min().cloned()
    }

    pub(super) fn oldest_of_all(&self) -> Option<BatchName> {
        let first = |one: Option<&BatchName>| one.cloned();
        let waiting = first(self.waiting.first_key_value().map(|(name, _)| name));
        let deferred = first(self.deferred.first_key_value().map(|(name, _)| name));
        waiting.into_iter().chain(deferred).min()
    }

    pub(super) fn files(&self) -> usize {
        self.waiting.len() + self.deferred.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&Path, &BatchName, &Entry)> {
        let waiting = self.waiting.iter();
        let deferred = self.deferred.iter().map(|(name, deferred)| (name, &deferred.entry));
        waiting.chain(deferred).map(|(name, entry)| (self.folder(entry.folder), name, entry))
    }
}
