//! Limits and usage of tenants, and whether the database or Redis admits uploads.

pub(crate) mod charges;
pub(crate) mod owner;
