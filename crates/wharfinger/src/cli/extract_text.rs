//! `wharfinger extract-text`: the process in which the server reads a file that it does not trust.

use std::process::ExitCode;

use wharfinger_text::child;

pub fn run() -> ExitCode {
    child::main()
}
