//! Leases on rows: one way to claim what is due, to keep it and to let it go, in fair order between tenants.

pub(crate) mod engine;
pub(crate) mod fair;
pub(crate) mod tables;
