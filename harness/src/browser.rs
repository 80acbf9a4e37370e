//! A real browser for the tests of the web page: Debian's Chromium, driven by Playwright in node, with axe-core for
//! accessibility.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, node_packages, packages};

/// Debian's browser, because Playwright downloads its own from hosts that may be out of reach.
const CHROMIUM: &str = "chromium";
const PLAYWRIGHT_VERSION: &str = "1.65";
const AXE_VERSION: &str = "4.14";

/// A command that runs the script in node. The environment has the paths `PLAYWRIGHT`, `AXE` and `CHROMIUM`.
///
/// # Panics
///
/// Panics if there is no browser. A test without its browser must fail.
pub fn script(script: &Path) -> Command {
    command(script).unwrap_or_else(|error| panic!("cannot start a browser: {error}"))
}

/// Installs missing packages before the tests, because an installation can take longer than a test may.
///
/// # Panics
///
/// Panics if there is no browser.
pub fn ready() {
    drop(script(Path::new("")));
}

fn command(script: &Path) -> Result<Command, Error> {
    packages::require(CHROMIUM, &["chromium"])?;
    let playwright = node_packages::install("playwright-core", PLAYWRIGHT_VERSION)?;
    let axe = node_packages::install("axe-core", AXE_VERSION)?;
    let mut node = Command::new("node");
    node.arg(script).env("PLAYWRIGHT", playwright).env("AXE", axe).env("CHROMIUM", chromium_path()?);
    Ok(node)
}

/// Playwright needs the full path of the program.
fn chromium_path() -> Result<PathBuf, Error> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join(CHROMIUM))
        .find(|program| program.is_file())
        .ok_or_else(|| Error::new(format!("{CHROMIUM} is in no folder of PATH")))
}
