//! A server's programs as packages bring them, in the system or unpacked beside it: found, and
//! called with the libraries they came with and without what the environment says of other servers.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::packages::{self, UNPACK_VARIABLE};

const SYSTEM: &str = "/";

/// The programs that are installed, or else those of the packages, unpacked before or now. `under`
/// looks for them below a root, and finds all that are needed or none.
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
    under(&root).ok_or_else(|| Error::new(format!("{} holds no complete {name}; remove it", root.display())))
}

/// Where programs of the root find their libraries; the system's own need not be told.
pub(crate) fn library_path(root: &Path) -> Option<OsString> {
    if root == Path::new(SYSTEM) { None } else { packages::library_path(root) }
}

/// The program, free of the variables whose names begin so: people reach servers of theirs with them.
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
