//! A folder in memory for all temporary files of the tests. Databases and stores call fsync thousands of times, and on
//! a disk the suite takes almost twice as long (bench/suite.md). Tests about disks mount their own file systems.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::Outcome;

const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "wharfinger-test-";
/// A full run needs about 5 GiB, mostly for databases of PostgreSQL.
const FREE_KIB_MIN: u64 = 10 << 20;
const TMPDIR: &str = "TMPDIR";

/// Removed on drop, with its contents.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs this command as a child process with its temporary files in memory. None: there is too little memory, or
/// `TMPDIR` is set. The caller then runs the command itself.
pub fn rerun() -> Outcome<Option<ExitCode>> {
    if std::env::var_os(TMPDIR).is_some() {
        return Ok(None);
    }
    remove_leftovers();
    if !has_enough_memory() {
        println!(
            "temporary files are on disk: {MEMORY} or the free memory has less than {} GiB",
            FREE_KIB_MIN >> 20
        );
        return Ok(None);
    }
    let folder = Folder(Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id())));
    fs::create_dir(&folder.0)?;
    // Some servers run under another account, because they refuse to run as root.
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o1777))?;
    let status = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(TMPDIR, &folder.0)
        .status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}

fn has_enough_memory() -> bool {
    let available = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = available
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    memory.is_some_and(|memory| memory >= FREE_KIB_MIN)
        && free_kib(MEMORY).is_some_and(|free| free >= FREE_KIB_MIN)
}

/// From `df`.
fn free_kib(folder: &str) -> Option<u64> {
    let output = Command::new("df").args(["--output=avail", "-k", folder]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.lines().nth(1)?.trim().parse().ok()
}

/// Removes the folders of runs that were killed.
fn remove_leftovers() {
    for entry in fs::read_dir(MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
