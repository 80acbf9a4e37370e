//! The stages of the processing pipeline, in their usual order.

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

    pub fn parse(word: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.as_str() == word)
    }

    /// The stage whose output this stage reads.
    pub fn needs(self) -> Option<Stage> {
        match self {
            Stage::Scan | Stage::Extract => None,
            Stage::Chunk => Some(Stage::Extract),
            Stage::Embed => Some(Stage::Chunk),
        }
    }

    /// The queue of its jobs.
    pub fn queue(self) -> &'static str {
        match self {
            Stage::Scan => "file-scan",
            Stage::Extract => "file-extract",
            Stage::Chunk => "file-chunk",
            Stage::Embed => "file-embed",
        }
    }

    pub fn of_queue(queue: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.queue() == queue)
    }

    /// The status of a file while this stage processes it.
    pub fn status(self) -> Status {
        match self {
            Stage::Scan => Status::Scanning,
            Stage::Extract => Status::Extracting,
            Stage::Chunk => Status::Chunking,
            Stage::Embed => Status::Embedding,
        }
    }
}

/// Parses one stage. The error is for people.
pub fn parse(word: &str) -> Result<Stage, String> {
    Stage::parse(word)
        .ok_or_else(|| format!("`{word}` is not a stage. The stages are {}", show_list(&Stage::ALL)))
}

/// Parses a list such as `scan,extract`. Repeated stages are an error.
pub fn parse_list(text: &str) -> Result<Vec<Stage>, String> {
    let mut stages = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let stage = parse(word)?;
        if stages.contains(&stage) {
            return Err(format!("`{word}` is listed twice"));
        }
        stages.push(stage);
    }
    Ok(stages)
}

pub fn show_list(stages: &[Stage]) -> String {
    stages.iter().map(|stage| stage.as_str()).collect::<Vec<_>>().join(",")
}
