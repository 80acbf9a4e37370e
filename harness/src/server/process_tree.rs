//! Signals to processes and their child processes, by `sh` and `/proc`, because the system calls need a dependency or
//! unsafe code.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::command;

/// Sends the signal. A missing process is an error.
pub(crate) fn signal(name: &str, pids: &[u32]) -> Result<(), Error> {
    command::run(&mut kill(name, pids)).map(drop)
}

/// Sends the signal to the processes that still run.
pub(crate) fn signal_remaining(name: &str, pids: &[u32]) -> Result<(), Error> {
    if pids.is_empty() {
        return Ok(());
    }
    match command::run(&mut kill(name, pids)) {
        Err(error) if pids.iter().all(|pid| alive(*pid)) => Err(error),
        _ => Ok(()),
    }
}

/// The shell's builtin, because the program `kill` may not be installed.
fn kill(name: &str, pids: &[u32]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"kill -s "$@""#, "kill", name]).args(pids.iter().map(u32::to_string));
    command
}

/// All child processes, also indirect ones.
pub(crate) fn descendants(ancestor: u32) -> Result<Vec<u32>, Error> {
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .map_err(Error::while_doing("listing /proc"))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect();
    let mut pids = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = pids.get(next).copied() {
        pids.extend(processes.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    pids.remove(0);
    Ok(pids)
}

/// A zombie counts as dead: it has no resources, and the init of some containers never reaps it.
pub(crate) fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != "Z" && stat.state != "X")
}

/// Whether any of its threads still runs. A thread in an uninterruptible call of the kernel does nothing before it
/// stops.
pub(crate) fn runs(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| stat_at(&thread.path().join("stat")))
        .any(|stat| !["T", "t", "D", "Z", "X"].contains(&&*stat.state))
}

struct Stat {
    state: String,
    parent: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    stat_at(Path::new(&format!("/proc/{pid}/stat")))
}

fn stat_at(path: &Path) -> Option<Stat> {
    let line = fs::read_to_string(path).ok()?;
    // The process name is in brackets, and may contain brackets and spaces.
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    Some(Stat { state: fields.next()?.to_owned(), parent: fields.next()?.parse().ok()? })
}
