//! The command line: one file per subcommand. Exit code 0 done, 1 failed, 2 wrong usage.

mod config;
mod demo;
mod doctor;
mod extract_text;
mod interrupt;
mod migrate;
mod output;
mod put;
mod quota;
mod reconcile;
mod serve;
mod sweep;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, CatalogOptions};

use crate::config::{BadSetting, Flags, Settings};
use crate::core::named;

/// Answers for every uploaded byte.
#[derive(Parser)]
#[command(name = "wharfinger", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Global {
    /// Settings file (default: ./wharfinger.toml if it is there)
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the embedded database, blobs and secrets lie (WHARFINGER_DATA_DIR)
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// The catalog (WHARFINGER_DATABASE_URL)
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API and do all background work
    Serve(serve::Arguments),
    /// Two minutes of traffic and faults against a server of its own, to look at
    Demo(demo::Arguments),
    /// Upload files or folders
    Put(put::Arguments),
    /// Mint a token with the server's key
    Token(token::Arguments),
    /// Show, set or reconcile a tenant's quota
    Quota(quota::Arguments),
    /// Run one sweep now and print what it found and did
    Sweep(sweep::Arguments),
    /// Compare any bucket with any list of keys: what nobody knows of, what is missing
    Reconcile(Box<reconcile::Arguments>),
    /// Bring the catalog's schema up to date
    Migrate(migrate::Arguments),
    /// Check every backend and say what is wrong and how to mend it
    Doctor(doctor::Arguments),
    /// Print the effective settings, secrets masked
    Config(config::Arguments),
    /// What the server starts to get the text out of one file
    #[command(hide = true)]
    ExtractText,
}

/// What ends a command with something else than success.
enum Failure {
    Usage(String),
    Failed(String),
}

impl From<BadSetting> for Failure {
    fn from(error: BadSetting) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl<E: std::error::Error> From<Wrapped<E>> for Failure {
    fn from(error: Wrapped<E>) -> Self {
        Failure::Failed(error.0.to_string())
    }
}

/// Marks an error as one that ends the command with 1.
struct Wrapped<E>(E);

fn failed<E: std::error::Error>(error: E) -> Failure {
    Wrapped(error).into()
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // It limits what it may use before it does anything.
    if let Command::ExtractText = cli.command {
        return extract_text::run();
    }
    // Files that the program creates are private, whatever the mode of the folder.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    wharfinger_calls::tls::install_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("wharfinger: no runtime could be started: {error}");
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
        Command::Quota(arguments) => quota::run(&flags, arguments).await,
        Command::Sweep(arguments) => sweep::run(&flags, arguments).await,
        Command::Reconcile(arguments) => reconcile::run(&flags, *arguments).await,
        Command::Migrate(arguments) => migrate::run(&flags, arguments).await,
        Command::Doctor(arguments) => doctor::run(&flags, arguments).await,
        Command::Config(arguments) => config::run(&flags, arguments),
        Command::ExtractText => Err(Failure::Usage("this is for the server itself".into())),
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

/// For the catalog alone.
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
    Failure::Failed(named(&error))
}

/// The catalog with its schema up to date; answers the steps that were applied.
async fn migrated_catalog(settings: &Settings) -> Result<(Catalog, Vec<i64>), Failure> {
    // Whoever has to wait for the database is told what for.
    crate::telemetry::log_to_stderr("warn");
    std::fs::create_dir_all(&settings.data_dir).map_err(failed)?;
    let catalog = Catalog::open(catalog_options(settings)).await.map_err(catalog_failed)?;
    let applied = catalog.migrate(crate::clock::Clock::system().now()).await.map_err(catalog_failed)?;
    Ok((catalog, applied))
}
