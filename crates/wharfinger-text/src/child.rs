//! Extraction in a process of its own, which holds itself to limits before it opens the file: what a
//! format's code cannot be stopped from (endless loops, endless memory, a stack that ends) ends there.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rlimit::Resource;
use serde::{Deserialize, Serialize};

use crate::extract::{ExtractError, ExtractLimits, Extracted, extract};
use crate::sandbox::{self, Sandbox};

/// What the program calls this, for nobody but itself.
pub const SUBCOMMAND: &str = "extract-text";

/// A path, a name and a few numbers.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Numbers of signals, which are the same on every Linux that we run on.
const SIGABRT: i32 = 6;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// Signals that come from outside, and say nothing of the file: hang-up, interrupt, quit, kill, terminate.
const SIGNALS_OF_OTHERS: [i32; 5] = [1, 2, 3, 9, 15];

/// What the child is to do: a line of JSON on its standard input, where no list of processes shows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub input: PathBuf,
    pub file_name: String,
    pub limits: ExtractLimits,
}

impl Request {
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a path that we made is UTF-8")
    }
}

/// The body of the subcommand: text to standard output, lines of JSON to standard error.
pub fn main() -> ExitCode {
    let mut request = Vec::new();
    let read = io::stdin().take(REQUEST_BYTES_MAX).read_to_end(&mut request);
    let request: Request = match read.map(|_| serde_json::from_slice(&request)) {
        Ok(Ok(request)) => request,
        Ok(Err(_)) | Err(_) => {
            _ = writeln!(io::stderr(), "expected a request as JSON on standard input");
            return ExitCode::from(2);
        }
    };
    let outcome = extract_within(&request);
    let report = serde_json::to_string(&outcome).expect("strings and numbers are always JSON");
    // Where nobody reads it, the code has to do.
    _ = writeln!(io::stderr(), "{report}");
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn extract_within(request: &Request) -> Result<Extracted, ExtractError> {
    let Request { input, file_name, limits } = request;
    let mut file = File::open(input).map_err(|error| ExtractError::Unavailable(error.to_string()))?;
    // After the limits nothing can be opened, which Landlock needs; after seccomp no limit can be set.
    let unlimited = |error: io::Error| ExtractError::Unavailable(format!("setting limits: {error}"));
    let memory = memory_in_use().map_err(unlimited)?;
    let sandbox = sandbox::restrict_self(|| limit_self(limits, memory)).map_err(unlimited)?;
    _ = writeln!(io::stderr(), "{}", serde_json::to_string(&sandbox).unwrap_or_default());
    extract(&mut file, file_name, limits, &mut io::stdout().lock())
}

/// What the kernel enforced, as the child reported it.
pub fn sandbox(stderr: &[u8]) -> Option<Sandbox> {
    String::from_utf8_lossy(stderr).lines().find_map(|line| serde_json::from_str(line).ok())
}

/// What the program takes just by being there is not the file's doing.
fn limit_self(limits: &ExtractLimits, memory_in_use: u64) -> io::Result<()> {
    set(Resource::AS, memory_in_use.saturating_add(limits.memory_bytes_max))?;
    // The soft limit is a signal that names itself; the hard one, a second later, is for whoever ignores it.
    let seconds = limits.time_ms_max.div_ceil(1000).max(1);
    let hard = Resource::CPU.get()?.1;
    Resource::CPU.set(seconds.min(hard), seconds.saturating_add(1).min(hard))?;
    set(Resource::CORE, 0)?;
    // No further process or thread, no further open file, and no more written than there may be text.
    set(Resource::NPROC, 0)?;
    set(Resource::NOFILE, 0)?;
    set(Resource::FSIZE, limits.text_bytes_max)
}

/// Lowers a limit; one that is lower already stays.
fn set(resource: Resource, value: u64) -> io::Result<()> {
    let value = value.min(resource.get()?.1);
    resource.set(value, value)
}

/// The address space of this process, in bytes.
fn memory_in_use() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    let kilobytes: Option<u64> = size.and_then(|size| size.trim().parse().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))
}

