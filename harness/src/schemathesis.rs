//! Schemathesis from PyPI: generates valid and invalid calls of an API from its OpenAPI document.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::packages::at;
use crate::{Error, python_packages};

const PACKAGES: [&str; 1] = ["schemathesis==4.*"];
const HOOKS: &str = include_str!("schemathesis_hooks.py");
const HOOKS_MODULE: &str = "wharfinger_hooks";

/// The command `schemathesis run`. The caller adds its arguments.
///
/// # Panics
///
/// Panics if it cannot be installed. A test without it must fail.
pub fn run() -> Command {
    let modules = install().unwrap_or_else(|error| panic!("cannot install schemathesis: {error}"));
    let mut command = Command::new(python_packages::python());
    command
        .args(["-m", "schemathesis.cli", "run", "--no-color"])
        .env("PYTHONPATH", modules)
        .env("SCHEMATHESIS_HOOKS", HOOKS_MODULE);
    command
}

/// Installs it if it is missing, and returns the folder of its modules.
pub fn install() -> Result<PathBuf, Error> {
    let modules = python_packages::install("schemathesis", &PACKAGES)?;
    let hooks = modules.join(format!("{HOOKS_MODULE}.py"));
    fs::write(&hooks, HOOKS).map_err(at("writing", &hooks))?;
    Ok(modules)
}
