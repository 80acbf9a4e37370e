//! npm packages, installed by npm into our cache folder. Nothing changes in the system or in the user's projects.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use crate::packages::{COMPLETE, at, cache, create_readable, lock, require};
use crate::{Error, command};

/// Installs the newest version with this prefix and returns its folder. Does nothing if it is already installed.
pub(crate) fn install(package: &str, version: &str) -> Result<PathBuf, Error> {
    for program in ["node", "npm"] {
        require(program, &["nodejs", "npm"])?;
    }
    let cache = cache()?;
    let folder = cache.join(format!("npm-{package}-{version}"));
    let installed = folder.join("node_modules").join(package);

    // Test binaries run in parallel, and several may find that the package is missing.
    let _lock = lock(&cache)?;
    if folder.join(COMPLETE).exists() {
        return Ok(installed);
    }
    eprintln!("installing {package} {version} into {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at("removing", &folder))?;
    }
    create_readable(&folder)?;
    command::run(
        Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"])
            // Install scripts of packages download from hosts that may be out of reach.
            .arg("--ignore-scripts")
            .arg("--prefix")
            .arg(&folder)
            .arg(format!("{package}@{version}"))
            .current_dir(&folder),
    )?;
    File::create(folder.join(COMPLETE)).map_err(at("marking as complete", &folder))?;
    Ok(installed)
}
