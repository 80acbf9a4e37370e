//! Extracts text from untrusted files, splits text into chunks, and computes vectors of chunks. The code is synchronous
//! and uses no network, database or clock, so that it can run in a sandboxed child process.

pub mod child;
mod chunk;
mod extract;
pub mod hashing;
pub mod media_type;
pub mod sandbox;

pub use chunk::{Chunk, ChunkSettings, ChunkUnit, Chunker};
pub use extract::{ExtractError, ExtractLimits, Extracted, extract, without_text};
