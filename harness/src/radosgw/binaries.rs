//! Finds Ceph's programs and plug-ins: installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, installation};

/// All are named, because apt skips installed packages, and a machine may have only the clients.
const PACKAGES: [&str; 5] = ["radosgw", "ceph-mon", "ceph-osd", "ceph-base", "ceph-common"];

const PROGRAMS: [&str; 5] = ["monmaptool", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin"];

/// The folders of Ceph below one root.
pub(crate) struct Binaries {
    programs: PathBuf,
    libraries: PathBuf,
    library_path: Option<OsString>,
}

impl Binaries {
    pub(crate) fn find_or_unpack() -> Result<Self, Error> {
        installation::find_or_unpack("Ceph", &PACKAGES, Self::under)
    }

    fn under(root: &Path) -> Option<Self> {
        let programs = root.join("usr/bin");
        if !PROGRAMS.iter().all(|program| programs.join(program).is_file()) {
            return None;
        }
        // The name of the folder is the machine's architecture.
        let libraries = root
            .join("usr/lib")
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|folder| folder.join("rados-classes").is_dir())?;
        // Ceph's programs search this folder only at its installed path.
        let library_path = installation::library_path(root).and_then(|path| {
            let own = std::iter::once(libraries.join("ceph"));
            std::env::join_paths(own.chain(std::env::split_paths(&path))).ok()
        });
        Some(Self { programs, libraries, library_path })
    }

    /// The folder with plug-ins (`ceph/`) and with classes for OSDs (`rados-classes/`).
    pub(crate) fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// The program without the CEPH_* variables, which developers set for their own clusters.
    pub(crate) fn command(&self, program: &str) -> Command {
        installation::command(&self.programs.join(program), self.library_path.as_deref(), &["CEPH_"])
    }
}
