//! `cargo xtask`: the commands of this workspace that need more than cargo itself, above all the
//! tests with their servers.

use std::error::Error;
use std::io;
use std::num::NonZero;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

use harness::azurite::{self, Azurite};
use harness::clamd::{self, Clamd};
use harness::postgres::{self, Postgres};
use harness::rabbitmq::{self, RabbitMq};
use harness::radosgw::{self, Radosgw};
use harness::redis::{self, Redis};

const USAGE: &str = "\
usage: cargo xtask <command>

  test [-- args]   starts the servers and runs `cargo test --workspace --locked [args]`
  ci               formatting, lints, documentation, dependencies, then the tests
  services [names] starts the servers (postgres, pgvector, s3, azure, redis, rabbitmq, clamd), or
                   those named, and keeps them until Ctrl-C or the end of input";

/// The checks before the tests, the cheapest first.
const CHECKS: [&str; 3] = [
    "fmt --all --check",
    "clippy --workspace --all-targets --locked -- -D warnings",
    "doc --workspace --no-deps --locked",
];

/// Heeded by all test binaries.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// What `services` can be asked for.
const SERVICES: [&str; 7] = ["postgres", "pgvector", "s3", "azure", "redis", "rabbitmq", "clamd"];

type Outcome = Result<ExitStatus, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test", "--", extra @ ..] | ["test", extra @ ..] => test(extra),
        ["ci"] => ci(),
        ["services", names @ ..] => services(names),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(status) => exit_code(status),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test(extra: &[&str]) -> Outcome {
    let postgres = Postgres::from_environment()?;
    announce(&postgres)?;
    let status = cargo("test --workspace --locked")
        .args(extra)
        .env(postgres::ADDRESS_VARIABLE, postgres.admin_url())
        .env(TEST_THREADS, test_threads())
        .status()?;
    Ok(status)
}

/// One more test at a time than there are cores, unless somebody said otherwise: most wait for servers and disks for half
/// of their time.
fn test_threads() -> String {
    let one_more = || 1 + std::thread::available_parallelism().map_or(1, NonZero::get);
    std::env::var(TEST_THREADS).unwrap_or_else(|_| one_more().to_string())
}

fn ci() -> Outcome {
    for check in CHECKS {
        // Only rustdoc heeds the variable.
        let mut command = cargo(check);
        command.env("RUSTDOCFLAGS", "-D warnings");
        let status = step(check, || Ok(command.status()?))?;
        if !status.success() {
            return Ok(status);
        }
    }
    if is_installed("deny") {
        let status = step("deny check", || Ok(cargo("deny check").status()?))?;
        if !status.success() {
            return Ok(status);
        }
    } else {
        println!("\n== cargo deny check: left out, cargo-deny is not installed");
    }
    step("test --workspace --locked", || test(&[]))
}

/// Runs one step between a headline and a line with its outcome and duration.
fn step(name: &str, run: impl FnOnce() -> Outcome) -> Outcome {
    println!("\n== cargo {name}");
    let begin = Instant::now();
    let outcome = run();
    let seconds = begin.elapsed().as_secs_f64();
    match &outcome {
        Ok(status) if status.success() => println!("-- passed in {seconds:.1} s"),
        Ok(status) => println!("-- FAILED in {seconds:.1} s: cargo {name} ({status})"),
        Err(_) => println!("-- FAILED in {seconds:.1} s: cargo {name} could not run"),
    }
    outcome
}

/// An interrupt ends this process outright; the servers' watchdogs then clear up after it.
fn services(names: &[&str]) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| !SERVICES.contains(name)) {
        return Err(format!("there is no `{unknown}` among {}", SERVICES.join(", ")).into());
    }
    let is_wanted = |name| names.is_empty() || names.contains(&name);
    let postgres = is_wanted("postgres").then(Postgres::start).transpose()?;
    if let Some(postgres) = &postgres {
        announce(postgres)?;
        println!("WHARFINGER_DATABASE_URL={}", postgres.create_database());
        println!("{}={}", postgres::ADDRESS_VARIABLE, postgres.admin_url());
    }
    let with_pgvector = postgres::Options { pgvector: true, ..postgres::Options::default() };
    let pgvector = is_wanted("pgvector").then(|| Postgres::start_with(with_pgvector)).transpose()?;
    if let Some(pgvector) = &pgvector {
        announce(pgvector)?;
        println!("{}={}", postgres::PGVECTOR_ADDRESS_VARIABLE, pgvector.admin_url());
    }
    let s3 = is_wanted("s3").then(Radosgw::start).transpose()?;
    if let Some(s3) = &s3 {
        println!("S3 (radosgw) on port {}, with an empty bucket", s3.port());
        println!("WHARFINGER_BLOB_URL=s3://{}", s3.create_bucket());
        println!("AWS_ENDPOINT_URL={}", s3.endpoint());
        println!("AWS_ACCESS_KEY_ID={}", s3.access_key());
        println!("AWS_SECRET_ACCESS_KEY={}", s3.secret_key());
        println!("AWS_REGION={}", s3.region());
        println!("{}={}", radosgw::ADDRESS_VARIABLE, s3.url());
    }
    let azure = is_wanted("azure").then(Azurite::start).transpose()?;
    if let Some(azure) = &azure {
        println!("Azure (Azurite) on port {}, with an empty container", azure.port());
        println!("WHARFINGER_BLOB_URL=az://{}", azure.create_container());
        println!("AZURE_STORAGE_ENDPOINT={}", azure.endpoint());
        println!("AZURE_STORAGE_ACCOUNT_NAME={}", azure.account());
        println!("AZURE_STORAGE_ACCOUNT_KEY={}", azure.key());
        println!("{}={}", azurite::ADDRESS_VARIABLE, azure.url());
    }
    let redis = is_wanted("redis").then(Redis::start).transpose()?;
    if let Some(redis) = &redis {
        println!("Redis on port {}", redis.port());
        println!("WHARFINGER_QUOTA_URL={}", redis.url());
        println!("{}={}", redis::ADDRESS_VARIABLE, redis.url());
    }
    let rabbitmq = is_wanted("rabbitmq").then(RabbitMq::start).transpose()?;
    if let Some(rabbitmq) = &rabbitmq {
        println!("RabbitMQ on port {}", rabbitmq.port());
        println!("WHARFINGER_BROKER_URL={}", rabbitmq.url());
        println!("{}={}", rabbitmq::ADDRESS_VARIABLE, rabbitmq.sharing_url());
    }
    let clamd = is_wanted("clamd").then(|| Clamd::start(clamd::Options::default())).transpose()?;
    if let Some(clamd) = &clamd {
        println!("clamd on port {}, with test signatures alone", clamd.port());
        println!("CLAMD_URL={}", clamd.tcp_url());
        println!("{}={}", clamd::ADDRESS_VARIABLE, clamd.sharing_url());
    }
    println!("Ctrl-C ends them.");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(ExitStatus::default())
}

fn announce(postgres: &Postgres) -> Result<(), Box<dyn Error>> {
    let version = postgres.version()?;
    println!("PostgreSQL {version} on port {}", postgres.port());
    Ok(())
}

/// The cargo that runs us, with words that have no blanks in them.
fn cargo(words: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words.split_whitespace());
    command
}

fn is_installed(subcommand: &str) -> bool {
    cargo(subcommand)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Ended by a signal, a process has no code of its own.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
