//! `wharfinger reconcile`: compares any bucket with any list of keys. It needs no other part of this program: no
//! settings and no catalog. It changes nothing without `--delete`.

mod bucket;
mod delete;
mod export;
mod keys;
mod listing;
mod progress;
mod recheck;
mod report;
mod scan;
mod spelling;
mod state;

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wharfinger_reconcile::{Times, Totals};
use wharfinger_stores::key_sources::is_database;

use super::Failure;
use super::interrupt::cancelled_by_ctrl_c;
use super::output::line;
use crate::clock::Clock;
use crate::config::{Flags, client_env, parse_duration_ms};
use bucket::Bucket;
use keys::{KeyListReader, KeyMapping, Source};
use listing::Listing;
use progress::Progress;
use report::Report;
use state::{StartMode, State};

#[derive(Args)]
#[command(group = ArgGroup::new("source").required(true).args(["keys", "sql", "inventory"]))]
pub(super) struct Arguments {
    /// The bucket: s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or file:/folder
    #[arg(long, value_name = "URL")]
    bucket: String,
    /// Keys from a file, one on each line, gzip or not; `-` for standard input
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Keys from a query: the first column; an optional second column is the expected size
    #[arg(long, value_name = "QUERY")]
    sql: Option<String>,
    /// Keys from an S3 Inventory: the path of its manifest.json, or s3://bucket/…/manifest.json
    #[arg(long, value_name = "MANIFEST")]
    inventory: Option<String>,
    /// The database for the query, opened read-only: postgres://… or sqlite:file (WHARFINGER_RECONCILE_DATABASE)
    #[arg(long, value_name = "URL", conflicts_with_all = ["keys", "inventory"])]
    database: Option<String>,
    /// Read the objects from the bucket's S3 Inventory instead of listing the bucket
    #[arg(long, value_name = "MANIFEST")]
    listing: Option<String>,
    /// NUL separates the keys in the file
    #[arg(short = '0', long, conflicts_with_all = ["sql", "inventory", "column"])]
    null: bool,
    /// The title of the CSV column with the keys, or its number if there are no titles; names in .csv use column 1
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["sql", "inventory"])]
    column: Option<String>,
    /// The keys in the list are percent-encoded
    #[arg(long)]
    percent_encoded: bool,
    /// Remove this text from the start of every key in the list; keys without it are skipped
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    strip_prefix: String,
    /// Add this text to the start of every key in the list
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    key_prefix: String,
    /// The time of the list, or of the copy of the database: 2026-01-31T12:00:00Z (default: the file's time, or now)
    #[arg(long, value_name = "TIME", conflicts_with = "inventory", value_parser = parse_time)]
    as_of: Option<i64>,
    /// Do not report objects as orphans that were stored after the list was made, or less than this before it
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration_ms)]
    grace: i64,
    /// Delete the orphans, after a question
    #[arg(long)]
    delete: bool,
    /// Skip the question
    #[arg(long, requires = "delete")]
    yes: bool,
    /// Delete nothing if more than this share of the objects would be deleted
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    limit_percent: u8,
    /// Delete nothing if more than this number of objects would be deleted
    #[arg(long, value_name = "N", requires = "delete")]
    max_deletes: Option<u64>,
    /// Also delete the older versions (S3) or snapshots (Azure) of deleted objects
    #[arg(long, requires = "delete")]
    all_versions: bool,
    /// Report even if the list is empty, or none of its keys is in the bucket
    #[arg(long, conflicts_with = "delete")]
    allow_empty: bool,
    /// The number of key parts that form a prefix in the sums
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=32))]
    depth: u8,
    /// The number of prefixes to show, those with the most bytes first
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    top: u16,
    /// The format of the report
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write all orphans to a file: .csv, .txt (only keys), otherwise one JSON object on each line
    #[arg(long, value_name = "FILE")]
    orphans_to: Option<PathBuf>,
    /// Write all missing keys to a file, in the same formats
    #[arg(long, value_name = "FILE")]
    missing_to: Option<PathBuf>,
    /// The log of all deletes (default: reconcile-deleted-<time>.jsonl in the current folder)
    #[arg(long, value_name = "FILE", requires = "delete")]
    deleted_to: Option<PathBuf>,
    /// The folder for sorted keys and progress during the run (default: below the user's cache)
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The number of objects between two checkpoints
    #[arg(long, hide = true, value_name = "N", default_value_t = 50_000)]
    objects_per_checkpoint: u64,
    /// Start from the beginning even if the same command was interrupted
    #[arg(long)]
    fresh: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
    Csv,
}

