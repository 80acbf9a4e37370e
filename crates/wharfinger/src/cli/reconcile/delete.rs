//! Deleting orphans: only after everything was compared, within limits, when somebody has agreed, and each only if it is
//! still what was listed. What becomes of each is written down.

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
use super::disguise;
use super::not_stopped;
use super::progress::Progress;
use super::state::State;
use crate::clock::{Clock, rfc3339};
use crate::config::format_size;

const HEADS_AT_ONCE: usize = 32;
/// Few, so that not much time goes by between the last look and the end.
const BATCH_MAX: usize = 100;
const SAMPLES_SHOWN: usize = 10;

/// How far it has come.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Deletion {
    /// In the list of orphans.
    offset: u64,
    /// Up to here deletes may have been sent.
    begun: u64,
    pub(super) log: PathBuf,
    pub(super) deleted: Count,
    /// Somebody else had deleted them.
    pub(super) gone: u64,
    /// They were written again since they were listed.
    pub(super) changed: u64,
    /// A key answers for them since.
    pub(super) known: u64,
    /// The store cannot be asked for them by their names.
    pub(super) unnamable: u64,
    pub(super) failed: u64,
    /// The bucket keeps older versions, and they were left there with their bytes.
    pub(super) keeps_versions: bool,
}

/// Whether anything was deleted by an interrupted run of the same command.
pub(super) fn so_far(state: &State) -> String {
    match state.at.deletion.as_ref().map_or(0, |deletion| deletion.deleted.objects) {
        0 => "nothing was deleted".into(),
        deleted => format!("nothing more was deleted than {deleted} objects before"),
    }
}

/// Why nothing is deleted.
pub(super) async fn refusal(
    arguments: &Arguments,
    bucket: &Bucket,
    state: &State,
) -> Result<Option<String>, Failure> {
    let above = bucket.mark_above().await?;
    let mark = state.at.mark.clone().or(above);
    let reason = match reason(arguments, state, mark) {
        Some(reason) => Some(reason),
        None => disguised(bucket, state)?,
    };
    Ok(reason.map(|reason| format!("{}: {reason}", so_far(state))))
}

fn reason(arguments: &Arguments, state: &State, mark: Option<String>) -> Option<String> {
    let (list, totals) = (&state.at.list, &state.at.totals);
    if let Some(mark) = mark {
        return Some(format!(
            "{mark} says that a Wharfinger keeps its files here, and this list is not its catalog. Its orphans are \
             deleted by `wharfinger sweep orphan-cleanup`"
        ));
    }
    if list.unstripped > 0 {
        let count = list.unstripped;
        return Some(format!(
            "{count} keys of the list do not begin with --strip-prefix, and their objects would go"
        ));
    }
    if list.lacks_final_newline {
        return Some(format!(
            "the list's last line does not end: it may have been cut off. If it is whole, end it, and say when it was \
             made: --as-of {}",
            rfc3339(list.as_of)
        ));
    }
    if list.multiline_rows > 0 {
        return Some(format!(
            "{} rows of the list go over several lines: if a quote is missing there, keys were lost. Make a list of keys \
             alone, separated by NUL (--null)",
            list.multiline_rows
        ));
    }
    if let (false, Some(kept), Some(orphan)) = (list.is_dated, totals.newest_kept, totals.newest_orphan)
        && kept < orphan
    {
        return Some(format!(
            "the list knows of nothing that was stored after {}, and an orphan was stored at {}: the list may be older \
             than it seems. Say when it was made, with --as-of",
            rfc3339(kept),
            rfc3339(orphan)
        ));
    }
    let (orphans, listed) = (totals.orphans.objects, totals.listed.objects);
    let limit = u128::from(listed) * u128::from(arguments.limit_percent);
    if u128::from(orphans) * 100 > limit {
        return Some(format!(
            "{orphans} of {listed} objects would go, more than {} %. If the list is right, raise --limit-percent",
            arguments.limit_percent
        ));
    }
    let max = arguments.max_deletes.filter(|max| orphans > *max)?;
    Some(format!("{orphans} objects would go, more than --max-deletes {max}"))
}

