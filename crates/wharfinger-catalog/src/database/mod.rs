//! Access to SQLite and PostgreSQL: connections, one SQL text for both, and the writer of SQLite.

pub(crate) mod connect;
pub(crate) mod sql;
pub(crate) mod writer;
