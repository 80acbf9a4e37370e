//! Whether a file has text to search. Unknown until its extract stage has finished.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextStatus {
    /// The type of the file has no text, or the file is empty of it. Stages that need text are skipped.
    None,
    Extracted,
}

impl TextStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            TextStatus::None => "none",
            TextStatus::Extracted => "extracted",
        }
    }

    pub fn parse(word: &str) -> Option<TextStatus> {
        [TextStatus::None, TextStatus::Extracted].into_iter().find(|status| status.as_str() == word)
    }
}

/// What happens to a file whose type has no text (`EXTRACT_UNSUPPORTED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedRule {
    /// It continues without text.
    Ready,
    /// It fails.
    Failed,
}