impl Arguments {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    fn source(&self) -> Result<Source, Failure> {
        if let Some(path) = &self.keys {
            return keys::list_at(path, self.null, self.column.as_deref());
        }
        if let Some(manifest) = &self.inventory {
            return Ok(Source::Inventory(manifest.clone()));
        }
        let query = self.sql.clone().unwrap_or_default();
        let database = self.database.clone().or_else(|| client_env("WHARFINGER_RECONCILE_DATABASE"));
        match database.filter(|url| is_database(url)) {
            Some(database) => Ok(Source::Query { database, query }),
            None => Err(Failure::Usage(
                "--sql needs --database (or WHARFINGER_RECONCILE_DATABASE): postgres://… or sqlite:file"
                    .into(),
            )),
        }
    }

    fn mapping(&self, bucket: &Bucket) -> KeyMapping {
        KeyMapping {
            strip_prefix: self.strip_prefix.clone(),
            is_percent_encoded: self.percent_encoded,
            key_prefix: self.key_prefix.clone(),
            bucket_prefix: bucket.prefix.clone(),
            addresses: bucket.addresses(),
        }
    }
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    if arguments.delete && !arguments.yes && !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "--delete asks a question first: run it on a terminal, or add --yes".into(),
        ));
    }
    let source = arguments.source()?;
    if arguments.delete && !source.is_complete() {
        return Err(Failure::Usage(
            "--delete needs a complete list, and a list from a pipe may be cut off: save it to a file first"
                .into(),
        ));
    }
    refuse_overwriting(&arguments, &source)?;
    let bucket = Bucket::connect(flags, "--bucket", &arguments.bucket).await?;
    if arguments.delete {
        refuse_own_files(&arguments, &bucket, &source)?;
    }
    let clock = Clock::system();
    let stop = cancelled_by_ctrl_c()?;
    let mut progress = Progress::start(arguments.format() == Format::Json);

    let mapping = arguments.mapping(&bucket);
    let source_identity = source.identity();
    let identity = state::identity(&[
        &bucket.identity(),
        // A deletion must not resume a report, whose list may be outdated.
        match (arguments.delete, arguments.all_versions) {
            (false, _) => "report",
            (true, false) => "delete",
            (true, true) => "delete all versions",
        },
        &source_identity,
        &arguments.listing.as_deref().map(keys::manifest_identity).unwrap_or_default(),
        &format!(
            "{mapping:?} {:?} {} {} {}",
            arguments.as_of, arguments.grace, arguments.depth, arguments.top
        ),
    ]);
    let folder = state::folder(arguments.state.as_deref(), &identity);
    if arguments.state.is_none() {
        state::remove_expired(&folder);
    }
    // A query may have new rows, so a resumed deletion runs it again before it deletes anything.
    let reads_list_again = arguments.delete && source.may_change();
    let (mut state, start) = State::open(folder, &identity, clock.now(), |checkpoint| {
        !arguments.fresh && (checkpoint.is_compared || !reads_list_again)
    })?;
    match start {
        StartMode::Resumed => {
            progress.print(&format!("resuming the interrupted run ({})", state.position()));
            if reads_list_again {
                let as_of = arguments.as_of;
                let reader =
                    KeyListReader { flags, bucket: &bucket, source: &source, mapping: &mapping, as_of };
                reader.run(&state, &mut progress, &stop).await?;
            }
        }
        StartMode::Fresh => {
            let prepared =
                prepare(flags, &arguments, &bucket, &source, &mut state, &mut progress, &stop).await;
            if prepared.is_err() {
                state.remove()?;
            }
            prepared?;
        }
    }
    let has_changed = || source.identity() != source_identity;
    let result = finish(&arguments, &bucket, &has_changed, &mut state, &mut progress, &stop).await;
    match &result {
        // The same command resumes from this state.
        Err(RunError::Interrupted(_)) if source.is_complete() => {}
        Ok(()) | Err(_) => state.remove()?,
    }
    result.map_err(|error| match error {
        RunError::Interrupted(Failure::Failed(why)) => Failure::Failed(match source.is_complete() {
            true => format!("{why}. Run the same command again to resume"),
            false => format!("{why}. A list from a pipe cannot be resumed: start from the beginning"),
        }),
        RunError::Interrupted(failure) => failure,
        RunError::Refused(message) => {
            if arguments.format() == Format::Json {
                line(json!({ "bucket": bucket.url, "refused": message }).to_string());
            }
            Failure::Failed(message)
        }
        RunError::Reported(message) => Failure::Failed(message),
    })
}

