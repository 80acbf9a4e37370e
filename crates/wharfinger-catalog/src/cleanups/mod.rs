//! Cleanups of objects: the pending deletes, and the log of finished ones.

pub(crate) mod counts;
pub(crate) mod deletion_log;
pub(crate) mod pending;