fn disguised(bucket: &Bucket, state: &State) -> Result<Option<String>, Failure> {
    Ok(disguise::find(state, &bucket.addresses()).map_err(failed)?.map(|(orphan, missing)| {
        format!(
            "the object {orphan:?}, which no key answers for, and the key {missing:?}, which has no object, differ only in \
             how they are written. Write the list as the bucket does, or leave that key out"
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
    let totals = &state.at.totals;
    let count = totals.orphans.objects;
    eprintln!(
        "{count} objects of {} are to be deleted, {}:",
        bucket.shown,
        format_size(totals.orphans.bytes)
    );
    if let Some(done) = state.at.deletion.as_ref().map(Deletion::done) {
        eprintln!("  {done} of them were dealt with before this was interrupted");
    }
    for orphan in totals.orphan_samples.iter().take(SAMPLES_SHOWN) {
        eprintln!("  {:?}  {}", orphan.key, format_size(orphan.size.unwrap_or(0)));
    }
    if count > SAMPLES_SHOWN as u64 {
        eprintln!("  … and {} others; --orphans-to FILE writes all", count - SAMPLES_SHOWN as u64);
    }
    if arguments.all_versions {
        eprintln!("Older versions and snapshots go too.");
    }
    let (missing, outside) = (totals.missing, state.at.list.outside);
    if missing + outside > 0 {
        eprintln!(
            "{missing} keys of the list have no object, and {outside} lie outside what is looked at: make sure that \
             they are not these objects' keys, written in another way."
        );
    }
    eprint!("To delete, type `delete {count}`: ");
    let answer = stop.run_until_cancelled(typed()).await.unwrap_or_default();
    not_stopped(stop)?;
    Ok(answer.trim() == format!("delete {count}"))
}

/// A line from the terminal. The thread that waits for it is not waited for.
async fn typed() -> String {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        // Whoever asked may have been interrupted.
        drop(tell.send(read.map_or_else(|_| String::new(), |_| answer)));
    });
    told.await.unwrap_or_default()
}

pub(super) async fn run(
    arguments: &Arguments,
    bucket: &Bucket,
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    progress.phase("deleting", "objects");
    let mut at = match state.at.deletion.take() {
        Some(at) => at,
        None => Deletion {
            offset: 0,
            begun: 0,
            log: log_path(arguments)?,
            deleted: Count::default(),
            gone: 0,
            changed: 0,
            known: 0,
            unnamable: 0,
            failed: 0,
            keeps_versions: false,
        },
    };
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(&at.log)
        .map_err(|error| Failure::Failed(format!("{}: {error}", at.log.display())))?;
    let mut orphans = File::open(state.orphans()).map_err(failed)?;
    orphans.seek(io::SeekFrom::Start(at.offset)).map_err(failed)?;
    let mut orphans = BufReader::new(orphans);
    let mut keys = Known::open(&state.keys()).map_err(failed)?;
    let batch_max = bucket.store.capabilities().delete_batch_max.clamp(1, BATCH_MAX);
    let all = state.at.totals.orphans.objects.max(1);
    let mut done = at.done();
    let begun_before = at.begun;
    loop {
        let is_begun = at.offset < begun_before;
        let mut offset = at.offset;
        let batch = next(&mut orphans, batch_max, &mut offset).map_err(failed)?;
        if batch.is_empty() {
            break;
        }
        // Written down first, so that what an interrupted run has deleted is known to be its doing.
        at.begun = offset;
        state.at.deletion = Some(at.clone());
        state.save()?;
        let known: io::Result<Vec<bool>> = batch.iter().map(|orphan| keys.has(&orphan.key)).collect();
        let deleting =
            Deleting { bucket, times: state.at.totals.times(), with_older: arguments.all_versions, is_begun };
        let batch: Vec<(Entry, bool)> = batch.into_iter().zip(known.map_err(failed)?).collect();
        let outcomes = deleting.run(batch).await;
        // A store that is away spends nothing: the same batch is tried again by the same command.
        if let Some(away) = outcomes.iter().find_map(|(_, outcome)| outcome.away())
            && !outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Deleted))
        {
            return Err(Failure::Failed(format!("the store does not answer ({away})")));
        }
        at.offset = offset;
        at.keeps_versions |= !arguments.all_versions && bucket.store.capabilities().versioned;
        done += outcomes.len() as u64;
        for (orphan, outcome) in outcomes {
            at.count(&orphan, &outcome);
            let line = json!({
                "key": orphan.key, "size": orphan.size, "modifiedAt": orphan.modified_at.map(rfc3339),
                "outcome": outcome.word(), "error": outcome.error(),
            });
            writeln!(log, "{line}").map_err(failed)?;
        }
        // The log is true before the place in the list is.
        log.sync_data().map_err(failed)?;
        state.at.deletion = Some(at.clone());
        state.save()?;
        progress.at(done, Some(done as f64 / all as f64));
        not_stopped(stop)?;
    }
    state.at.deletion = Some(at);
    Ok(())
}

