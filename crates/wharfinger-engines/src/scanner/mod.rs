//! Virus scans of files, by clamd or by the built-in scanner.
//!
//! Only an exact `OK` for the whole file is clean. A missing, early or unknown answer is an error.
//!
//! # Files that clamd skips
//!
//! `OK` means that clamd found nothing in the part that it scanned. This part depends on clamd's limits. clamd refuses a
//! file over `StreamMaxLength` ([`ScanError::TooLarge`]). But it **skips** a file over `MaxFileSize`, or one that unpacks
//! to more than `MaxScanSize`, **and answers `OK`**. With the setting `AlertExceedsMax yes` it reports
//! `Heuristics.Limits.Exceeded.…` instead, which counts as infected here. The protocol does not show these settings.
//!
//! So operators of clamd must set `AlertExceedsMax yes`, or make `MaxFileSize` and `MaxScanSize` at least as large as
//! `StreamMaxLength`. [`Scanner::check`] shows only the versions of clamd and of its signatures.

mod answer;
mod builtin;
mod clamd;

use bytes::Bytes;
use futures::stream::BoxStream;

pub use builtin::Signatures;
pub use clamd::{Clamd, Timeouts};

/// The bytes of a file, or the error of reading them.
pub type Chunks = BoxStream<'static, Result<Bytes, String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Clean,
    Infected { signature: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The scanner did not answer, its address is wrong, or the file could not be read completely. A retry can succeed.
    #[error("the scanner is unavailable: {0}")]
    Unavailable(String),
    /// The file is larger than the scanner's limit. A retry fails too.
    #[error("the file is too large for the scanner: {0}")]
    TooLarge(String),
    /// The scanner cannot scan this file. A retry is not expected to succeed.
    #[error("the scanner cannot scan the file: {0}")]
    Refused(String),
}

impl ScanError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, ScanError::Unavailable(_))
    }
}

#[derive(Clone, Debug)]
pub enum Scanner {
    Clamd(Clamd),
    Builtin(Signatures),
}

impl Scanner {
    /// clamd at `tcp://host:3310` or `unix:/path`. Connects at the first scan. The error explains an invalid address.
    pub fn clamd(url: &str) -> Result<Scanner, String> {
        Clamd::new(url).map(Scanner::Clamd)
    }

    pub fn builtin(signatures: Signatures) -> Scanner {
        Scanner::Builtin(signatures)
    }

    /// Scans the bytes in constant memory. Stops reading when the scanner answers early.
    pub async fn scan(&self, bytes: Chunks) -> Result<Verdict, ScanError> {
        match self {
            Scanner::Clamd(clamd) => clamd.scan(bytes).await,
            Scanner::Builtin(signatures) => signatures.scan(bytes).await,
        }
    }

    /// Checks whether the scanner can be used now. Returns its version. For clamd this includes the version and date of
    /// its official signatures.
    pub async fn check(&self) -> Result<String, ScanError> {
        match self {
            Scanner::Clamd(clamd) => clamd.check().await,
            Scanner::Builtin(signatures) => Ok(signatures.to_string()),
        }
    }
}

fn source_error(error: String) -> ScanError {
    ScanError::Unavailable(format!("cannot read the file: {error}"))
}
