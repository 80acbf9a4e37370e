//! Finds Ceph's programs and plug-ins: those installed, unpacked before, or unpacked now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::packages::{self, UNPACK_VARIABLE};

/// All named, because apt leaves out what is installed, and a machine may have the clients alone.
const PACKAGES: [&str; 5] = ["radosgw", "ceph-mon", "ceph-osd", "ceph-base", "ceph-common"];

const PROGRAMS: [&str; 5] = ["monmaptool", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin"];

/// The folders of one Ceph, wherever its root is.
pub(crate) struct Binaries {
    programs: PathBuf,
    libraries: PathBuf,
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
            Error::new(format!("Ceph is not installed and could not be unpacked.\n{error}"))
        })?;
        Self::under(&root)
            .ok_or_else(|| Error::new(format!("{} holds no complete Ceph; remove it", root.display())))
    }

    fn under(root: &Path) -> Option<Self> {
        let programs = root.join("usr/bin");
        if !PROGRAMS.iter().all(|program| programs.join(program).is_file()) {
            return None;
        }
        // The folder is named for the machine's architecture.
        let libraries = root
            .join("usr/lib")
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|folder| folder.join("rados-classes").is_dir())?;
        let library_path = if root == Path::new("/") { None } else { packages::library_path(root) };
        // Ceph's programs name this folder of theirs by its installed path.
        let library_path = library_path.and_then(|path| {
            let own = std::iter::once(libraries.join("ceph"));
            std::env::join_paths(own.chain(std::env::split_paths(&path))).ok()
        });
        Some(Self { programs, libraries, library_path })
    }

    /// Where the plug-ins are (`ceph/`) and the classes that OSDs load (`rados-classes/`).
    pub(crate) fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// The program, free of the CEPH_* variables with which people reach clusters of theirs.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CEPH_") {
                command.env_remove(name);
            }
        }
        if let Some(path) = &self.library_path {
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }
}
