//! The command line: one module per subcommand. Exit code 0 done, 1 failed, 2 wrong usage or settings.

mod config;
mod demo;
mod doctor;
mod extract_text;
mod interrupt;
mod key;
mod migrate;
mod output;
mod put;
mod quota;
mod reconcile;
mod remote;
mod serve;
mod sweep;
mod tail;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, CatalogOptions};

use crate::config::{BadSetting, Flags, Settings};
use crate::core::catalog_error_text;

/// Direct uploads to object storage, with quotas, processing and cleanup.
#[derive(Parser)]
#[command(name = "wharfinger", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const GLOBAL_OPTIONS: &str = "Global options";

#[derive(Args)]
struct Global {
    /// The settings file [default: ./wharfinger.toml if it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL_OPTIONS)]
    config: Option<PathBuf>,
    /// The folder of the embedded database, local blobs and secrets (WHARFINGER_DATA_DIR)
    #[arg(long, global = true, value_name = "DIR", help_heading = GLOBAL_OPTIONS)]
    data_dir: Option<String>,
    /// The database (WHARFINGER_DATABASE_URL)
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL_OPTIONS)]
    database_url: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server: API, dashboard and all background work
    Serve(serve::Arguments),
    /// Run a temporary server with two minutes of traffic and faults, to watch on the dashboard
    Demo(demo::Arguments),
    /// Upload files and folders as one batch
    Put(put::Arguments),
    /// Print an access token, signed with the server's key
    Token(token::Arguments),
    /// Create, list and revoke service keys: long-lived tokens for programs
    Key(key::Arguments),
    /// Show or set a tenant's limit, or correct the counters
    Quota(quota::Arguments),
    /// Run one sweep now and print its result
    Sweep(sweep::Arguments),
    /// Follow a running server: print deleted objects, runs of sweeps and notifications as they happen
    Tail(tail::Arguments),
    /// Compare any bucket with any list of keys: report orphans and missing objects
    Reconcile(Box<reconcile::Arguments>),
    /// Create or update the database schema
    Migrate(migrate::Arguments),
    /// Check each configured backend: print what is wrong and how to fix it
    Doctor(doctor::Arguments),
    /// Print the effective settings, with secrets masked
    Config(config::Arguments),
    /// The child process in which the server extracts the text of one file
    #[command(hide = true)]
    ExtractText,
}

/// Why a command failed.
enum Failure {
    /// Wrong usage or settings: exit code 2.
    Usage(String),
    /// Exit code 1.
    Failed(String),
}

impl From<BadSetting> for Failure {
    fn from(error: BadSetting) -> Self {
        Failure::Usage(error.to_string())
    }
}

/// Any error that ends the command with exit code 1.
fn failed(error: impl std::error::Error) -> Failure {
    Failure::Failed(error.to_string())
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Before anything else: the child limits its own memory and time first.
    if let Command::ExtractText = cli.command {
        return extract_text::run();
    }
    // Files that the program creates are private, also in a folder that is open to others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    wharfinger_calls::tls::install_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("wharfinger: cannot start the async runtime: {error}");
            return ExitCode::from(1);
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("wharfinger: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            eprintln!("wharfinger: {message}");
            ExitCode::from(1)
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let flags = cli.global.flags();
    match cli.command {
        Command::Serve(arguments) => serve::run(flags, arguments).await,
        Command::Demo(arguments) => demo::run(flags, arguments).await,
        Command::Put(arguments) => put::run(flags, arguments).await,
        Command::Token(arguments) => token::run(&flags, arguments),
        Command::Key(arguments) => key::run(&flags, arguments).await,
        Command::Quota(arguments) => quota::run(&flags, arguments).await,
        Command::Sweep(arguments) => sweep::run(&flags, arguments).await,
        Command::Tail(arguments) => tail::run(flags, arguments).await,
        Command::Reconcile(arguments) => reconcile::run(&flags, *arguments).await,
        Command::Migrate(arguments) => migrate::run(&flags, arguments).await,
        Command::Doctor(arguments) => doctor::run(&flags, arguments).await,
        Command::Config(arguments) => config::run(&flags, arguments),
        Command::ExtractText => Err(Failure::Usage("only the server runs this command".into())),
    }
}

impl Global {
    fn flags(&self) -> Flags {
        let mut overrides = Vec::new();
        if let Some(dir) = &self.data_dir {
            overrides.push(("WHARFINGER_DATA_DIR", dir.clone()));
        }
        if let Some(url) = &self.database_url {
            overrides.push(("WHARFINGER_DATABASE_URL", url.clone()));
        }
        Flags { config: self.config.clone(), overrides }
    }
}

/// For commands that need the catalog and no store.
fn catalog_options(settings: &Settings) -> CatalogOptions {
    CatalogOptions {
        url: settings.database.clone(),
        schema: settings.database_schema.clone(),
        faults: Faults::none(),
        storage_type: "disk",
        cleanup_max_attempts: settings.cleanup_max_attempts,
        job_max_attempts: settings.job_max_attempts,
        connections_max: 4,
        with_redis_quota: settings.quota_redis.is_some(),
        targets: settings.outbox_targets(),
    }
}

fn catalog_failed(error: CatalogError) -> Failure {
    Failure::Failed(catalog_error_text(&error))
}

/// Opens the catalog and updates its schema. Returns also the migration steps that were applied.
async fn migrated_catalog(settings: &Settings) -> Result<(Catalog, Vec<i64>), Failure> {
    // So that the user sees why the command waits for the database.
    crate::telemetry::log_to_stderr("warn", &settings.instance_id);
    std::fs::create_dir_all(&settings.data_dir).map_err(failed)?;
    let catalog = Catalog::open(catalog_options(settings)).await.map_err(catalog_failed)?;
    let applied = catalog.migrate(crate::clock::Clock::system().now()).await.map_err(catalog_failed)?;
    Ok((catalog, applied))
}
