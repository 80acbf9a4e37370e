//! The outputs of stages: text, chunks and vectors, and the search over them.

pub(crate) mod chunks;
pub(crate) mod outputs;
pub(crate) mod pgvector;
pub(crate) mod search;
pub(crate) mod vector_copies;
