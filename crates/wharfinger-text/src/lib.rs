//! Untrusted bytes into text, text into chunks, chunks into vectors. Plain synchronous code without
//! network, database or clock, so that it can run in a child process that is held to limits.

pub mod child;
mod chunk;
mod extract;
pub mod hashing;
pub mod media_type;
pub mod sandbox;

pub use chunk::{Chunk, ChunkSettings, ChunkUnit, Chunker};
pub use extract::{ExtractError, ExtractLimits, Extracted, extract};
