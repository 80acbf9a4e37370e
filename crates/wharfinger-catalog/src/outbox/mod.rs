//! Messages to other systems and notifications of owners, each written in the transaction that causes it.

pub(crate) mod archive;
pub(crate) mod lines;
pub(crate) mod notifications;