/// The child of `program`, with nothing of our environment. It waits for a [`Request`] on its standard input.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What is to be made of how the child ended, and of what it said last.
pub fn outcome(status: ExitStatus, stderr: &[u8]) -> Result<Extracted, ExtractError> {
    let said = String::from_utf8_lossy(stderr);
    if let Some(signal) = status.signal() {
        return Err(killed(signal, &said));
    }
    let report = said.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    match report {
        Some(Ok(extracted)) if status.success() => Ok(extracted),
        Some(Err(error)) if !status.success() => Err(error),
        _ => Err(ExtractError::Crashed(format!(
            "the process ended with {status} and no report: {}",
            last_words(&said)
        ))),
    }
}

fn killed(signal: i32, said: &str) -> ExtractError {
    match signal {
        SIGXCPU => ExtractError::TooLarge("it takes more processor time than it may".to_owned()),
        SIGXFSZ => ExtractError::TooLarge("it has more text than it may".to_owned()),
        SIGABRT if said.contains("memory allocation of") => {
            ExtractError::TooLarge("it takes more memory than it may".to_owned())
        }
        SIGABRT if said.contains("overflowed its stack") => {
            ExtractError::Crashed("nested too deep for the stack".to_owned())
        }
        // Shut down with us, or chosen by the kernel when the machine was out of memory: another time
        // it may go well.
        signal if SIGNALS_OF_OTHERS.contains(&signal) => {
            ExtractError::Unavailable(format!("the process was ended by signal {signal}"))
        }
        signal => {
            ExtractError::Crashed(format!("the process was ended by signal {signal}: {}", last_words(said)))
        }
    }
}

/// The end of what a program said, where it says what went wrong.
fn last_words(said: &str) -> String {
    const CHARS_MAX: usize = 200;
    let said = said.trim().replace('\n', " ");
    let skipped = said.chars().count().saturating_sub(CHARS_MAX);
    said.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_signal(signal: i32, stderr: &str) -> Result<Extracted, ExtractError> {
        outcome(ExitStatus::from_raw(signal), stderr.as_bytes())
    }

    fn by_code(code: i32, stderr: &str) -> Result<Extracted, ExtractError> {
        outcome(ExitStatus::from_raw(code << 8), stderr.as_bytes())
    }

    #[test]
    fn the_report_counts_if_the_code_agrees() {
        let good = r#"{"Ok":{"kind":"pdf","bytes":3,"pages":1,"cut":false}}"#;
        assert_eq!(
            by_code(0, good),
            Ok(Extracted { kind: "pdf".to_owned(), bytes: 3, pages: 1, cut: false })
        );
        let bad = "a warning\n{\"Err\":{\"corrupted\":\"so\"}}\n";
        assert_eq!(by_code(1, bad), Err(ExtractError::Corrupted("so".to_owned())));
        for (code, report) in [(1, good), (0, bad), (0, ""), (101, "nonsense")] {
            assert!(matches!(by_code(code, report), Err(ExtractError::Crashed(_))), "{code} {report}");
        }
    }

    #[test]
    fn a_signal_is_told_by_whose_doing_it_is() {
        assert!(matches!(by_signal(SIGXCPU, ""), Err(ExtractError::TooLarge(_))));
        let memory = "memory allocation of 4096 bytes failed";
        assert!(matches!(by_signal(SIGABRT, memory), Err(ExtractError::TooLarge(_))));
        assert!(matches!(by_signal(SIGABRT, ""), Err(ExtractError::Crashed(_))));
        assert!(matches!(by_signal(11, ""), Err(ExtractError::Crashed(_))));
        assert!(matches!(by_signal(9, ""), Err(ExtractError::Unavailable(_))));
        assert!(matches!(by_signal(15, ""), Err(ExtractError::Unavailable(_))));
    }
}
