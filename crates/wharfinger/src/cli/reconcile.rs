//! `wharfinger reconcile`: compares any bucket with any list of keys. For people who have both already, and no other part
//! of this program: nothing is configured, no catalog is asked, and nothing is changed unless `--delete` says so.

mod bucket;
mod delete;
mod disguise;
mod export;
mod keys;
mod listing;
mod progress;
mod recheck;
mod report;
mod scan;
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
use keys::{Reading, Source, Spelling};
use listing::Listing;
use progress::Progress;
use report::Report;
use state::{Begun, State};

#[derive(Args)]
#[command(group = ArgGroup::new("source").required(true).args(["keys", "sql", "inventory"]))]
pub(super) struct Arguments {
    /// The bucket: s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or file:/folder
    #[arg(long, value_name = "URL")]
    bucket: String,
    /// Keys from a file, one a line, gzip or not; `-` for standard input
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Keys from a query: its first column; a second may say how large each object should be
    #[arg(long, value_name = "QUERY")]
    sql: Option<String>,
    /// Keys from an S3 Inventory: its manifest.json, a file or s3://bucket/…/manifest.json
    #[arg(long, value_name = "MANIFEST")]
    inventory: Option<String>,
    /// What the query is asked of: postgres://… or sqlite:file, never written to (WHARFINGER_RECONCILE_DATABASE)
    #[arg(long, value_name = "URL", conflicts_with_all = ["keys", "inventory"])]
    database: Option<String>,
    /// Take the objects from the bucket's S3 Inventory instead of listing it
    #[arg(long, value_name = "MANIFEST")]
    listing: Option<String>,
    /// The keys in the file are separated by NUL
    #[arg(short = '0', long, conflicts_with_all = ["sql", "inventory", "column"])]
    null: bool,
    /// The file is CSV (as one whose name ends in .csv is): the keys' column, by its title, or by its number if there are no titles
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["sql", "inventory"])]
    column: Option<String>,
    /// The keys in the list are percent-encoded
    #[arg(long)]
    percent_encoded: bool,
    /// What the keys in the list begin with and the bucket's do not; keys that do not begin so are left out
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    strip_prefix: String,
    /// What the bucket's keys begin with and those in the list do not
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    key_prefix: String,
    /// When the list, or the copy of the database, was made: 2026-01-31T12:00:00Z (default: when the file was written, or now)
    #[arg(long, value_name = "TIME", conflicts_with = "inventory", value_parser = parse_time)]
    as_of: Option<i64>,
    /// Objects that were stored so shortly before the list was made, or after it, are no orphans
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration_ms)]
    grace: i64,
    /// Delete the orphans, after asking
    #[arg(long)]
    delete: bool,
    /// Do not ask
    #[arg(long, requires = "delete")]
    yes: bool,
    /// Delete nothing if more than this share of the objects would go
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    limit_percent: u8,
    /// Delete nothing if more than so many objects would go
    #[arg(long, value_name = "N", requires = "delete")]
    max_deletes: Option<u64>,
    /// Where S3 keeps older versions, or Azure snapshots, of what is deleted: delete those too
    #[arg(long, requires = "delete")]
    all_versions: bool,
    /// Report even if the list is empty or nothing of it is in the bucket
    #[arg(long, conflicts_with = "delete")]
    allow_empty: bool,
    /// Sum up by so many parts of the keys
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=32))]
    depth: u8,
    /// Show so many prefixes, those with the most bytes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    top: u16,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write all orphans to a file: .csv, .txt (only keys), or else a JSON object a line
    #[arg(long, value_name = "FILE")]
    orphans_to: Option<PathBuf>,
    /// Write all missing keys to a file, in the same formats
    #[arg(long, value_name = "FILE")]
    missing_to: Option<PathBuf>,
    /// Where it is written down what was deleted (default: reconcile-deleted-<time>.jsonl, here)
    #[arg(long, value_name = "FILE", requires = "delete")]
    deleted_to: Option<PathBuf>,
    /// Where sorted keys and progress are kept until the end (default: below the user's cache)
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// How far it has come is written down after so many objects
    #[arg(long, hide = true, value_name = "N", default_value_t = 50_000)]
    objects_per_checkpoint: u64,
    /// Begin anew even if the same command was interrupted
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

    fn spelling(&self, bucket: &Bucket) -> Spelling {
        Spelling {
            strip_prefix: self.strip_prefix.clone(),
            is_percent_encoded: self.percent_encoded,
            key_prefix: self.key_prefix.clone(),
            below: bucket.prefix.clone(),
            addresses: bucket.addresses(),
        }
    }
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    if arguments.delete && !arguments.yes && !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "--delete asks before it deletes: run it on a terminal, or add --yes".into(),
        ));
    }
    let source = arguments.source()?;
    if arguments.delete && !source.is_whole() {
        return Err(Failure::Usage(
            "--delete needs a list that is whole: what comes by a pipe may have been cut off. Save it to a file first"
                .into(),
        ));
    }
    refuse_overwriting(&arguments, &source)?;
    let bucket = Bucket::reach(flags, "--bucket", &arguments.bucket).await?;
    if arguments.delete {
        refuse_own_files(&arguments, &bucket, &source)?;
    }
    let clock = Clock::system();
    // What was done by then is written down.
    let stop = cancelled_by_ctrl_c()?;
    let mut progress = Progress::start(arguments.format() == Format::Json);

    let spelling = arguments.spelling(&bucket);
    let source_identity = source.identity();
    let identity = state::identity(&[
        &bucket.identity(),
        // What was found without it was found by an older list.
        match (arguments.delete, arguments.all_versions) {
            (false, _) => "look",
            (true, false) => "delete",
            (true, true) => "delete all versions",
        },
        &source_identity,
        &arguments.listing.as_deref().map(keys::manifest_identity).unwrap_or_default(),
        &format!(
            "{spelling:?} {:?} {} {} {}",
            arguments.as_of, arguments.grace, arguments.depth, arguments.top
        ),
    ]);
    let folder = state::folder(arguments.state.as_deref(), &identity);
    if arguments.state.is_none() {
        state::forget_old(&folder);
    }
    // What a list lacks that may have changed is not deleted for lacking there: it is read again, before anything is.
    let is_read_again = arguments.delete && source.may_change();
    let (mut state, begun) = State::open(folder, &identity, clock.now(), |left| {
        !arguments.fresh && (left.is_compared || !is_read_again)
    })?;
    match begun {
        Begun::GoesOn => {
            progress.say(&format!("goes on with what was interrupted ({})", state.position()));
            if is_read_again {
                let as_of = arguments.as_of;
                let reading = Reading { flags, bucket: &bucket, source: &source, spelling: &spelling, as_of };
                reading.run(&state, &mut progress, &stop).await?;
            }
        }
        Begun::Anew => {
            let prepared =
                prepare(flags, &arguments, &bucket, &source, &mut state, &mut progress, &stop).await;
            if prepared.is_err() {
                state.remove()?;
            }
            prepared?;
        }
    }
    let has_changed = || source.identity() != source_identity;
    let ended = finish(&arguments, &bucket, &has_changed, &mut state, &mut progress, &stop).await;
    match &ended {
        // It can go on from here, if the list can be told to be the same.
        Err(Failed::Interrupted(_)) if source.is_whole() => {}
        // Whoever changes something begins anew, with a new list.
        Ok(()) | Err(_) => state.remove()?,
    }
    ended.map_err(|failed| match failed {
        Failed::Interrupted(Failure::Failed(why)) => Failure::Failed(match source.is_whole() {
            true => format!("{why}: the same command goes on from here"),
            false => format!("{why}: what came by a pipe has to be given again"),
        }),
        Failed::Interrupted(failure) => failure,
        Failed::Refused(message) => {
            if arguments.format() == Format::Json {
                line(json!({ "bucket": bucket.shown, "refused": message }).to_string());
            }
            Failure::Failed(message)
        }
        Failed::Told(message) => Failure::Failed(message),
    })
}

