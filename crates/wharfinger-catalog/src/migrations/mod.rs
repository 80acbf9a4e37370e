//! The schema, and how it is brought up to date beside running processes.

pub(crate) mod migrate;
pub(crate) mod schema;
