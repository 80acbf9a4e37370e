//! The `wharfinger` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    wharfinger::cli::main()
}
