//! Extraction in a child process. The child sets its own resource limits, because the code of a format can loop, use
//! all memory or overflow its stack.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use rlimit::Resource;
use serde::{Deserialize, Serialize};

use crate::extract::{ExtractError, ExtractLimits, Extracted, extract};
use crate::sandbox::{self, Sandbox};

/// The name of the program's internal subcommand.
pub const SUBCOMMAND: &str = "extract-text";

/// A path, a name and a few numbers.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Signal numbers. They are the same on every supported Linux platform.
const SIGABRT: i32 = 6;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// Signals from outside the child: hang-up, interrupt, quit, kill, terminate. They are not caused by the file.
const EXTERNAL_SIGNALS: [i32; 5] = [1, 2, 3, 9, 15];

/// The task of the child: a line of JSON on its standard input. Process lists show arguments but not standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub input: PathBuf,
    pub file_name: String,
    pub limits: ExtractLimits,
}

impl Request {
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the program creates the path, and it is UTF-8")
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
    // If standard error is closed, the exit code still reports the outcome.
    _ = writeln!(io::stderr(), "{report}");
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn extract_within(request: &Request) -> Result<Extracted, ExtractError> {
    let Request { input, file_name, limits } = request;
    let mut file = File::open(input).map_err(|error| ExtractError::Unavailable(error.to_string()))?;
    // Landlock opens files, so it comes before the limits. Seccomp forbids setting limits, so it comes after them.
    let cannot_limit = |error: io::Error| {
        ExtractError::Unavailable(format!("cannot limit the resources of the extraction process: {error}"))
    };
    let memory = memory_in_use().map_err(cannot_limit)?;
    let sandbox = sandbox::restrict_self(|| limit_self(limits, memory)).map_err(cannot_limit)?;
    _ = writeln!(io::stderr(), "{}", serde_json::to_string(&sandbox).unwrap_or_default());
    extract(&mut file, file_name, limits, &mut io::stdout().lock())
}

/// The sandbox that the child reported.
pub fn sandbox(stderr: &[u8]) -> Option<Sandbox> {
    String::from_utf8_lossy(stderr).lines().find_map(|line| serde_json::from_str(line).ok())
}

/// `memory_in_use` is added to the limit, because the file did not cause it.
fn limit_self(limits: &ExtractLimits, memory_in_use: u64) -> io::Result<()> {
    set(Resource::AS, memory_in_use.saturating_add(limits.memory_bytes_max))?;
    // The soft limit sends SIGXCPU, which shows the reason. The hard limit follows a second later, if that is ignored.
    let seconds = limits.time_ms_max.div_ceil(1000).max(1);
    let hard = Resource::CPU.get()?.1;
    Resource::CPU.set(seconds.min(hard), seconds.saturating_add(1).min(hard))?;
    set(Resource::CORE, 0)?;
    // No new process or thread, no new open file, and no output beyond the text limit.
    set(Resource::NPROC, 0)?;
    set(Resource::NOFILE, 0)?;
    set(Resource::FSIZE, limits.text_bytes_max)
}

/// Lowers a limit. A limit that is already lower stays.
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

/// The child of `program`, with an empty environment. It waits for a [`Request`] on its standard input.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Derives the outcome from the child's exit status and its last report.
pub fn outcome(status: ExitStatus, stderr: &[u8]) -> Result<Extracted, ExtractError> {
    let output = String::from_utf8_lossy(stderr);
    if let Some(signal) = status.signal() {
        return Err(killed(signal, &output));
    }
    let report = output.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    match report {
        Some(Ok(extracted)) if status.success() => Ok(extracted),
        Some(Err(error)) if !status.success() => Err(error),
        _ => Err(ExtractError::Crashed(format!(
            "the process ended with {status} and no report: {}",
            output_end(&output)
        ))),
    }
}

fn killed(signal: i32, output: &str) -> ExtractError {
    match signal {
        SIGXCPU => ExtractError::TooLarge("its text takes more processor time than the limit".to_owned()),
        SIGXFSZ => ExtractError::TooLarge("it has more text than the limit".to_owned()),
        SIGABRT if output.contains("memory allocation of") => {
            ExtractError::TooLarge("its text takes more memory than the limit".to_owned())
        }
        SIGABRT if output.contains("overflowed its stack") => {
            ExtractError::Crashed("its content is nested too deeply".to_owned())
        }
        // The program shut down, or the kernel killed the child because the machine was out of memory. A retry can
        // succeed.
        signal if EXTERNAL_SIGNALS.contains(&signal) => {
            ExtractError::Unavailable(format!("signal {signal} ended the process"))
        }
        signal => ExtractError::Crashed(format!("signal {signal} ended the process: {}", output_end(output))),
    }
}

/// The end of the output, where a program reports its failure.
fn output_end(output: &str) -> String {
    const CHARS_MAX: usize = 200;
    let output = output.trim().replace('\n', " ");
    let skipped = output.chars().count().saturating_sub(CHARS_MAX);
    output.chars().skip(skipped).collect()
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
    fn a_report_is_accepted_only_if_the_exit_code_matches() {
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
    fn a_signal_maps_to_an_error_by_its_cause() {
        assert!(matches!(by_signal(SIGXCPU, ""), Err(ExtractError::TooLarge(_))));
        let memory = "memory allocation of 4096 bytes failed";
        assert!(matches!(by_signal(SIGABRT, memory), Err(ExtractError::TooLarge(_))));
        assert!(matches!(by_signal(SIGABRT, ""), Err(ExtractError::Crashed(_))));
        assert!(matches!(by_signal(11, ""), Err(ExtractError::Crashed(_))));
        assert!(matches!(by_signal(9, ""), Err(ExtractError::Unavailable(_))));
        assert!(matches!(by_signal(15, ""), Err(ExtractError::Unavailable(_))));
    }
}
