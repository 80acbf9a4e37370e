//! The pure core of Wharfinger: the states of a file, its events, and what follows from each event. This crate performs
//! no I/O and reads no clock (`tests/it/tidy.rs` checks its dependencies and its use of the clock). Callers pass the
//! time and random numbers as arguments.

pub mod batch;
pub mod change;
pub mod checksum;
pub mod derived;
pub mod diagnosis;
pub mod download;
pub mod download_type;
pub mod event;
pub mod file;
pub mod id;
pub mod key;
pub mod limits;
pub mod media_type;
pub mod name;
pub mod parts;
pub mod processing;
pub mod quarantine;
pub mod quota;
pub mod recovery;
pub mod retention;
pub mod retry;
pub mod stage;
pub mod stage_choice;
pub mod stage_end;
pub mod state;
pub mod tenant_policy;
pub mod text_status;
pub mod transition;

/// Milliseconds since 1970-01-01 UTC. The catalog stores every time in this unit.
pub type UnixMs = i64;
