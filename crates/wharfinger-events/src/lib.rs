//! Event data as bytes. Request bodies become lines, lines become a gzip batch, and spooled batches are checked before
//! they are sent. This crate performs no I/O and reads no clock.

pub mod body;
pub mod encoding;
pub mod inspect;
pub mod name;
pub mod pack;
pub mod tenants;
