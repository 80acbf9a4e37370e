//! The status of a file.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Charged, and the client has an upload URL. The bytes may be missing.
    Registered,
    /// Confirmed: the bytes exist, and their ETag or version is recorded.
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
    /// A tombstone. A deleted file never leaves this status.
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

    /// Confirmed, and the pipeline has not finished: a job for it must exist.
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

    /// May have no next check. A file in any other status must have a next check.
    pub fn needs_no_check(self) -> bool {
        matches!(self, Status::Ready | Status::Quarantined)
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
    fn every_status_parses_from_its_text() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
        }
        assert_eq!(Status::parse("Ready"), None);
    }
}
