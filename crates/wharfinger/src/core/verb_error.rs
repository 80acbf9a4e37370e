//! Everything a verb can answer instead of what was asked for.

use wharfinger_catalog::CatalogError;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{self, BatchStatus};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::BlobError;

use crate::clock::rfc3339;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    pub field: String,
    pub problem: String,
}

/// How one file of a batch stands, and what keeps it from being confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOutcome {
    pub id: FileId,
    pub status: Status,
    pub problem: Option<VerbError>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbError {
    #[error("{}", .0.iter().map(|f| format!("`{}` {}", f.field, f.problem)).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<FieldProblem>),
    #[error("a file may have at most {limit_bytes} bytes")]
    TooLarge { field: String, limit_bytes: u64 },
    #[error("no such file or batch")]
    NotFound,
    #[error("the upload was not confirmed in time and has been removed")]
    Gone,
    #[error("the batch is {0}: what was not confirmed is gone")]
    BatchGone(BatchStatus),
    #[error("{0}: it takes no more files and ends no other way")]
    BatchClosed(batch::Refusal),
    #[error("{} files of the batch are not confirmed", .0.iter().filter(|file| file.problem.is_some()).count())]
    BatchIncomplete(Vec<FileOutcome>),
    #[error("{requested_bytes} bytes do not fit: {used_bytes} of {limit_bytes} are in use")]
    QuotaExceeded { used_bytes: u64, limit_bytes: u64, requested_bytes: u64 },
    #[error("you hold {held_bytes} bytes in unconfirmed uploads, of {limit_bytes} that you may")]
    UnconfirmedLimit { held_bytes: u64, limit_bytes: u64, requested_bytes: u64 },
    #[error(
        "The tenant has {files} files and may have {limit}. Delete some, or ask an operator (TENANT_MAX_FILES)."
    )]
    FileLimit { files: u64, limit: u64 },
    #[error("this Idempotency-Key was used with another body")]
    KeyMismatch,
    #[error("the object has not been uploaded")]
    ObjectMissing,
    #[error("{missing} of {of} parts are missing: {}", shown(.first, *.missing))]
    PartsMissing { of: u32, missing: u32, first: Vec<u32> },
    #[error("the object has {actual} bytes, {expected} were announced")]
    SizeMismatch { expected: u64, actual: u64 },
    #[error("the SHA-256 of the object is not the one that was given")]
    ChecksumMismatch,
    #[error(
        "The object was uploaded with `Content-Encoding: {0}`. Upload it again without that header, as another file."
    )]
    EncodingMismatch(String),
    #[error("the file is {0}, not ready")]
    NotReady(Status),
    #[error("the file is {0}: it has been confirmed already")]
    AlreadyConfirmed(Status),
    #[error("`{}` is not a stage of this pipeline", .0.as_str())]
    NotInPipeline(Stage),
    #[error("the file has not been confirmed")]
    NotConfirmed,
    #[error("the file is {0}: no stage is to work on it any more")]
    TerminalState(Status),
    #[error("a worker is at it, and has time for that until {}", rfc3339(*.until))]
    InWork { until: UnixMs },
    #[error("the file was redriven {0} times and failed each time; an admin can redrive it")]
    RedriveLimit(u32),
    #[error("this lease is not the current one")]
    LeaseLost,
    /// The caller has as many of these under way as it may.
    #[error("{0}")]
    RateLimited(&'static str),
    #[error("not available at this moment; try again")]
    Unavailable(String),
    /// The sweep that did this has lost its lease to another process.
    #[error("another process has taken this over")]
    TakenOver,
    /// A person has to say what is true before anything is deleted.
    #[error("{0}")]
    StoreInDoubt(String),
    #[error("something is wrong here that trying again does not mend")]
    Internal(String),
}

/// The first numbers, and whether there are more.
fn shown(first: &[u32], count: u32) -> String {
    let mut words: Vec<String> = first.iter().map(u32::to_string).collect();
    if first.len() < count as usize {
        words.push("…".into());
    }
    words.join(", ")
}

impl VerbError {
    /// Somebody else was faster every time.
    pub(crate) fn busy() -> VerbError {
        VerbError::Unavailable("the file is changed too often at this moment".into())
    }

    pub fn invalid(field: &str, problem: impl ToString) -> VerbError {
        VerbError::Invalid(vec![FieldProblem { field: field.to_owned(), problem: problem.to_string() }])
    }
}

impl From<CatalogError> for VerbError {
    fn from(error: CatalogError) -> Self {
        match error {
            CatalogError::Stale
            | CatalogError::Unavailable(_)
            | CatalogError::Repeat(_)
            | CatalogError::LockTimeout(_)
            | CatalogError::Disconnected(_)
            | CatalogError::Unknown(_) => VerbError::Unavailable(error.to_string()),
            CatalogError::Fenced => VerbError::TakenOver,
            CatalogError::Unusable(_) | CatalogError::Corrupt(_) => VerbError::Internal(error.to_string()),
        }
    }
}

/// An error of the store is "unknown". Whoever knows that absent is an answer asks for it by name.
impl From<BlobError> for VerbError {
    fn from(error: BlobError) -> Self {
        VerbError::Unavailable(error.to_string())
    }
}