/// The steps before the comparison. They are repeated after an interruption.
async fn prepare(
    flags: &Flags,
    arguments: &Arguments,
    bucket: &Bucket,
    source: &Source,
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let mapping = arguments.mapping(bucket);
    let reader = KeyListReader { flags, bucket, source, mapping: &mapping, as_of: arguments.as_of };
    let list = reader.run(state, progress, stop).await?;
    let listing = match &arguments.listing {
        Some(manifest) => Listing::from_inventory(flags, bucket, manifest, state, progress, stop).await?,
        None => Listing::Bucket,
    };
    let times = Times { as_of: list.as_of, grace_ms: arguments.grace };
    let totals = Totals::new(times, usize::from(arguments.depth), usize::from(arguments.top));
    state.start_comparison(list, listing, totals)
}

/// Why a comparison did not finish.
enum RunError {
    /// The same command may succeed later, and resumes.
    Interrupted(Failure),
    /// The input is suspicious.
    Refused(String),
    /// The report already contains the reason.
    Reported(String),
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> RunError {
        RunError::Interrupted(failure)
    }
}

async fn finish(
    arguments: &Arguments,
    bucket: &Bucket,
    has_list_changed: &(dyn Fn() -> bool + Sync),
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    refuse_empty(arguments, bucket, state).map_err(RunError::Refused)?;
    scan::run(bucket, state, progress, stop, arguments.objects_per_checkpoint).await?;
    refuse_disjoint(arguments, bucket, state).map_err(RunError::Refused)?;
    let compared = state.checkpoint.totals.kept.objects + state.checkpoint.totals.missing;
    if state.checkpoint.rechecked.is_none() && compared != state.checkpoint.list.entries {
        let all = state.checkpoint.list.entries;
        let problem =
            format!("only {compared} of {all} keys were compared: the state on disk is damaged, add --fresh");
        return Err(RunError::Refused(problem));
    }
    recheck::run(bucket, state, progress).await?;
    check_not_stopped(stop)?;
    if let Some(file) = &arguments.orphans_to {
        export::write(file, &state.orphans(), progress)?;
    }
    if let Some(file) = &arguments.missing_to {
        export::write(file, &state.missing(), progress)?;
    }
    check_not_stopped(stop)?;
    let mut refused = match arguments.delete {
        true => delete::refusal(arguments, bucket, state).await?,
        false => None,
    };
    let mut is_confirmed =
        arguments.delete && refused.is_none() && state.checkpoint.totals.orphans.objects > 0 && {
            progress.pause();
            arguments.yes || delete::ask(arguments, bucket, state, stop).await?
        };
    check_not_stopped(stop)?;
    if is_confirmed && has_list_changed() {
        let changed = "the list has changed since it was read. Wait until it is complete, and start again";
        refused = Some(format!("{}: {changed}", delete::deleted_so_far(state)));
        is_confirmed = false;
    }
    if is_confirmed {
        delete::run(arguments, bucket, state, progress, stop).await?;
    }
    progress.end();
    let report = Report::of(bucket, state, arguments.delete, refused.clone());
    report.show(arguments.format());
    let failures = state.checkpoint.deletion.as_ref().map_or(0, |deletion| deletion.failed);
    match refused {
        Some(refused) => Err(RunError::Reported(refused)),
        None if arguments.delete && !is_confirmed && state.checkpoint.totals.orphans.objects > 0 => {
            Err(RunError::Reported(delete::deleted_so_far(state)))
        }
        None if failures > 0 => Err(RunError::Reported(format!("cannot delete {failures} objects"))),
        None => Ok(()),
    }
}

