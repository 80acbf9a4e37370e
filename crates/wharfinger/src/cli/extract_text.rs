//! `wharfinger extract-text`: the process in which the server reads a file that it does not trust.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use wharfinger_text::{ExtractLimits, child};

#[derive(Args)]
pub struct Arguments {
    input: PathBuf,
    file_name: String,
    /// JSON
    limits: String,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    match serde_json::from_str::<ExtractLimits>(&arguments.limits) {
        Ok(limits) => child::main(&arguments.input, &arguments.file_name, &limits),
        Err(error) => {
            eprintln!("wharfinger: the limits cannot be read: {error}");
            ExitCode::from(2)
        }
    }
}
