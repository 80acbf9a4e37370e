//! Finds Redis's programs: installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, installation};

/// Both are named, because apt skips installed packages, and a machine may have only the client.
const PACKAGES: [&str; 2] = ["redis-server", "redis-tools"];

const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

/// The folder of Redis below one root.
pub(crate) struct Binaries {
    folder: PathBuf,
    library_path: Option<OsString>,
}

impl Binaries {
    pub(crate) fn find_or_unpack() -> Result<Self, Error> {
        installation::find_or_unpack("Redis", &PACKAGES, Self::under)
    }

    fn under(root: &Path) -> Option<Self> {
        let folder = root.join("usr/bin");
        if !PROGRAMS.iter().all(|program| folder.join(program).is_file()) {
            return None;
        }
        Some(Self { folder, library_path: installation::library_path(root) })
    }

    /// The program without the variables that developers set for their own servers.
    pub(crate) fn command(&self, program: &str) -> Command {
        let foreign = ["REDISCLI_AUTH", "REDISCLI_RCFILE"];
        installation::command(&self.folder.join(program), self.library_path.as_deref(), &foreign)
    }
}