/// Whole, for whoever goes on from another folder.
fn log_path(arguments: &Arguments) -> Result<PathBuf, Failure> {
    let asked = arguments.deleted_to.clone().unwrap_or_else(|| {
        let now = rfc3339(Clock::system().now()).replace([':', '.'], "-");
        PathBuf::from(format!("reconcile-deleted-{now}.jsonl"))
    });
    std::path::absolute(asked).map_err(failed)
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

/// The keys of the list, as it was read last: where the comparison goes on after an interruption, some may be new.
struct Known {
    keys: Entries,
    next: Option<Entry>,
}

impl Known {
    fn open(path: &Path) -> io::Result<Known> {
        let mut keys = Entries::open(path)?;
        let next = keys.next().transpose()?;
        Ok(Known { keys, next })
    }

    /// Asked in the order of keys.
    fn has(&mut self, key: &str) -> io::Result<bool> {
        while self.next.as_ref().is_some_and(|next| next.key.as_str() < key) {
            self.next = self.keys.next().transpose()?;
        }
        Ok(self.next.as_ref().is_some_and(|next| next.key == key))
    }
}

enum Outcome {
    Deleted,
    Gone,
    Changed,
    Known,
    Unnamable,
    Failed(String),
    /// The store did not answer for it.
    Away(String),
}

impl Outcome {
    fn away(&self) -> Option<&str> {
        if let Outcome::Away(error) = self { Some(error) } else { None }
    }

    fn of_error(error: &BlobError) -> Outcome {
        match error.is_retryable() {
            true => Outcome::Away(error.to_string()),
            false => Outcome::Failed(error.to_string()),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Outcome::Deleted => "deleted",
            Outcome::Gone => "gone",
            Outcome::Changed => "changed",
            Outcome::Known => "known",
            Outcome::Unnamable => "unnamable",
            Outcome::Failed(_) | Outcome::Away(_) => "failed",
        }
    }

    fn error(&self) -> Option<&str> {
        if let Outcome::Failed(error) | Outcome::Away(error) = self { Some(error) } else { None }
    }
}

impl Deletion {
    fn done(&self) -> u64 {
        self.deleted.objects + self.gone + self.changed + self.known + self.unnamable + self.failed
    }

    fn count(&mut self, orphan: &Entry, outcome: &Outcome) {
        match outcome {
            Outcome::Deleted => self.deleted.add(orphan),
            Outcome::Gone => self.gone += 1,
            Outcome::Changed => self.changed += 1,
            Outcome::Known => self.known += 1,
            Outcome::Unnamable => self.unnamable += 1,
            Outcome::Failed(_) | Outcome::Away(_) => self.failed += 1,
        }
    }
}

type Seen = (ObjectKey, ObjectMeta);

struct Deleting<'b> {
    bucket: &'b Bucket,
    times: Times,
    with_older: bool,
    /// An interrupted run may have deleted some of it.
    is_begun: bool,
}

impl Deleting<'_> {
    /// Looks at each once more, and deletes those that are as they were and that still no key answers for.
    async fn run(&self, batch: Vec<(Entry, bool)>) -> Vec<(Entry, Outcome)> {
        let looked: Vec<(Entry, Result<Seen, Outcome>)> = stream::iter(batch)
            .map(async |(orphan, is_known)| {
                let looked = self.look(&orphan).await;
                let looked = if is_known && looked.is_ok() { Err(Outcome::Known) } else { looked };
                (orphan, looked)
            })
            .buffered(HEADS_AT_ONCE)
            .collect()
            .await;
        let seen: Vec<Seen> = looked.iter().filter_map(|(_, looked)| looked.as_ref().ok().cloned()).collect();
        let mut answers = self.bucket.store.delete_if_unchanged(&seen, self.with_older).await.into_iter();
        let outcomes = looked.into_iter().map(|(orphan, looked)| {
            let outcome = match looked {
                Err(outcome) => outcome,
                Ok(_) => match answers.next() {
                    Some(Ok(())) => Outcome::Deleted,
                    Some(Err(BlobError::Changed)) => Outcome::Changed,
                    Some(Err(error)) => Outcome::of_error(&error),
                    None => Outcome::Failed("the store did not answer for it".into()),
                },
            };
            (orphan, outcome)
        });
        outcomes.collect()
    }

    /// An object that may be deleted: as large and as old as it was listed, and that is old enough.
    async fn look(&self, orphan: &Entry) -> Result<Seen, Outcome> {
        let key = self.bucket.key(&orphan.key).ok_or(Outcome::Unnamable)?;
        let meta = match self.bucket.store.head(&key, None).await {
            Ok(meta) => meta,
            Err(BlobError::NotFound) if self.is_begun => return Err(Outcome::Deleted),
            Err(BlobError::NotFound) => return Err(Outcome::Gone),
            Err(error) => return Err(Outcome::of_error(&error)),
        };
        // Heads tell whole seconds.
        let seconds = |at: Option<i64>| at.map(|at| at.div_euclid(1_000));
        let is_same = Some(meta.size) == orphan.size
            && meta.modified_at.is_some_and(|at| at <= self.times.cutoff())
            && seconds(meta.modified_at) == seconds(orphan.modified_at);
        if is_same { Ok((key, meta)) } else { Err(Outcome::Changed) }
    }
}