/// An output must not overwrite the list or another output.
fn refuse_overwriting(arguments: &Arguments, source: &Source) -> Result<(), Failure> {
    let outputs = [&arguments.orphans_to, &arguments.missing_to, &arguments.deleted_to];
    let outputs: Vec<PathBuf> = outputs.into_iter().flatten().map(|path| keys::resolved(path)).collect();
    let is_file = |path: &PathBuf| path.metadata().map_or(true, |meta| meta.is_file());
    let is_repeated = |path| is_file(path) && outputs.iter().filter(|other| *other == path).count() > 1;
    match outputs.iter().find(|path| source.path().as_ref() == Some(path) || is_repeated(path)) {
        Some(path) => Err(Failure::Usage(format!("{} is used twice: name different files", path.display()))),
        None => Ok(()),
    }
}

/// In a folder every file is an object, so the list, the database or the state inside it would be deleted.
fn refuse_own_files(arguments: &Arguments, bucket: &Bucket, source: &Source) -> Result<(), Failure> {
    let Some(folder) = bucket.folder() else { return Ok(()) };
    let listing = arguments.listing.as_deref().and_then(keys::local_manifest).map(keys::resolved);
    let state = arguments.state.as_deref().map(keys::resolved);
    match [source.path(), listing, state].into_iter().flatten().find(|path| path.starts_with(&folder)) {
        Some(path) => Err(Failure::Usage(format!(
            "--delete: {} is inside the folder and would be deleted as an orphan: move it to another folder",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Without keys every object would be an orphan. Most likely the list is wrong.
fn refuse_empty(arguments: &Arguments, bucket: &Bucket, state: &State) -> Result<(), String> {
    let list = &state.checkpoint.list;
    if list.entries > 0 || arguments.allow_empty {
        return Ok(());
    }
    if list.unstripped > 0 {
        let (count, text) = (list.unstripped, &arguments.strip_prefix);
        return Err(format!("none of the {count} keys in the list begins with `{text}` (--strip-prefix)"));
    }
    Err(match list.outside {
        0 => "the list of keys is empty, so every object would be an orphan. To see the report anyway, add \
              --allow-empty"
            .into(),
        outside => format!(
            "none of the {outside} keys in the list begins with `{}`. If they are relative to it, add --key-prefix {}. \
             If they begin with another text, add --strip-prefix. To see the report anyway, add --allow-empty",
            bucket.prefix, bucket.prefix
        ),
    })
}

/// If no key is in the bucket, the list uses another spelling or belongs to another bucket.
fn refuse_disjoint(arguments: &Arguments, bucket: &Bucket, state: &State) -> Result<(), String> {
    let totals = &state.checkpoint.totals;
    if totals.kept.objects > 0 || totals.listed.objects == 0 || arguments.allow_empty {
        return Ok(());
    }
    let hint = state.hint(&bucket.addresses());
    let hint = hint.map_or_else(|| "Is it the right bucket?".to_owned(), |hint| format!("Perhaps {hint}."));
    let key = state.first_key().unwrap_or_default();
    let object = state.checkpoint.unmatched_objects.first().cloned().unwrap_or_default();
    Err(format!(
        "none of the {} keys is in the bucket with {} objects (the first key is {key:?}, the first object is \
         {object:?}). {hint} To see the report anyway, add --allow-empty",
        state.checkpoint.list.entries, totals.listed.objects
    ))
}

/// Parses a time in RFC 3339.
fn parse_time(text: &str) -> Result<i64, String> {
    let parsed = chrono::DateTime::parse_from_rfc3339(text);
    parsed.map(|at| at.timestamp_millis()).map_err(|_| "not a time like 2026-01-31T12:00:00Z".to_owned())
}

fn check_not_stopped(stop: &CancellationToken) -> Result<(), Failure> {
    match stop.is_cancelled() {
        true => Err(Failure::Failed("interrupted".into())),
        false => Ok(()),
    }
}
