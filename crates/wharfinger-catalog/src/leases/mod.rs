//! What every queue of the catalog shares: fair order between tenants.

pub(crate) mod fair;
