//! Whether a file is infected: asked of clamd, or looked up among a few signatures of the program's own.
//!
//! Only an exact `OK` to the whole of the bytes is clean. What was not answered, was answered too early or cannot be
//! understood is an error.
//!
//! # What clamd passes over
//!
//! `OK` means that clamd found nothing in what it looked at. That is less than the whole file where one of its own
//! limits is smaller than the file: beyond `StreamMaxLength` it refuses ([`ScanError::TooLarge`]), but what is larger
//! than `MaxFileSize` or unpacks to more than `MaxScanSize` it **skips and calls `OK`**, unless its settings say
//! `AlertExceedsMax yes`; then it reports `Heuristics.Limits.Exceeded.…`, which is infected here like everything else
//! that it reports. The protocol does not tell how it is set. So whoever runs clamd sets `AlertExceedsMax yes`, or
//! makes `MaxFileSize` and `MaxScanSize` at least as large as `StreamMaxLength`. [`Scanner::check`] tells which clamd
//! and which signatures there are, and no more.

mod answer;
mod builtin;
mod clamd;

use bytes::Bytes;
use futures::stream::BoxStream;

pub use builtin::Signatures;
pub use clamd::{Clamd, Timeouts};

/// The bytes of a file, or why they could not be read.
pub type Chunks = BoxStream<'static, Result<Bytes, String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Clean,
    Infected { signature: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The scanner is away, busy, misplaced or hung up, or the file could not be read to its end. Nothing is known of
    /// the file, and trying again may help.
    #[error("the scanner is unavailable: {0}")]
    Unavailable(String),
    /// The file is larger than the scanner takes, which stays so.
    #[error("the file is too large for the scanner: {0}")]
    TooLarge(String),
    /// The scanner cannot make anything of this very file, and is not known to do so another time.
    #[error("the scanner could not scan the file: {0}")]
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
    /// At `tcp://host:3310` or `unix:/path`. Nobody is asked yet; the error says what is wrong with the address.
    pub fn clamd(url: &str) -> Result<Scanner, String> {
        Clamd::new(url).map(Scanner::Clamd)
    }

    pub fn builtin(signatures: Signatures) -> Scanner {
        Scanner::Builtin(signatures)
    }

    /// Reads the bytes to their end, in constant memory, unless the scanner has had enough before.
    pub async fn scan(&self, bytes: Chunks) -> Result<Verdict, ScanError> {
        match self {
            Scanner::Clamd(clamd) => clamd.scan(bytes).await,
            Scanner::Builtin(signatures) => signatures.scan(bytes).await,
        }
    }

    /// Whether the scanner can be used now, and what it is: clamd's version, with that of its signatures and their
    /// date where they are official ones.
    pub async fn check(&self) -> Result<String, ScanError> {
        match self {
            Scanner::Clamd(clamd) => clamd.check().await,
            Scanner::Builtin(signatures) => Ok(signatures.to_string()),
        }
    }
}

fn unread(error: String) -> ScanError {
    ScanError::Unavailable(format!("the file could not be read: {error}"))
}