/// All that comes before the comparison, and is done over where it is interrupted.
async fn prepare(
    flags: &Flags,
    arguments: &Arguments,
    bucket: &Bucket,
    source: &Source,
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let spelling = arguments.spelling(bucket);
    let reading = Reading { flags, bucket, source, spelling: &spelling, as_of: arguments.as_of };
    let list = reading.run(state, progress, stop).await?;
    let listing = match &arguments.listing {
        Some(manifest) => Listing::from_inventory(flags, bucket, manifest, state, progress, stop).await?,
        None => Listing::Bucket,
    };
    let times = Times { as_of: list.as_of, grace_ms: arguments.grace };
    let totals = Totals::new(times, usize::from(arguments.depth), usize::from(arguments.top));
    state.begin(list, listing, totals)
}

/// Why a comparison did not come to its end.
enum Failed {
    /// By something that may be over when the same command is run again.
    Interrupted(Failure),
    /// By what was found.
    Refused(String),
    /// The same, and the report has said it.
    Told(String),
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed::Interrupted(failure)
    }
}

async fn finish(
    arguments: &Arguments,
    bucket: &Bucket,
    has_list_changed: &(dyn Fn() -> bool + Sync),
    state: &mut State,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Result<(), Failed> {
    refuse_empty(arguments, bucket, state).map_err(Failed::Refused)?;
    scan::run(bucket, state, progress, stop, arguments.objects_per_checkpoint).await?;
    refuse_disjoint(arguments, bucket, state).map_err(Failed::Refused)?;
    let seen = state.at.totals.kept.objects + state.at.totals.missing;
    if state.at.looked_again.is_none() && seen != state.at.list.entries {
        let all = state.at.list.entries;
        let problem =
            format!("only {seen} of {all} keys were compared: what is kept on disk is damaged; add --fresh");
        return Err(Failed::Refused(problem));
    }
    recheck::run(bucket, state, progress).await?;
    not_stopped(stop)?;
    if let Some(file) = &arguments.orphans_to {
        export::write(file, &state.orphans(), progress)?;
    }
    if let Some(file) = &arguments.missing_to {
        export::write(file, &state.missing(), progress)?;
    }
    not_stopped(stop)?;
    let mut refused = match arguments.delete {
        true => delete::refusal(arguments, bucket, state).await?,
        false => None,
    };
    let mut is_agreed = arguments.delete && refused.is_none() && state.at.totals.orphans.objects > 0 && {
        progress.pause();
        arguments.yes || delete::ask(arguments, bucket, state, stop).await?
    };
    not_stopped(stop)?;
    if is_agreed && has_list_changed() {
        let changed = "the list is another than it was when it was read: it must be whole before that";
        refused = Some(format!("{}: {changed}", delete::so_far(state)));
        is_agreed = false;
    }
    if is_agreed {
        delete::run(arguments, bucket, state, progress, stop).await?;
    }
    progress.end();
    let report = Report::of(bucket, state, arguments.delete, refused.clone());
    report.show(arguments.format());
    let failures = state.at.deletion.as_ref().map_or(0, |deletion| deletion.failed);
    match refused {
        Some(refused) => Err(Failed::Told(refused)),
        None if arguments.delete && !is_agreed && state.at.totals.orphans.objects > 0 => {
            Err(Failed::Told(delete::so_far(state)))
        }
        None if failures > 0 => Err(Failed::Told(format!("{failures} objects could not be deleted"))),
        None => Ok(()),
    }
}

/// Nobody wants the list to be written over with what came of it.
fn refuse_overwriting(arguments: &Arguments, source: &Source) -> Result<(), Failure> {
    let outputs = [&arguments.orphans_to, &arguments.missing_to, &arguments.deleted_to];
    let outputs: Vec<PathBuf> = outputs.into_iter().flatten().map(|path| keys::whole(path)).collect();
    let is_file = |path: &PathBuf| path.metadata().map_or(true, |meta| meta.is_file());
    let is_twice = |path| is_file(path) && outputs.iter().filter(|other| *other == path).count() > 1;
    match outputs.iter().find(|path| source.path().as_ref() == Some(path) || is_twice(path)) {
        Some(path) => Err(Failure::Usage(format!("{} is named twice", path.display()))),
        None => Ok(()),
    }
}

/// In a folder everything is an object: the database that is asked, too.
fn refuse_own_files(arguments: &Arguments, bucket: &Bucket, source: &Source) -> Result<(), Failure> {
    let Some(folder) = bucket.folder() else { return Ok(()) };
    let listing = arguments.listing.as_deref().and_then(keys::local_manifest).map(keys::whole);
    let state = arguments.state.as_deref().map(keys::whole);
    match [source.path(), listing, state].into_iter().flatten().find(|path| path.starts_with(&folder)) {
        Some(path) => Err(Failure::Usage(format!(
            "--delete: {} lies in the folder that is looked at, and would go as an orphan itself. Keep it elsewhere",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// With no keys at all everything would be an orphan, and most likely the list is wrong.
fn refuse_empty(arguments: &Arguments, bucket: &Bucket, state: &State) -> Result<(), String> {
    let list = &state.at.list;
    if list.entries > 0 || arguments.allow_empty {
        return Ok(());
    }
    if list.unstripped > 0 {
        let (count, before) = (list.unstripped, &arguments.strip_prefix);
        return Err(format!("none of the {count} keys in the list begins with `{before}` (--strip-prefix)"));
    }
    Err(match list.outside {
        0 => "the list of keys is empty: everything would be an orphan. If that is so, see it with --allow-empty".into(),
        outside => format!(
            "none of the {outside} keys in the list lies below `{}`: are they relative to it (--key-prefix {}), or do \
             they begin with something else (--strip-prefix)? If all is well, see it with --allow-empty",
            bucket.prefix, bucket.prefix
        ),
    })
}

/// The same where not one key is in the bucket: they are written in another way there, or of another bucket.
fn refuse_disjoint(arguments: &Arguments, bucket: &Bucket, state: &State) -> Result<(), String> {
    let totals = &state.at.totals;
    if totals.kept.objects > 0 || totals.listed.objects == 0 || arguments.allow_empty {
        return Ok(());
    }
    let hint = state.hint(&bucket.addresses());
    let hint = hint.map_or_else(|| "is it the right bucket?".to_owned(), |hint| format!("{hint}?"));
    let key = state.first_key().unwrap_or_default();
    let object = state.at.strangers.first().cloned().unwrap_or_default();
    Err(format!(
        "not one of {} keys is among the {} objects (the first key is {key:?}, the first object {object:?}): {hint} If \
         all is well, see it with --allow-empty",
        state.at.list.entries, totals.listed.objects
    ))
}

/// A moment, as RFC 3339 writes it.
fn parse_time(text: &str) -> Result<i64, String> {
    let parsed = chrono::DateTime::parse_from_rfc3339(text);
    parsed.map(|at| at.timestamp_millis()).map_err(|_| "not a time like 2026-01-31T12:00:00Z".to_owned())
}

fn not_stopped(stop: &CancellationToken) -> Result<(), Failure> {
    match stop.is_cancelled() {
        true => Err(Failure::Failed("interrupted".into())),
        false => Ok(()),
    }
}
