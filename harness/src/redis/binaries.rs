//! Finds Redis's programs: those installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::packages::{self, UNPACK_VARIABLE};

/// Both named, because apt leaves out what is installed, and a machine may have the client alone.
const PACKAGES: [&str; 2] = ["redis-server", "redis-tools"];

const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

/// The folder of one Redis, wherever its root is.
pub(crate) struct Binaries {
    folder: PathBuf,
    library_path: Option<OsString>,
}

impl Binaries {
    pub(crate) fn find_or_unpack() -> Result<Self, Error> {
        if std::env::var_os(UNPACK_VARIABLE).is_none()
            && let Some(installed) = Self::under(Path::new("/"))
        {
            return Ok(installed);
        }
        let root = packages::unpack(&PACKAGES).map_err(|error| {
            Error::new(format!("Redis is not installed and could not be unpacked.\n{error}"))
        })?;
        Self::under(&root)
            .ok_or_else(|| Error::new(format!("{} holds no complete Redis; remove it", root.display())))
    }

    fn under(root: &Path) -> Option<Self> {
        let folder = root.join("usr/bin");
        if !PROGRAMS.iter().all(|program| folder.join(program).is_file()) {
            return None;
        }
        let library_path = if root == Path::new("/") { None } else { packages::library_path(root) };
        Some(Self { folder, library_path })
    }

    /// The program, free of the variables with which people reach servers of theirs.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        command.env_remove("REDISCLI_AUTH").env_remove("REDISCLI_RCFILE");
        if let Some(path) = &self.library_path {
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }
}
