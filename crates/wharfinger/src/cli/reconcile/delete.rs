//! Deletes orphans: after the whole comparison, within limits, and after a confirmation. Each object is deleted only if
//! it has not changed since the listing. A log records every result.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use futures::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_reconcile::{Count, Entries, Entry, Times};
use wharfinger_stores::{BlobError, ObjectMeta};

use super::super::{Failure, failed};
use super::Arguments;
use super::bucket::Bucket;
use super::check_not_stopped;
use super::progress::Progress;
use super::spelling;
use super::state::State;
use crate::clock::{Clock, rfc3339};
use crate::config::format_size;

const HEADS_AT_ONCE: usize = 32;
/// Small, so that little time passes between the last check of an object and its delete.
const BATCH_MAX: usize = 100;
const SAMPLES_SHOWN: usize = 10;

/// The progress of the deletion, for a resumed run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Deletion {
    /// The position in the list of orphans.
    offset: u64,
    /// Deletes up to this position may have been sent.
    sent_up_to: u64,
    pub(super) log: PathBuf,
    pub(super) deleted: Count,
    /// Another program has deleted them.
    pub(super) already_deleted: u64,
    /// They were written again after the listing.
    pub(super) changed: u64,
    /// The list has a key for them now.
    pub(super) key_added: u64,
    /// The store accepts no request for their names.
    pub(super) invalid_name: u64,
    pub(super) failed: u64,
    /// The bucket keeps older versions, and these were not deleted.
    pub(super) keeps_versions: bool,
}

/// Says whether an interrupted run of the same command has deleted anything.
pub(super) fn deleted_so_far(state: &State) -> String {
    match state.checkpoint.deletion.as_ref().map_or(0, |deletion| deletion.deleted.objects) {
        0 => "nothing was deleted".into(),
        deleted => format!("an earlier run deleted {deleted} objects, this run deleted nothing"),
    }
}

/// The reason why nothing is deleted.
pub(super) async fn refusal(
    arguments: &Arguments,
    bucket: &Bucket,
    state: &State,
) -> Result<Option<String>, Failure> {
    let above = bucket.marker_above().await?;
    let marker = state.checkpoint.marker.clone().or(above);
    let reason = match reason(arguments, state, marker) {
        Some(reason) => Some(reason),
        None => misspelled(bucket, state)?,
    };
    Ok(reason.map(|reason| format!("{}: {reason}", deleted_so_far(state))))
}

fn reason(arguments: &Arguments, state: &State, marker: Option<String>) -> Option<String> {
    let (list, totals) = (&state.checkpoint.list, &state.checkpoint.totals);
    if let Some(marker) = marker {
        return Some(format!(
            "{marker} shows that a Wharfinger stores its files here. Use `wharfinger sweep orphan-cleanup` to delete \
             its orphans"
        ));
    }
    if list.unstripped > 0 {
        let count = list.unstripped;
        return Some(format!(
            "{count} keys of the list do not begin with --strip-prefix, and their objects would be deleted"
        ));
    }
    if list.lacks_final_newline {
        return Some(format!(
            "the last line of the list has no end, so the list may be cut off. If it is complete, add a line break and \
             --as-of {}",
            rfc3339(list.as_of)
        ));
    }
    if list.multiline_rows > 0 {
        return Some(format!(
            "{} rows of the list have several lines: a quote may be missing, and then keys are lost. Use a list with \
             only the keys, separated by NUL (--null)",
            list.multiline_rows
        ));
    }
    if let (false, Some(kept), Some(orphan)) = (list.is_dated, totals.newest_kept, totals.newest_orphan)
        && kept < orphan
    {
        return Some(format!(
            "the newest object on the list was stored at {}, but an orphan was stored at {}: the list may be older \
             than it seems. Add --as-of with the time of the list",
            rfc3339(kept),
            rfc3339(orphan)
        ));
    }
    let (orphans, listed) = (totals.orphans.objects, totals.listed.objects);
    let limit = u128::from(listed) * u128::from(arguments.limit_percent);
    if u128::from(orphans) * 100 > limit {
        return Some(format!(
            "{orphans} of {listed} objects would be deleted, more than {} %. If the list is right, raise \
             --limit-percent",
            arguments.limit_percent
        ));
    }
    let max = arguments.max_deletes.filter(|max| orphans > *max)?;
    Some(format!("{orphans} objects would be deleted, more than --max-deletes {max}"))
}

