//! Files, their objects and their batches: registering, changing, reading and forgetting them.

pub(crate) mod batches;
pub(crate) mod changes;
pub(crate) mod endings;
pub(crate) mod idempotency;
pub(crate) mod objects;
pub(crate) mod registrations;
pub(crate) mod retention;
pub(crate) mod rows;
pub(crate) mod stage_changes;
