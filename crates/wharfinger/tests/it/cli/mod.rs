//! The command line: the real program, run in an empty folder.

mod database;
mod doctor;
mod doctor_stores;
mod key;
pub mod program;
mod put;
mod put_again;
mod put_large;
mod quota;
pub mod serve;
mod settings;
mod stopping;
mod sweep;
mod tail;
mod token;
