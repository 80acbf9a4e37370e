//! Files, their objects and batches, and the idempotency keys of requests.

pub(crate) mod batches;
pub(crate) mod history;
pub(crate) mod idempotency;
pub(crate) mod locks;
pub(crate) mod objects;
pub(crate) mod retention;
pub(crate) mod rows;
pub(crate) mod tombstones;
