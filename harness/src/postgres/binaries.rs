//! Finds PostgreSQL's programs: named by the environment, installed, unpacked before, or unpacked now. Programs with
//! pgvector come from a Python package.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Options;
use crate::packages::{self, UNPACK_VARIABLE};
use crate::{Error, installation, python_packages};

/// The variable with the folder of the programs. It has priority over installed ones.
const FOLDER_VARIABLE: &str = "WHARFINGER_TEST_PG_BIN";

/// Chosen if it exists, so that machines with several versions use the same one.
const PREFERRED: &str = "postgresql-15";

/// A Python package that contains PostgreSQL with pgvector. Not every distribution packages pgvector.
const WITH_PGVECTOR: &str = "pgserver==0.1.4";
const WITH_PGVECTOR_FOLDER: &str = "pgserver/pginstall/bin";

/// A folder with PostgreSQL's programs, and the path of their libraries if these are not installed.
pub(crate) struct Binaries {
    folder: PathBuf,
    library_path: Option<OsString>,
}

impl Binaries {
    pub(crate) fn of(options: Options) -> Result<Self, Error> {
        if options.pgvector { Self::install_with_pgvector() } else { Self::find_or_unpack() }
    }

    /// These programs find their libraries without `LD_LIBRARY_PATH`.
    fn install_with_pgvector() -> Result<Self, Error> {
        let folder = python_packages::install("pgvector", &[WITH_PGVECTOR])?.join(WITH_PGVECTOR_FOLDER);
        match is_complete(&folder) {
            true => Ok(Self { folder, library_path: None }),
            false => Err(Error::new(format!("{} is not a complete PostgreSQL. Remove it", folder.display()))),
        }
    }

    fn find_or_unpack() -> Result<Self, Error> {
        if let Some(named) = std::env::var_os(FOLDER_VARIABLE) {
            let named = PathBuf::from(named);
            return if is_complete(&named) {
                Ok(Self::at(named))
            } else {
                Err(Error::new(format!(
                    "{FOLDER_VARIABLE} is {}, which does not contain initdb, postgres, psql and pg_isready",
                    named.display()
                )))
            };
        }
        if std::env::var_os(UNPACK_VARIABLE).is_none()
            && let Some(folder) = newest_under(Path::new("/"))
        {
            return Ok(Self::at(folder));
        }
        if let Some(folder) = packages::unpacked()?.iter().find_map(|r| newest_under(r)) {
            return Ok(Self::at(folder));
        }
        Self::unpack().map_err(|error| {
            Error::new(format!(
                "PostgreSQL is not installed and could not be unpacked. Install it, or set \
                 {FOLDER_VARIABLE} to the folder with initdb, postgres and psql.\n{error}"
            ))
        })
    }

    fn unpack() -> Result<Self, Error> {
        let server = newest_package(&packages::known("postgresql-")?)?;
        // Named too, because apt skips installed packages, and the client may be installed.
        let client = server.replace("postgresql-", "postgresql-client-");
        let root = packages::unpack(&[&server, &client])?;
        newest_under(&root).map(Self::at).ok_or_else(|| {
            Error::new(format!("{server} was unpacked to {} and contains no server", root.display()))
        })
    }

    fn at(folder: PathBuf) -> Self {
        // <root>/usr/lib/postgresql/<version>/bin
        let library_path = folder
            .ancestors()
            .nth(5)
            .filter(|root| newest_under(root).is_some())
            .and_then(installation::library_path);
        Self { folder, library_path }
    }

    /// The program without the PG* variables, which developers set for their own databases.
    pub(crate) fn command(&self, program: &str) -> Command {
        installation::command(&self.folder.join(program), self.library_path.as_deref(), &["PG"])
    }
}

/// Checks all programs, because a machine may have only the client in this folder.
fn is_complete(folder: &Path) -> bool {
    ["initdb", "postgres", "psql", "pg_isready"].iter().all(|program| folder.join(program).is_file())
}

fn newest_under(root: &Path) -> Option<PathBuf> {
    root.join("usr/lib/postgresql")
        .read_dir()
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| is_complete(folder))
        .max()
        .map(|(_, folder)| folder)
}

fn newest_package(known: &[String]) -> Result<String, Error> {
    if known.iter().any(|name| name == PREFERRED) {
        return Ok(PREFERRED.to_owned());
    }
    known
        .iter()
        .filter_map(|name| name.strip_prefix("postgresql-")?.parse::<u32>().ok())
        .max()
        .map(|version| format!("postgresql-{version}"))
        .ok_or_else(|| Error::new("apt knows no package postgresql-<version>"))
}

#[cfg(test)]
mod tests {
    use super::newest_package;

    #[test]
    fn the_preferred_package_is_chosen_before_the_newest() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let both = names(&["postgresql-17", "postgresql-15", "postgresql-client-15"]);
        assert_eq!(newest_package(&both).expect("15"), "postgresql-15");
        let newer = names(&["postgresql-9", "postgresql-17", "postgresql-17-cron"]);
        assert_eq!(newest_package(&newer).expect("17"), "postgresql-17");
        assert!(newest_package(&names(&["postgresql-common"])).is_err());
    }
}
