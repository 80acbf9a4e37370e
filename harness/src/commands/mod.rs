//! The commands of `cargo xtask`.

pub mod ci;
pub mod memory_folder;
mod packages;
mod parts;
pub mod prove;
mod servers;
pub mod services;
pub mod test;
mod test_binary;

use std::error::Error;
use std::process::Command;

pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The cargo that runs this program, with arguments separated by spaces.
fn cargo(arguments: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments.split_whitespace());
    command
}