fn misspelled(bucket: &Bucket, state: &State) -> Result<Option<String>, Failure> {
    Ok(spelling::find_pair(state, &bucket.addresses()).map_err(failed)?.map(|(orphan, missing)| {
        format!(
            "the orphan {orphan:?} and the missing key {missing:?} differ only in spelling. Use the spelling of the \
             bucket in the list, or remove that key"
        )
    }))
}

/// Asks on the terminal.
pub(super) async fn ask(
    arguments: &Arguments,
    bucket: &Bucket,
    state: &State,
    stop: &CancellationToken,
) -> Result<bool, Failure> {
    let totals = &state.checkpoint.totals;
    let count = totals.orphans.objects;
    eprintln!("{count} objects of {} will be deleted, {}:", bucket.url, format_size(totals.orphans.bytes));
    if let Some(done) = state.checkpoint.deletion.as_ref().map(Deletion::done) {
        eprintln!("  {done} of them were processed before the interruption");
    }
    for orphan in totals.orphan_samples.iter().take(SAMPLES_SHOWN) {
        eprintln!("  {:?}  {}", orphan.key, format_size(orphan.size.unwrap_or(0)));
    }
    if count > SAMPLES_SHOWN as u64 {
        eprintln!("  … and {} more; --orphans-to FILE writes all of them", count - SAMPLES_SHOWN as u64);
    }
    if arguments.all_versions {
        eprintln!("Older versions and snapshots will be deleted too.");
    }
    let (missing, outside) = (totals.missing, state.checkpoint.list.outside);
    if missing + outside > 0 {
        eprintln!(
            "{missing} keys of the list have no object, and {outside} keys are outside the prefix. Check that they are \
             not other spellings of the keys above."
        );
    }
    eprint!("Type `delete {count}` to delete them: ");
    let answer = stop.run_until_cancelled(read_line()).await.unwrap_or_default();
    check_not_stopped(stop)?;
    Ok(answer.trim() == format!("delete {count}"))
}

/// Reads a line from the terminal. A thread reads it, so that Ctrl-C does not have to wait.
async fn read_line() -> String {
    let (send, answer) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        // The receiver is dropped after Ctrl-C.
        drop(send.send(read.map_or_else(|_| String::new(), |_| answer)));
    });
    answer.await.unwrap_or_default()
}

