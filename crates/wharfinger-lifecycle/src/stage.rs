//! The stages of the processing pipeline, in the order they can be asked for.

use serde::{Deserialize, Serialize};

use crate::state::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Scan,
    Extract,
    Chunk,
    Embed,
}

impl Stage {
    pub const ALL: [Stage; 4] = [Stage::Scan, Stage::Extract, Stage::Chunk, Stage::Embed];

    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Extract => "extract",
            Stage::Chunk => "chunk",
            Stage::Embed => "embed",
        }
    }

    /// What a file is called while this stage works on it.
    pub fn status(self) -> Status {
        match self {
            Stage::Scan => Status::Scanning,
            Stage::Extract => Status::Extracting,
            Stage::Chunk => Status::Chunking,
            Stage::Embed => Status::Embedding,
        }
    }
}
