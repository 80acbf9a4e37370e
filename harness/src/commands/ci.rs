//! `cargo xtask ci`: everything that must pass before a change is merged.

use std::path::Path;
use std::process::Command;

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
        parts.run(&format!("cargo {check}"), || run_cargo(check))?;
    }
    test::run_parts(parts, &test::Request::default())?;
    match harness::deny::find_or_build()? {
        Some(deny) => parts.run("cargo deny check", || check_dependencies(&deny)),
        None => {
            println!("cargo deny was skipped: it is not installed and cannot be built here");
            Ok(())
        }
    }
}

fn check_dependencies(deny: &Path) -> Outcome {
    let check = |names: &[&str]| Command::new(deny).args(["--all-features", "check"]).args(names).output();
    let offline = check(&["licenses", "bans", "sources"])?;
    if !offline.status.success() {
        return Err(format!("cargo deny: {}", String::from_utf8_lossy(&offline.stderr)).into());
    }
    let advisories = check(&["advisories"])?;
    let stderr = String::from_utf8_lossy(&advisories.stderr);
    match advisories.status.success() {
        true => Ok(()),
        false if stderr.contains("failed to fetch advisory database") => {
            println!("advisories were not checked: their database cannot be fetched here");
            Ok(())
        }
        false => Err(format!("cargo deny: {stderr}").into()),
    }
}

fn run_cargo(arguments: &str) -> Outcome {
    // Only rustdoc reads the variable.
    let status = cargo(arguments).env("RUSTDOCFLAGS", "-D warnings").status()?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {arguments}` failed: {status}").into()) }
}
