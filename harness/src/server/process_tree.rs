//! Signals to processes and their children, through `sh` and `/proc`, because the system calls
//! would need a dependency or unsafe code.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::command;

/// Sends the signal; a process that is not there is an error.
pub(crate) fn signal(name: &str, pids: &[u32]) -> Result<(), Error> {
    command::run(&mut kill(name, pids)).map(drop)
}

/// Sends the signal to those of the processes that have not ended meanwhile.
pub(crate) fn signal_whoever_is_left(name: &str, pids: &[u32]) -> Result<(), Error> {
    if pids.is_empty() {
        return Ok(());
    }
    match command::run(&mut kill(name, pids)) {
        Err(error) if pids.iter().all(|pid| alive(*pid)) => Err(error),
        _ => Ok(()),
    }
}

/// The shell's own `kill` is there even where the package with the program is not.
fn kill(name: &str, pids: &[u32]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"kill -s "$@""#, "kill", name]).args(pids.iter().map(u32::to_string));
    command
}

/// Children, their children and so on.
pub(crate) fn descendants(ancestor: u32) -> Result<Vec<u32>, Error> {
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .map_err(Error::while_doing("listing /proc"))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect();
    let mut family = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(processes.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family.remove(0);
    Ok(family)
}

/// A zombie counts as dead: it holds nothing any more, and not every container's init reaps.
pub(crate) fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != "Z" && stat.state != "X")
}

/// Whether any of its threads has not been stopped. One that has ended does not run, and one that the kernel holds does
/// nothing before it stops.
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
    // The name before it stands in brackets and may itself hold brackets and blanks.
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    Some(Stat { state: fields.next()?.to_owned(), parent: fields.next()?.parse().ok()? })
}
