//! `cargo xtask ci`: all that has to pass before a change is merged.

use std::process::Stdio;

use super::parts::Parts;
use super::{Outcome, cargo, test};

/// The checks before the tests, the cheapest first.
const CHECKS: [&str; 3] = [
    "fmt --all --check",
    "clippy --workspace --all-targets --locked -- -D warnings",
    "doc --workspace --no-deps --locked",
];

pub fn run() -> Outcome {
    let parts = Parts::default();
    let outcome = run_parts(&parts);
    parts.print();
    outcome
}

fn run_parts(parts: &Parts) -> Outcome {
    for check in CHECKS {
        parts.run(&format!("cargo {check}"), || passes(check))?;
    }
    if is_installed("deny") {
        parts.run("cargo deny check", || passes("deny check"))?;
    } else {
        println!("\n== cargo deny check: skipped, cargo-deny is not installed");
    }
    test::run_parts(parts, &test::Request::default())
}

fn passes(arguments: &str) -> Outcome {
    // Only rustdoc reads the variable.
    let status = cargo(arguments).env("RUSTDOCFLAGS", "-D warnings").status()?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {arguments}` failed: {status}").into()) }
}

fn is_installed(subcommand: &str) -> bool {
    let version = cargo(subcommand).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
