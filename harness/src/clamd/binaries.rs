//! Finds clamd: installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, installation};

const PACKAGES: [&str; 1] = ["clamav-daemon"];

pub(crate) struct Binaries {
    clamd: PathBuf,
    library_path: Option<OsString>,
}

impl Binaries {
    pub(crate) fn find_or_unpack() -> Result<Self, Error> {
        installation::find_or_unpack("clamd", &PACKAGES, Self::under)
    }

    fn under(root: &Path) -> Option<Self> {
        let clamd = root.join("usr/sbin/clamd");
        let library_path = installation::library_path(root);
        clamd.is_file().then_some(Self { clamd, library_path })
    }

    /// The daemon with this configuration file.
    pub(crate) fn clamd(&self, settings: &Path) -> Command {
        let mut command = installation::command(&self.clamd, self.library_path.as_deref(), &[]);
        command.arg("--foreground").arg("--config-file").arg(settings);
        command
    }
}
