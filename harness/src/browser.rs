//! A real browser for the tests of pages: Debian's Chromium, driven by Playwright from node, with axe-core to find what
//! would keep people out.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, node_packages, packages};

/// Playwright's own browsers come from places that are out of reach; with this one it works as well.
const CHROMIUM: &str = "chromium";
const PLAYWRIGHT_VERSION: &str = "1.65";
const AXE_VERSION: &str = "4.14";

/// Node with the script, which finds in its environment where `PLAYWRIGHT` and `AXE` lie and which `CHROMIUM` to start.
///
/// # Panics
///
/// Panics where there is no browser to be had: tests without it must fail, not pass unrun.
pub fn script(script: &Path) -> Command {
    prepared(script).unwrap_or_else(|error| panic!("no browser: {error}"))
}

/// Installs what is missing, for tests that have no time for it later.
///
/// # Panics
///
/// Panics where there is no browser to be had.
pub fn ready() {
    drop(script(Path::new("")));
}

fn prepared(script: &Path) -> Result<Command, Error> {
    packages::require(CHROMIUM, &["chromium"])?;
    let playwright = node_packages::install("playwright-core", PLAYWRIGHT_VERSION)?;
    let axe = node_packages::install("axe-core", AXE_VERSION)?;
    let mut node = Command::new("node");
    node.arg(script).env("PLAYWRIGHT", playwright).env("AXE", axe).env("CHROMIUM", chromium()?);
    Ok(node)
}

/// Playwright looks for no program by its name.
fn chromium() -> Result<PathBuf, Error> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join(CHROMIUM))
        .find(|program| program.is_file())
        .ok_or_else(|| Error::new(format!("{CHROMIUM} runs, but is in no folder of PATH")))
}
