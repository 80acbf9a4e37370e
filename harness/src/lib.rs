//! The real servers the tests talk to: found or unpacked, started on private ports, broken on
//! purpose, and ended for certain, whatever becomes of the process that started them.

mod account;
mod command;
mod error;
pub mod packages;
pub mod postgres;
mod server;

pub use error::Error;
