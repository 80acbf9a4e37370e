//! Packages of Node.js, installed by the ordinary npm into our cache folder, beside what is
//! unpacked there: nothing of the system or of the user's projects is changed.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use crate::packages::{COMPLETE, at, cache, create_readable, lock, require};
use crate::{Error, command};

/// Installs the package, of the newest version that begins so, and returns its folder. What was
/// installed before is not fetched again.
pub(crate) fn install(package: &str, version: &str) -> Result<PathBuf, Error> {
    for program in ["node", "npm"] {
        require(program, &["nodejs", "npm"])?;
    }
    let cache = cache()?;
    let folder = cache.join(format!("npm-{package}-{version}"));
    let installed = folder.join("node_modules").join(package);

    // Test binaries run side by side, and each may find the package missing.
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
            // Packages' own scripts would fetch from places that are out of reach here.
            .arg("--ignore-scripts")
            .arg("--prefix")
            .arg(&folder)
            .arg(format!("{package}@{version}"))
            .current_dir(&folder),
    )?;
    File::create(folder.join(COMPLETE)).map_err(at("marking as complete", &folder))?;
    Ok(installed)
}
