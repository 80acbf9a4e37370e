//! Leases on rows: claim what is due, extend, release and finish it, in a fair order between tenants.

pub(crate) mod engine;
pub(crate) mod fair;
pub(crate) mod tables;
