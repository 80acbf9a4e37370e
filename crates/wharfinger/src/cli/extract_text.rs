//! `wharfinger extract-text`: the child process in which the server reads an untrusted file.

use std::process::ExitCode;

use wharfinger_text::child;

pub fn run() -> ExitCode {
    child::main()
}
