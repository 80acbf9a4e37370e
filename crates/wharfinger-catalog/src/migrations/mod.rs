//! The schema, and its migration while other processes run.

pub(crate) mod migrate;
pub(crate) mod schema;
