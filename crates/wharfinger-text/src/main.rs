//! The child process by itself: what the program runs as its hidden subcommand, for tests and by hand.

use std::path::Path;
use std::process::ExitCode;

use wharfinger_text::child;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [child::SUBCOMMAND, "--", input, file_name, limits] = arguments.as_slice()
        && let Ok(limits) = serde_json::from_str(limits)
    {
        return child::main(Path::new(input), file_name, &limits);
    }
    eprintln!("usage: extract-text {} -- <file> <its name> <limits as JSON>", child::SUBCOMMAND);
    ExitCode::from(2)
}
