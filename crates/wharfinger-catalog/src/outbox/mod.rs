//! What other systems and owners are told, written in the transaction that it follows from.

pub(crate) mod archive;
pub(crate) mod lines;
pub(crate) mod notices;
