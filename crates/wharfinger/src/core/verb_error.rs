//! The errors of operations. `http::problem` turns them into answers.

use wharfinger_catalog::CatalogError;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{self, BatchStatus};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::media_type::TypeList;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::BlobError;

use crate::clock::rfc3339;
use crate::config::format_size;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    pub field: String,
    pub problem: String,
}

/// The status of one file of a batch, and why it could not be confirmed.
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
    #[error("`{field}` may be at most {limit_bytes} bytes")]
    TooLarge { field: String, limit_bytes: u64 },
    #[error("{}", not_allowed_text(.field, .given.as_deref(), .allowed))]
    TypeNotAllowed { field: String, given: Option<String>, allowed: TypeList },
    /// `found`: `None` if the bytes are of no known type.
    #[error("{}", wrong_content_text(.declared, .found.as_deref(), .allowed))]
    ContentNotAllowed { declared: String, found: Option<String>, allowed: TypeList },
    #[error(
        "Only pictures (not SVG), film, sound, PDF and plain text are shown inline, and this file {}. Leave out \
         `disposition=inline` to get it as a download",
        .0.as_ref().map_or("has no `contentType`".to_owned(), |declared| format!("is {declared}"))
    )]
    NotInline(Option<String>),
    #[error("The file is quarantined and cannot be downloaded")]
    Quarantined,
    #[error("The file is {0}, not quarantined")]
    NotQuarantined(Status),
    #[error(
        "The object in the store was changed after the upload was confirmed, so the file cannot be released. Restore the \
         confirmed object in the store and release it again, or delete the file"
    )]
    ObjectChanged,
    #[error("No such file or batch")]
    NotFound,
    #[error("The upload was removed: it was deleted, or not confirmed in time")]
    Gone,
    #[error("The batch is {0}. Its unconfirmed files were removed")]
    BatchGone(BatchStatus),
    #[error("The batch cannot be changed now: {0}")]
    BatchClosed(batch::BatchError),
    #[error("{} files of the batch are not confirmed", .0.iter().filter(|file| file.problem.is_some()).count())]
    BatchIncomplete(Vec<FileOutcome>),
    #[error(
        "Quota exceeded: the upload has {}, {} of {} are free",
        format_size(*.requested_bytes),
        format_size(.limit_bytes.saturating_sub(*.used_bytes)),
        format_size(*.limit_bytes)
    )]
    QuotaExceeded { used_bytes: u64, limit_bytes: u64, requested_bytes: u64 },
    #[error(
        "Your unconfirmed uploads take {}, the limit is {}. Confirm or delete some",
        format_size(*.held_bytes),
        format_size(*.limit_bytes)
    )]
    UnconfirmedLimit { held_bytes: u64, limit_bytes: u64, requested_bytes: u64 },
    #[error(
        "The tenant has {files} files and may have {limit}. Delete some, or ask an operator (TENANT_MAX_FILES)."
    )]
    FileLimit { files: u64, limit: u64 },
    #[error("This Idempotency-Key was already used with another body")]
    KeyMismatch,
    #[error("The object is not uploaded yet")]
    ObjectMissing,
    #[error("{missing} of {of} parts are missing: {}", listed(.first, *.missing))]
    PartsMissing { of: u32, missing: u32, first: Vec<u32> },
    #[error("The object has {actual} bytes instead of {expected}")]
    SizeMismatch { expected: u64, actual: u64 },
    #[error("The SHA-256 of the object is not the announced one")]
    ChecksumMismatch,
    #[error(
        "The object was uploaded with `Content-Encoding: {0}`. Upload it again without that header, as another file."
    )]
    EncodingMismatch(String),
    #[error("The file is {0}, not ready")]
    NotReady(Status),
    #[error("The file is already confirmed, its status is {0}")]
    AlreadyConfirmed(Status),
    #[error("`{}` is not a stage of this pipeline", .0.as_str())]
    NotInPipeline(Stage),
    #[error("The file is not confirmed")]
    NotConfirmed,
    #[error("The file is {0}: its processing has ended")]
    TerminalState(Status),
    #[error("The file is leased by a worker until {}", rfc3339(*.until))]
    InWork { until: UnixMs },
    #[error("The file was redriven {0} times and failed each time. An admin can redrive it")]
    RedriveLimit(u32),
    #[error("Another lease replaced this one. The call changed nothing")]
    LeaseLost,
    /// The caller has too many of these calls open.
    #[error("{0}")]
    RateLimited(&'static str),
    /// Its text is the cause. Clients do not see it.
    #[error("Not available at this moment. Try again")]
    Unavailable(String),
    /// The sweep lost its lease to another process.
    #[error("Another process has taken over this sweep")]
    TakenOver,
    /// An operator must decide before anything is deleted (`doctor --accept-store`).
    #[error("{0}")]
    StoreInDoubt(String),
    /// Its text is the cause. Clients do not see it.
    #[error("Internal error. The server's log has the cause")]
    Internal(String),
}

fn not_allowed_text(field: &str, given: Option<&str>, allowed: &TypeList) -> String {
    let problem = match given {
        Some(given) => format!("is {given}, which is not allowed here"),
        None => "is missing. It must be set, because only some types are allowed here".into(),
    };
    format!("`{field}` {problem}. Allowed: {allowed}")
}

fn wrong_content_text(declared: &str, found: Option<&str>, allowed: &TypeList) -> String {
    match found {
        Some(found) => {
            format!(
                "The uploaded bytes are {found}, not {declared}, and that is not allowed here. Allowed: {allowed}"
            )
        }
        None => {
            format!("The uploaded bytes are not {declared}. Upload another file, or announce its real type")
        }
    }
}

/// The first numbers, then `…` if there are more.
fn listed(first: &[u32], count: u32) -> String {
    let mut words: Vec<String> = first.iter().map(u32::to_string).collect();
    if first.len() < count as usize {
        words.push("…".into());
    }
    words.join(", ")
}

impl VerbError {
    /// Every attempt lost against a concurrent change.
    pub(crate) fn busy() -> VerbError {
        VerbError::Unavailable("other calls keep changing the file".into())
    }

    /// The text for logs and operators: with the cause that clients do not see.
    pub fn with_cause(&self) -> String {
        match self {
            VerbError::Unavailable(cause) | VerbError::Internal(cause) => cause.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the upload cannot be confirmed as it is now: its batch has ended, or its object is missing or not what was
    /// announced.
    pub(crate) fn is_about_object(&self) -> bool {
        matches!(
            self,
            VerbError::BatchGone(_)
                | VerbError::ObjectMissing
                | VerbError::PartsMissing { .. }
                | VerbError::SizeMismatch { .. }
                | VerbError::EncodingMismatch(_)
                | VerbError::ChecksumMismatch
                | VerbError::TypeNotAllowed { .. }
                | VerbError::ContentNotAllowed { .. }
        )
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

/// An error of the store means "unknown". Callers that can use "absent" match `BlobError::NotFound` before this.
impl From<BlobError> for VerbError {
    fn from(error: BlobError) -> Self {
        VerbError::Unavailable(error.to_string())
    }
}