pub(super) async fn run(
    arguments: &Arguments,
    bucket: &Bucket,
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    progress.phase("deleting", "objects");
    let mut deletion = match state.checkpoint.deletion.take() {
        Some(deletion) => deletion,
        None => Deletion {
            offset: 0,
            sent_up_to: 0,
            log: log_path(arguments)?,
            deleted: Count::default(),
            already_deleted: 0,
            changed: 0,
            key_added: 0,
            invalid_name: 0,
            failed: 0,
            keeps_versions: false,
        },
    };
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(&deletion.log)
        .map_err(|error| Failure::Failed(format!("{}: {error}", deletion.log.display())))?;
    let mut orphans = File::open(state.orphans()).map_err(failed)?;
    orphans.seek(io::SeekFrom::Start(deletion.offset)).map_err(failed)?;
    let mut orphans = BufReader::new(orphans);
    let mut keys = KeyLookup::open(&state.keys()).map_err(failed)?;
    let batch_max = bucket.store.capabilities().delete_batch_max.clamp(1, BATCH_MAX);
    let all = state.checkpoint.totals.orphans.objects.max(1);
    let mut done = deletion.done();
    let sent_before = deletion.sent_up_to;
    loop {
        let may_be_sent = deletion.offset < sent_before;
        let mut offset = deletion.offset;
        let batch = next(&mut orphans, batch_max, &mut offset).map_err(failed)?;
        if batch.is_empty() {
            break;
        }
        // Saved before the deletes are sent, so that a resumed run recognizes its own deletes.
        deletion.sent_up_to = offset;
        state.checkpoint.deletion = Some(deletion.clone());
        state.save()?;
        let have_key: io::Result<Vec<bool>> = batch.iter().map(|orphan| keys.contains(&orphan.key)).collect();
        let batch_delete = BatchDelete {
            bucket,
            times: state.checkpoint.totals.times(),
            with_older: arguments.all_versions,
            may_be_sent,
        };
        let batch: Vec<(Entry, bool)> = batch.into_iter().zip(have_key.map_err(failed)?).collect();
        let outcomes = batch_delete.run(batch).await;
        // If the store is down, this batch is not counted, so the same command tries it again.
        if let Some(error) = outcomes.iter().find_map(|(_, outcome)| outcome.unavailable())
            && !outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Deleted))
        {
            return Err(Failure::Failed(format!("the store does not answer ({error})")));
        }
        deletion.offset = offset;
        deletion.keeps_versions |= !arguments.all_versions && bucket.store.capabilities().versioned;
        done += outcomes.len() as u64;
        for (orphan, outcome) in outcomes {
            deletion.count(&orphan, &outcome);
            let line = json!({
                "key": orphan.key, "size": orphan.size, "modifiedAt": orphan.modified_at.map(rfc3339),
                "outcome": outcome.word(), "error": outcome.error(),
            });
            writeln!(log, "{line}").map_err(failed)?;
        }
        // The log is synced before the position, so that no result is missing from it.
        log.sync_data().map_err(failed)?;
        state.checkpoint.deletion = Some(deletion.clone());
        state.save()?;
        progress.update(done, Some(done as f64 / all as f64));
        check_not_stopped(stop)?;
    }
    state.checkpoint.deletion = Some(deletion);
    Ok(())
}

/// An absolute path, because the command may be resumed from another folder.
fn log_path(arguments: &Arguments) -> Result<PathBuf, Failure> {
    let path = arguments.deleted_to.clone().unwrap_or_else(|| {
        let now = rfc3339(Clock::system().now()).replace([':', '.'], "-");
        PathBuf::from(format!("reconcile-deleted-{now}.jsonl"))
    });
    std::path::absolute(path).map_err(failed)
}

fn next(orphans: &mut BufReader<File>, max: usize, offset: &mut u64) -> io::Result<Vec<Entry>> {
    let mut batch = Vec::with_capacity(max);
    while batch.len() < max
        && let Some(entry) = Entry::read_from(&mut orphans.by_ref())?
    {
        *offset += entry.write_to(&mut io::sink())?;
        batch.push(entry);
    }
    Ok(batch)
}

/// Looks up keys in the list. After an interruption the list was read again and may have new keys.
struct KeyLookup {
    keys: Entries,
    next: Option<Entry>,
}

impl KeyLookup {
    fn open(path: &Path) -> io::Result<KeyLookup> {
        let mut keys = Entries::open(path)?;
        let next = keys.next().transpose()?;
        Ok(KeyLookup { keys, next })
    }

    /// Must be called in the order of the keys.
    fn contains(&mut self, key: &str) -> io::Result<bool> {
        while self.next.as_ref().is_some_and(|next| next.key.as_str() < key) {
            self.next = self.keys.next().transpose()?;
        }
        Ok(self.next.as_ref().is_some_and(|next| next.key == key))
    }
}

enum Outcome {
    Deleted,
    AlreadyDeleted,
    Changed,
    KeyAdded,
    InvalidName,
    Failed(String),
    /// The store did not answer.
    Unavailable(String),
}

impl Outcome {
    fn unavailable(&self) -> Option<&str> {
        if let Outcome::Unavailable(error) = self { Some(error) } else { None }
    }

