//! `cargo xtask`: the commands of this workspace that need more than cargo itself, above all the
//! tests with their servers.

use std::error::Error;
use std::io;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

use harness::postgres::{ADDRESS_VARIABLE, Postgres};

const USAGE: &str = "\
usage: cargo xtask <command>

  test [-- args]   starts the servers and runs `cargo test --workspace --locked [args]`
  ci               formatting, lints, documentation, dependencies, then the tests
  services         starts the servers and keeps them until Ctrl-C or the end of input";

/// The checks before the tests, the cheapest first.
const CHECKS: [&str; 3] = [
    "fmt --all --check",
    "clippy --workspace --all-targets --locked -- -D warnings",
    "doc --workspace --no-deps --locked",
];

type Outcome = Result<ExitStatus, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test", "--", extra @ ..] | ["test", extra @ ..] => test(extra),
        ["ci"] => ci(),
        ["services"] => services(),
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
        .env(ADDRESS_VARIABLE, postgres.admin_url())
        .status()?;
    Ok(status)
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
fn services() -> Outcome {
    let postgres = Postgres::start()?;
    announce(&postgres)?;
    println!("WHARFINGER_DATABASE_URL={}", postgres.create_database());
    println!("{ADDRESS_VARIABLE}={}", postgres.admin_url());
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
