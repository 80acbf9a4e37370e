//! Files, their objects and their batches: registering, changing, reading and forgetting them.

pub(crate) mod batches;
pub(crate) mod history;
pub(crate) mod idempotency;
pub(crate) mod locks;
pub(crate) mod objects;
pub(crate) mod retention;
pub(crate) mod rows;
pub(crate) mod tombstones;
