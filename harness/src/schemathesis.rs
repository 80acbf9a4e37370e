//! Schemathesis from PyPI: calls an API in every way that its OpenAPI document describes, and in many that it does not.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::packages::at;
use crate::{Error, python_packages};

const PACKAGES: [&str; 1] = ["schemathesis==4.*"];
const HOOKS: &str = include_str!("schemathesis_hooks.py");
const HOOKS_MODULE: &str = "wharfinger_hooks";

/// `schemathesis run`, to which its arguments are to be added.
///
/// # Panics
///
/// Panics where it cannot be installed: a test without it must fail, not pass unrun.
pub fn run() -> Command {
    let modules = install().unwrap_or_else(|error| panic!("cannot install schemathesis: {error}"));
    let mut command = Command::new(python_packages::python());
    command
        .args(["-m", "schemathesis.cli", "run", "--no-color"])
        .env("PYTHONPATH", modules)
        .env("SCHEMATHESIS_HOOKS", HOOKS_MODULE);
    command
}

/// Installs what is missing.
pub fn install() -> Result<PathBuf, Error> {
    let modules = python_packages::install("schemathesis", &PACKAGES)?;
    let hooks = modules.join(format!("{HOOKS_MODULE}.py"));
    fs::write(&hooks, HOOKS).map_err(at("writing", &hooks))?;
    Ok(modules)
}
