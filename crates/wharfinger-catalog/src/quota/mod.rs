//! What tenants may use and do use, and whether the database or Redis admits uploads.

pub(crate) mod charges;
pub(crate) mod owner;
