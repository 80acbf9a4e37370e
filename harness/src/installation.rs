//! The programs of a server: installed in the system, or unpacked from packages into the cache. They run with their own
//! libraries, and without environment variables that point to other servers.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::packages::{self, UNPACK_VARIABLE};

const SYSTEM: &str = "/";

/// The installed programs, or those of the packages, unpacked before or now. `under` searches below a root and finds
/// either all needed programs or none.
pub(crate) fn find_or_unpack<B>(
    name: &str,
    packages: &[&str],
    under: impl Fn(&Path) -> Option<B>,
) -> Result<B, Error> {
    if std::env::var_os(UNPACK_VARIABLE).is_none()
        && let Some(installed) = under(Path::new(SYSTEM))
    {
        return Ok(installed);
    }
    let root = packages::unpack(packages).map_err(|error| {
        Error::new(format!("{name} is not installed and could not be unpacked.\n{error}"))
    })?;
    under(&root).ok_or_else(|| Error::new(format!("{} is not a complete {name}. Remove it", root.display())))
}

/// `LD_LIBRARY_PATH` for programs of this root. The system's own programs do not need it.
pub(crate) fn library_path(root: &Path) -> Option<OsString> {
    if root == Path::new(SYSTEM) { None } else { packages::library_path(root) }
}

/// A command for the program. Removes environment variables with these prefixes, because developers set them for other
/// servers.
pub(crate) fn command(program: &Path, library_path: Option<&OsStr>, foreign: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if foreign.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}
