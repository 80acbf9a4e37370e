//! Runs short-lived programs (psql, apt-get, kill). An error contains the command and its standard error.

use std::process::{Command, Output, Stdio};

use crate::Error;

/// Runs the command to its end and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    command.stdin(Stdio::null());
    let output = command.output().map_err(Error::while_doing(format!("`{}`", line(command))))?;
    successful(command, output)
}

/// The standard output of a command that has ended, or the reason why it failed.
pub(crate) fn successful(command: &Command, output: Output) -> Result<String, Error> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(format!("`{}` failed ({}):\n{}", line(command), output.status, last_lines(&stderr, 15))))
}

/// The last `count` lines, which usually contain the error.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The command line, without the environment that `{:?}` adds.
fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
