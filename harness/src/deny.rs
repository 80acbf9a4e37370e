//! cargo-deny: installed, or built once into our cache folder, which takes about a minute.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Error;
use crate::packages::cache;

const NAME: &str = "cargo-deny";

/// None: it is not installed and cannot be built.
pub fn find_or_build() -> Result<Option<PathBuf>, Error> {
    let is_installed =
        Command::new(NAME).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if is_installed {
        return Ok(Some(NAME.into()));
    }
    let root = cache()?.join(NAME);
    let built = root.join("bin").join(NAME);
    // cargo locks the folder itself. Our own lock would also block the unpacking of servers.
    if !built.exists() {
        eprintln!("building {NAME} into {}", root.display());
        let install = Command::new("cargo")
            .args(["install", NAME, "--locked", "--debug", "--quiet", "--root"])
            .arg(&root)
            .status();
        if !install.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
    }
    Ok(Some(built))
}
