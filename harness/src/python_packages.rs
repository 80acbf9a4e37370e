//! Python packages, installed by pip into our cache folder. Nothing changes in the system or in the user's
//! environments.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::packages::{COMPLETE, at, cache, create_readable, lock, require};
use crate::{Error, command};

/// The path of the interpreter. `python3` may be a script that searches for it at every call, which takes longer than a
/// request.
pub(crate) fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let path = require("python3", &["python3"]).and_then(|()| {
            command::run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]))
        });
        path.map_or_else(|_| "python3".to_owned(), |path| path.trim().to_owned())
    })
}

/// Installs the packages and returns the folder for `PYTHONPATH`. Does nothing if they are already installed.
pub(crate) fn install(name: &str, packages: &[&str]) -> Result<PathBuf, Error> {
    if command::run(Command::new(python()).args(["-m", "pip", "--version"])).is_err() {
        require("pip3", &["python3-pip"])?;
    }
    let cache = cache()?;
    let folder = cache.join(format!("pip-{name}"));

    // Test binaries run in parallel, and several may find that the packages are missing.
    let _lock = lock(&cache)?;
    let wanted = packages.join("\n");
    if fs::read_to_string(folder.join(COMPLETE)).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    eprintln!("installing {} into {}", packages.join(", "), folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at("removing", &folder))?;
    }
    create_readable(&folder)?;
    command::run(
        Command::new(python())
            .args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"])
            .arg("--target")
            .arg(&folder)
            .args(packages),
    )?;
    fs::write(folder.join(COMPLETE), wanted).map_err(at("marking as complete", &folder))?;
    Ok(folder)
}
