//! Limits, usage and rules of tenants, and whether the database or Redis admits uploads.

pub(crate) mod charges;
pub(crate) mod owner;
mod policies;
