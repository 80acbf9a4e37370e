//! Bytes that are to go: pending deletes, and the log of those that are done.

pub(crate) mod counts;
pub(crate) mod deletion_log;
pub(crate) mod pending;
