//! Sorts any number of entries by key, on disk and in bounded memory, and removes duplicates. Sorted input is written
//! directly. Other input is sorted in runs, and a bounded number of runs is merged at a time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::entry::Entry;

/// The memory for the entries of one run.
pub const MEMORY_MAX: usize = 2 << 20;
/// The number of runs that are merged at once.
pub const FAN_IN: usize = 64;
const BUFFER_BYTES: usize = 64 << 10;
/// Smaller, because many runs are read at once.
const RUN_BUFFER_BYTES: usize = 16 << 10;

/// Accepts entries in any order.
pub struct Sorter {
    folder: PathBuf,
    memory_max: usize,
    fan_in: usize,
    /// The sorted entries at the start of the input.
    sorted_start: Run,
    last: Option<String>,
    buffer: Vec<Entry>,
    buffer_bytes: usize,
    runs: Vec<PathBuf>,
    runs_made: usize,
    pushed: u64,
}

/// A list on disk, sorted by key, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorted {
    pub path: PathBuf,
    pub entries: u64,
    /// The number of entries that were dropped because their key repeats another one.
    pub duplicates: u64,
    /// Whether the input was sorted.
    pub was_in_order: bool,
}

struct Run {
    path: PathBuf,
    out: BufWriter<File>,
    entries: u64,
}

impl Run {
    fn create(path: PathBuf) -> io::Result<Run> {
        let out = BufWriter::with_capacity(BUFFER_BYTES, File::create(&path)?);
        Ok(Run { path, out, entries: 0 })
    }

    fn push(&mut self, entry: &Entry) -> io::Result<()> {
        self.entries += 1;
        entry.write_to(&mut self.out).map(drop)
    }

    fn close(mut self) -> io::Result<PathBuf> {
        self.out.flush()?;
        Ok(self.path)
    }
}

impl Sorter {
    /// Sorts in this folder, which is created. It should be empty, because its files may be overwritten.
    pub fn new(folder: &Path) -> io::Result<Sorter> {
        Sorter::with_limits(folder, MEMORY_MAX, FAN_IN)
    }

    /// Like [`Sorter::new`], with other limits.
    pub fn with_limits(folder: &Path, memory_max: usize, fan_in: usize) -> io::Result<Sorter> {
        fs::create_dir_all(folder)?;
        Ok(Sorter {
            folder: folder.to_owned(),
            memory_max,
            fan_in: fan_in.max(2),
            sorted_start: Run::create(folder.join("sorted-start"))?,
            last: None,
            buffer: Vec::new(),
            buffer_bytes: 0,
            runs: Vec::new(),
            runs_made: 0,
            pushed: 0,
        })
    }

    pub fn push(&mut self, entry: Entry) -> io::Result<()> {
        self.pushed += 1;
        if self.buffer.is_empty() && self.runs.is_empty() {
            match self.last.as_deref().map(|last| entry.key.as_str().cmp(last)) {
                None | Some(Ordering::Greater) => {
                    self.sorted_start.push(&entry)?;
                    let last = self.last.get_or_insert_default();
                    last.clear();
                    last.push_str(&entry.key);
                    return Ok(());
                }
                Some(Ordering::Equal) => return Ok(()),
                Some(Ordering::Less) => {}
            }
        }
        self.buffer_bytes += entry.memory_bytes();
        self.buffer.push(entry);
        if self.buffer_bytes >= self.memory_max { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> io::Result<()> {
        self.buffer.sort_by(|a, b| a.key.cmp(&b.key));
        let mut run = self.next_run()?;
        let mut last: Option<&str> = None;
        for entry in &self.buffer {
            if last != Some(&entry.key) {
                run.push(entry)?;
            }
            last = Some(&entry.key);
        }
        self.runs.push(run.close()?);
        self.buffer = Vec::new();
        self.buffer_bytes = 0;
        Ok(())
    }

    fn next_run(&mut self) -> io::Result<Run> {
        self.runs_made += 1;
        Run::create(self.folder.join(format!("run-{}", self.runs_made)))
    }

    /// Merges all entries into one list at `to`, and removes the folder.
    pub fn finish(mut self, to: &Path) -> io::Result<Sorted> {
        if !self.buffer.is_empty() {
            self.spill()?;
        }
        let was_in_order = self.runs.is_empty();
        let sorted_start = std::mem::replace(&mut self.sorted_start, Run::create(self.folder.join("none"))?);
        let mut entries = sorted_start.entries;
        let sorted_start = sorted_start.close()?;
        let complete = if was_in_order {
            sorted_start
        } else {
            self.runs.insert(0, sorted_start);
            while self.runs.len() > self.fan_in {
                let first: Vec<PathBuf> = self.runs.drain(..self.fan_in).collect();
                let into = self.next_run()?;
                let (merged, _) = merge(&first, into)?;
                self.runs.push(merged);
            }
            let into = self.next_run()?;
            let (merged, count) = merge(&self.runs, into)?;
            entries = count;
            merged
        };
        File::open(&complete)?.sync_all()?;
        fs::rename(&complete, to)?;
        fs::remove_dir_all(&self.folder)?;
        Ok(Sorted { path: to.to_owned(), entries, duplicates: self.pushed - entries, was_in_order })
    }
}

/// The next entry of a run. The order is reversed, because the heap pops its greatest element first. For equal keys the
/// earlier run comes first.
struct Head {
    entry: Entry,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> Ordering {
        other.entry.key.cmp(&self.entry.key).then(other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

fn merge(runs: &[PathBuf], mut into: Run) -> io::Result<(PathBuf, u64)> {
    let mut inputs = Vec::with_capacity(runs.len());
    let mut heads = BinaryHeap::with_capacity(runs.len());
    for (run, path) in runs.iter().enumerate() {
        let mut input = BufReader::with_capacity(RUN_BUFFER_BYTES, File::open(path)?);
        if let Some(entry) = Entry::read_from(&mut input)? {
            heads.push(Head { entry, run });
        }
        inputs.push(input);
    }
    let mut last = String::new();
    while let Some(mut head) = heads.peek_mut() {
        if into.entries == 0 || head.entry.key != last {
            into.push(&head.entry)?;
            last.clone_from(&head.entry.key);
        }
        match Entry::read_from(&mut inputs[head.run])? {
            Some(entry) => head.entry = entry,
            None => drop(std::collections::binary_heap::PeekMut::pop(head)),
        }
    }
    for path in runs {
        fs::remove_file(path)?;
    }
    let entries = into.entries;
    Ok((into.close()?, entries))
}

/// Reads a list from disk.
pub struct Entries(BufReader<File>);

impl Entries {
    pub fn open(path: &Path) -> io::Result<Entries> {
        Ok(Entries(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?)))
    }
}

impl Iterator for Entries {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<io::Result<Entry>> {
        Entry::read_from(&mut self.0).transpose()
    }
}