    fn of_error(error: &BlobError) -> Outcome {
        match error.is_retryable() {
            true => Outcome::Unavailable(error.to_string()),
            false => Outcome::Failed(error.to_string()),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Outcome::Deleted => "deleted",
            Outcome::AlreadyDeleted => "alreadyDeleted",
            Outcome::Changed => "changed",
            Outcome::KeyAdded => "keyAdded",
            Outcome::InvalidName => "invalidName",
            Outcome::Failed(_) | Outcome::Unavailable(_) => "failed",
        }
    }

    fn error(&self) -> Option<&str> {
        if let Outcome::Failed(error) | Outcome::Unavailable(error) = self { Some(error) } else { None }
    }
}

impl Deletion {
    fn done(&self) -> u64 {
        self.deleted.objects
            + self.already_deleted
            + self.changed
            + self.key_added
            + self.invalid_name
            + self.failed
    }

    fn count(&mut self, orphan: &Entry, outcome: &Outcome) {
        match outcome {
            Outcome::Deleted => self.deleted.add(orphan),
            Outcome::AlreadyDeleted => self.already_deleted += 1,
            Outcome::Changed => self.changed += 1,
            Outcome::KeyAdded => self.key_added += 1,
            Outcome::InvalidName => self.invalid_name += 1,
            Outcome::Failed(_) | Outcome::Unavailable(_) => self.failed += 1,
        }
    }
}

type CheckedObject = (ObjectKey, ObjectMeta);

struct BatchDelete<'b> {
    bucket: &'b Bucket,
    times: Times,
    with_older: bool,
    /// An interrupted run may have sent these deletes.
    may_be_sent: bool,
}

impl BatchDelete<'_> {
    /// Checks each object once more, and deletes those that are unchanged and still have no key.
    async fn run(&self, batch: Vec<(Entry, bool)>) -> Vec<(Entry, Outcome)> {
        let checked: Vec<(Entry, Result<CheckedObject, Outcome>)> = stream::iter(batch)
            .map(async |(orphan, has_key)| {
                let checked = self.check(&orphan).await;
                let checked = if has_key && checked.is_ok() { Err(Outcome::KeyAdded) } else { checked };
                (orphan, checked)
            })
            .buffered(HEADS_AT_ONCE)
            .collect()
            .await;
        let unchanged: Vec<CheckedObject> =
            checked.iter().filter_map(|(_, checked)| checked.as_ref().ok().cloned()).collect();
        let mut answers =
            self.bucket.store.delete_if_unchanged(&unchanged, self.with_older).await.into_iter();
        let outcomes = checked.into_iter().map(|(orphan, checked)| {
            let outcome = match checked {
                Err(outcome) => outcome,
                Ok(_) => match answers.next() {
                    Some(Ok(())) => Outcome::Deleted,
                    Some(Err(BlobError::Changed)) => Outcome::Changed,
                    Some(Err(error)) => Outcome::of_error(&error),
                    None => Outcome::Failed("the store returned no result for this object".into()),
                },
            };
            (orphan, outcome)
        });
        outcomes.collect()
    }

    /// Checks that an object may be deleted: size and time are as listed, and it is old enough.
    async fn check(&self, orphan: &Entry) -> Result<CheckedObject, Outcome> {
        let key = self.bucket.key(&orphan.key).ok_or(Outcome::InvalidName)?;
        let meta = match self.bucket.store.head(&key, None).await {
            Ok(meta) => meta,
            Err(BlobError::NotFound) if self.may_be_sent => return Err(Outcome::Deleted),
            Err(BlobError::NotFound) => return Err(Outcome::AlreadyDeleted),
            Err(error) => return Err(Outcome::of_error(&error)),
        };
        // A HEAD response has the time in whole seconds.
        let seconds = |at: Option<i64>| at.map(|at| at.div_euclid(1_000));
        let is_same = Some(meta.size) == orphan.size
            && meta.modified_at.is_some_and(|at| at <= self.times.cutoff())
            && seconds(meta.modified_at) == seconds(orphan.modified_at);
        if is_same { Ok((key, meta)) } else { Err(Outcome::Changed) }
    }
}
