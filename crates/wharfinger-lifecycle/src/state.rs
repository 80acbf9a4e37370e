//! What a file can be.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Charged and given a URL; the bytes may or may not be there.
    Registered,
    /// Confirmed: the bytes are there and pinned.
    Uploaded,
    /// Waits for its next stage.
    Queued,
    Scanning,
    Extracting,
    Chunking,
    Embedding,
    Ready,
    Failed,
    Quarantined,
    /// Dead: a tombstone. There is no way out.
    Deleted,
}

impl Status {
    pub const ALL: [Status; 11] = [
        Status::Registered,
        Status::Uploaded,
        Status::Queued,
        Status::Scanning,
        Status::Extracting,
        Status::Chunking,
        Status::Embedding,
        Status::Ready,
        Status::Failed,
        Status::Quarantined,
        Status::Deleted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Registered => "registered",
            Status::Uploaded => "uploaded",
            Status::Queued => "queued",
            Status::Scanning => "scanning",
            Status::Extracting => "extracting",
            Status::Chunking => "chunking",
            Status::Embedding => "embedding",
            Status::Ready => "ready",
            Status::Failed => "failed",
            Status::Quarantined => "quarantined",
            Status::Deleted => "deleted",
        }
    }

    pub fn parse(word: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Confirmed and not yet at the end of the pipeline: a job must exist that moves it on.
    pub fn is_working(self) -> bool {
        match self {
            Status::Uploaded
            | Status::Queued
            | Status::Scanning
            | Status::Extracting
            | Status::Chunking
            | Status::Embedding => true,
            Status::Registered | Status::Ready | Status::Failed | Status::Quarantined | Status::Deleted => {
                false
            }
        }
    }

    /// Needs nobody to look at it again. Everything else must say when it is to be looked at next.
    pub fn is_at_rest(self) -> bool {
        matches!(self, Status::Ready | Status::Quarantined)
    }

    /// Its charge belongs to no confirmed file: not yet confirmed, or ended while a URL still lives.
    pub fn holds_reservation(self) -> bool {
        matches!(self, Status::Registered | Status::Deleted)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back_to_their_status() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
        }
        assert_eq!(Status::parse("Ready"), None);
    }
}
