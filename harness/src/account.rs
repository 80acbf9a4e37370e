//! The account of this process, and the account that a server runs as. PostgreSQL refuses to run as root, and
//! containers usually run as root.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// The uid and gid without rights, on every distribution.
const UNPRIVILEGED: u32 = 65534;

/// The account that a server runs as if this process is root.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// None: this process is not root, and the server runs as the same user.
    pub(crate) fn instead_of_root(preferred: &str) -> Result<Option<Self>, Error> {
        if effective_uid()? != 0 {
            return Ok(None);
        }
        let unprivileged = Self { uid: UNPRIVILEGED, gid: UNPRIVILEGED };
        let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Ok(Some(find(&accounts, preferred).unwrap_or(unprivileged)))
    }

    pub(crate) fn give_folder(self, path: &Path) -> Result<(), Error> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).map_err(Error::while_doing(format!(
            "chown of {} to uid {}",
            path.display(),
            self.uid
        )))
    }

    pub(crate) fn apply_to(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

/// Reads `/proc`, because the system call needs libc or unsafe code.
pub(crate) fn effective_uid() -> Result<u32, Error> {
    let status =
        fs::read_to_string("/proc/self/status").map_err(Error::while_doing("reading /proc/self/status"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|uids| uids.split_whitespace().nth(1))
        .and_then(|uid| uid.parse().ok())
        .ok_or_else(|| Error::new("/proc/self/status has no effective uid"))
}

fn find(accounts: &str, name: &str) -> Option<Account> {
    let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(str::parse);
    Some(Account { uid: ids.next()?.ok()?, gid: ids.next()?.ok()? })
}
