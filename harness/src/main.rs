//! `cargo xtask`: the commands of this workspace that cargo alone does not have. The main one runs the tests with their
//! servers.

mod commands;

use std::process::ExitCode;

use commands::{ci, memory_folder, prove, services, test};

const USAGE: &str = "\
usage: cargo xtask <command>

  test [-p PACKAGE] [--test NAME] [--times] [--all] [-- arguments of the tests]
                    compiles the tests while the servers start, and runs them. --times lists the slowest.
                    --all also runs the tests of the harness if it has not changed.
                    For example: cargo xtask test -p wharfinger --test it -- crash::sqlite
  prove [--minutes N] [--seed N] [--only NAME]
                    runs the long random tests in turn for 10 minutes, each time with another seed
  ci                checks formatting, lints, documentation and dependencies, and runs the tests
  services [names]  starts the servers (postgres, pgvector, s3, azure, redis, rabbitmq, clamd), or only
                    those named, and stops them at Ctrl-C or at the end of input";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if matches!(words.first(), Some(&("test" | "prove" | "ci"))) {
        match memory_folder::rerun() {
            Ok(None) => {}
            Ok(Some(code)) => return code,
            Err(error) => {
                eprintln!("xtask: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let outcome = match words.as_slice() {
        ["test", words @ ..] => test::run(words),
        ["prove", words @ ..] => prove::run(words),
        ["ci"] => ci::run(),
        ["services", names @ ..] => services::run(names),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
