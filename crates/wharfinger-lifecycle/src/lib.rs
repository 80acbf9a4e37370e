//! The pure core of Wharfinger: what a file can be, what can happen to it, and what follows.
//! Nothing here performs I/O or reads a clock: time and randomness come in as arguments.

pub mod batch;
pub mod change;
pub mod checksum;
pub mod derived;
pub mod diagnosis;
pub mod event;
pub mod file;
pub mod id;
pub mod key;
pub mod limits;
pub mod name;
pub mod parts;
pub mod processing;
pub mod quota;
pub mod recovery;
pub mod retention;
pub mod retry;
pub mod stage;
pub mod stage_end;
pub mod state;
pub mod transition;

/// Milliseconds since 1970-01-01 UTC, the one unit of time in the catalog.
pub type UnixMs = i64;
