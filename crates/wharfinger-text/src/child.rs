//! Extraction in a process of its own, which holds itself to limits before it opens the file: what a
//! format's code cannot be stopped from (endless loops, endless memory, a stack that ends) ends there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rlimit::Resource;

use crate::extract::{ExtractError, ExtractLimits, Extracted, extract};

/// What the program calls this, for nobody but itself.
pub const SUBCOMMAND: &str = "extract-text";

/// Numbers of signals, which are the same on every Linux that we run on.
const SIGABRT: i32 = 6;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// Signals that come from outside, and say nothing of the file: hang-up, interrupt, quit, kill, terminate.
const SIGNALS_OF_OTHERS: [i32; 5] = [1, 2, 3, 9, 15];

/// The body of the subcommand: text to standard output, one line of JSON to standard error.
pub fn main(input: &Path, file_name: &str, limits: &ExtractLimits) -> ExitCode {
    let outcome = extract_within(input, file_name, limits);
    let report = serde_json::to_string(&outcome).expect("strings and numbers are always JSON");
    // Where nobody reads it, the code has to do.
    _ = writeln!(io::stderr(), "{report}");
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn extract_within(input: &Path, file_name: &str, limits: &ExtractLimits) -> Result<Extracted, ExtractError> {
    let mut file = File::open(input).map_err(|error| ExtractError::Unavailable(error.to_string()))?;
    limit_self(limits).map_err(|error| ExtractError::Unavailable(format!("setting limits: {error}")))?;
    extract(&mut file, file_name, limits, &mut io::stdout().lock())
}

fn limit_self(limits: &ExtractLimits) -> io::Result<()> {
    // What the program takes just by being there is not the file's doing.
    let memory = memory_in_use()?.saturating_add(limits.memory_bytes_max);
    set(Resource::AS, memory)?;
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

/// The child of `program`, with nothing of our environment, its output piped.
pub fn command(program: &Path, input: &Path, file_name: &str, limits: &ExtractLimits) -> Command {
    let limits = serde_json::to_string(limits).expect("numbers are always JSON");
    let mut command = Command::new(program);
    command
        // A file may be called `--help`; no argument can hold a NUL.
        .args([SUBCOMMAND, "--"])
        .arg(input)
        .args([file_name.replace('\0', ""), limits])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What is to be made of how the child ended, and of what it said last.
pub fn verdict(status: ExitStatus, stderr: &[u8]) -> Result<Extracted, ExtractError> {
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
        verdict(ExitStatus::from_raw(signal), stderr.as_bytes())
    }

    fn by_code(code: i32, stderr: &str) -> Result<Extracted, ExtractError> {
        verdict(ExitStatus::from_raw(code << 8), stderr.as_bytes())
    }

    #[test]
    fn the_report_counts_if_the_code_agrees() {
        let good = r#"{"Ok":{"kind":"pdf","bytes":3,"pages":1}}"#;
        assert_eq!(by_code(0, good), Ok(Extracted { kind: "pdf".to_owned(), bytes: 3, pages: 1 }));
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
