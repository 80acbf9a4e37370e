//! Errors as clients see them: RFC 9457 problem documents with a stable code. The cause of an internal error, or of a
//! backend that fails, is logged and not sent to the client.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::access_log::Failed;
use super::wire::OutcomeView;
use crate::clock::rfc3339;
use crate::core::VerbError;
use crate::roles::Roles;
use crate::uploads::receive::ReceiveError;

/// A problem document. Some codes have more members.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:wharfinger:problem:<code>`
    #[serde(rename = "type")]
    #[schema(example = "urn:wharfinger:problem:quota_exceeded")]
    kind: String,
    #[schema(example = "Quota exceeded")]
    title: &'static str,
    #[schema(example = 403)]
    status: u16,
    #[schema(example = "The tenant's quota is exceeded: 300 bytes were requested, 900 of 1000 are used.")]
    detail: String,
    /// Stable. Programs should decide by this member.
    #[schema(example = "quota_exceeded")]
    code: &'static str,
    #[serde(flatten)]
    #[schema(ignore)]
    more: Map<String, Value>,
    /// Boxed, because a `Problem` is the error of many functions and should be small.
    #[serde(skip)]
    #[schema(ignore)]
    hidden: Option<Box<Hidden>>,
}

/// What the body does not have.
#[derive(Clone, Debug, Default)]
struct Hidden {
    /// For the header `Retry-After`.
    retry_after_s: Option<u32>,
    /// For the log.
    cause: Option<String>,
}

impl Problem {
    pub fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl ToString,
    ) -> Problem {
        Problem {
            kind: format!("urn:wharfinger:problem:{code}"),
            title,
            status: status.as_u16(),
            detail: detail.to_string(),
            code,
            more: Map::new(),
            hidden: None,
        }
    }

    /// Its code and detail, for an answer about many items.
    pub fn brief(self) -> (&'static str, String) {
        if let Some(cause) = self.hidden.and_then(|hidden| hidden.cause) {
            tracing::warn!(code = self.code, error = cause, "one item of a request failed");
        }
        (self.code, self.detail)
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    pub fn unauthorized(detail: &str) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "Not authorized", detail)
    }

    pub fn forbidden(detail: &str) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "Forbidden", detail)
    }

    pub fn not_found() -> Problem {
        let detail = "Nothing was found at this path, or the caller may not see it.";
        Problem::new(StatusCode::NOT_FOUND, "not_found", "Not found", detail)
    }

    /// Another process on the same catalog may have the role.
    pub fn not_this_process(role: &str, roles: &Roles) -> Problem {
        let detail = format!(
            "This process does not have the role `{role}`; its roles: {roles}. Send the request to a process that has it."
        );
        Problem::new(StatusCode::NOT_FOUND, "not_found", "Not found", detail)
    }

    pub fn other_method() -> Problem {
        let detail = "This path does not support the method of the request.";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed", detail)
    }

    pub fn body_too_large(limit_bytes: usize) -> Problem {
        let detail = format!("The request body is too large. The limit is {limit_bytes} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Too large", detail)
    }

    pub fn range_not_satisfiable(size: u64) -> Problem {
        let detail = format!("The range is outside of the object, which has {size} bytes.");
        Problem::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "range_not_satisfiable",
            "Range not satisfiable",
            detail,
        )
    }

    pub fn invalid(field: &str, problem: impl ToString) -> Problem {
        VerbError::invalid(field, problem).into()
    }

    pub fn unavailable() -> Problem {
        let detail = "The server cannot answer this request now. Try again in a moment.";
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Unavailable", detail);
        problem.hidden().retry_after_s = Some(1);
        problem
    }

    fn hidden(&mut self) -> &mut Hidden {
        self.hidden.get_or_insert_default()
    }

    /// With the cause for the log.
    fn because(mut self, cause: String) -> Problem {
        self.hidden().cause = Some(cause);
        self
    }

    pub fn unavailable_because(detail: impl ToString) -> Problem {
        Problem { detail: detail.to_string(), ..Problem::unavailable() }
    }

    pub fn rate_limited(detail: impl ToString) -> Problem {
        let mut problem =
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests", detail);
        problem.hidden().retry_after_s = Some(1);
        problem
    }

    /// The tenant has used up its rate of requests.
    pub fn tenant_rate(retry_after_s: u32) -> Problem {
        let detail = "This tenant sends more requests than it may. Send fewer, or ask an operator for a higher rate \
                      (requestsPerSecond).";
        let mut problem = Problem::rate_limited(detail);
        problem.hidden().retry_after_s = Some(retry_after_s);
        problem
    }

    pub fn too_large(field: &str, limit_bytes: usize) -> Problem {
        VerbError::TooLarge { field: field.to_owned(), limit_bytes: limit_bytes as u64 }.into()
    }

    /// For a bad line of a body with one event per line.
    pub fn bad_line(line: usize, problem: &str) -> Problem {
        Problem::invalid(&format!("line {line}"), problem).with("line", line)
    }

    pub fn interrupted() -> Problem {
        let detail = "The request body was not received completely. Send the request again.";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "interrupted", "Interrupted", detail)
    }

    pub fn internal() -> Problem {
        let detail = "An internal error occurred. The server's log has its cause.";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    }
}

impl From<VerbError> for Problem {
    fn from(error: VerbError) -> Self {
        let detail = error.to_string();
        let of = |status, code, title| Problem::new(status, code, title, &detail);
        match error {
            VerbError::Invalid(problems) => {
                let errors: Vec<Value> = problems
                    .iter()
                    .map(|problem| json!({ "field": problem.field, "problem": problem.problem }))
                    .collect();
                of(StatusCode::BAD_REQUEST, "invalid_request", "Invalid request").with("errors", errors)
            }
            VerbError::TooLarge { field, limit_bytes } => {
                of(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Too large")
                    .with("limit", limit_bytes)
                    .with("errors", json!([{ "field": field, "problem": detail }]))
            }
            VerbError::TypeNotAllowed { field, allowed, .. } => {
                of(StatusCode::UNSUPPORTED_MEDIA_TYPE, "type_not_allowed", "Type not allowed")
                    .with("allowedTypes", allowed.types())
                    .with("errors", json!([{ "field": field, "problem": detail }]))
            }
            VerbError::ContentNotAllowed { found, allowed, .. } => {
                of(StatusCode::UNSUPPORTED_MEDIA_TYPE, "type_not_allowed", "Type not allowed")
                    .with("allowedTypes", allowed.types())
                    .with("foundType", found)
            }
            VerbError::NotInline(_) => {
                of(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_inline", "Cannot be shown inline")
                    .with("errors", json!([{ "field": "disposition", "problem": detail }]))
            }
            VerbError::Quarantined => of(StatusCode::CONFLICT, "quarantined", "Quarantined"),
            VerbError::NotQuarantined(status) => {
                of(StatusCode::CONFLICT, "not_quarantined", "Not quarantined")
                    .with("fileStatus", status.as_str())
            }
            VerbError::ObjectChanged => of(StatusCode::CONFLICT, "object_changed", "Object changed"),
            VerbError::NotFound => of(StatusCode::NOT_FOUND, "not_found", "Not found"),
            VerbError::Gone => of(StatusCode::GONE, "gone", "Gone"),
            VerbError::BatchGone(status) => {
                of(StatusCode::GONE, "gone", "Gone").with("batchStatus", status.as_str())
            }
            VerbError::BatchClosed(_) => of(StatusCode::CONFLICT, "batch_closed", "Batch closed"),
            VerbError::BatchIncomplete(files) => {
                let files: Vec<Value> =
                    files.into_iter().map(|file| json!(OutcomeView::from(file))).collect();
                of(StatusCode::CONFLICT, "batch_incomplete", "Batch incomplete").with("files", files)
            }
            VerbError::QuotaExceeded { used_bytes, limit_bytes, requested_bytes } => {
                of(StatusCode::FORBIDDEN, "quota_exceeded", "Quota exceeded")
                    .with("used", used_bytes)
                    .with("limit", limit_bytes)
                    .with("requested", requested_bytes)
            }
            VerbError::UnconfirmedLimit { held_bytes, limit_bytes, requested_bytes } => {
                of(StatusCode::FORBIDDEN, "unconfirmed_limit", "Unconfirmed limit reached")
                    .with("used", held_bytes)
                    .with("limit", limit_bytes)
                    .with("requested", requested_bytes)
            }
            VerbError::FileLimit { files, limit } => {
                of(StatusCode::FORBIDDEN, "file_limit", "Too many files")
                    .with("used", files)
                    .with("limit", limit)
            }
            VerbError::KeyMismatch => {
                of(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_mismatch", "Idempotency key mismatch")
            }
            VerbError::ObjectMissing | VerbError::PartsMissing { .. } => {
                of(StatusCode::CONFLICT, "object_missing", "Object missing")
            }
            VerbError::SizeMismatch { expected, actual } => {
                of(StatusCode::CONFLICT, "size_mismatch", "Size mismatch")
                    .with("expected", expected)
                    .with("actual", actual)
            }
            VerbError::EncodingMismatch(_) => {
                of(StatusCode::CONFLICT, "encoding_mismatch", "Encoding mismatch")
            }
            VerbError::ChecksumMismatch => of(StatusCode::CONFLICT, "checksum_mismatch", "Checksum mismatch"),
            VerbError::NotReady(status) => {
                of(StatusCode::CONFLICT, "not_ready", "Not ready").with("fileStatus", status.as_str())
            }
            VerbError::AlreadyConfirmed(status) => {
                of(StatusCode::CONFLICT, "already_confirmed", "Already confirmed")
                    .with("fileStatus", status.as_str())
            }
            VerbError::NotInPipeline(_) => {
                of(StatusCode::BAD_REQUEST, "not_in_pipeline", "Not in the pipeline")
            }
            VerbError::NotConfirmed => of(StatusCode::BAD_REQUEST, "not_in_pipeline", "Not in the pipeline"),
            VerbError::TerminalState(status) => {
                of(StatusCode::BAD_REQUEST, "terminal_state", "Terminal state")
                    .with("fileStatus", status.as_str())
            }
            VerbError::InWork { until } => {
                of(StatusCode::CONFLICT, "in_work", "Leased by a worker").with("leaseUntil", rfc3339(until))
            }
            VerbError::RedriveLimit(_) => of(StatusCode::CONFLICT, "redrive_limit", "Redrive limit reached"),
            VerbError::LeaseLost => of(StatusCode::CONFLICT, "lease_lost", "Lease lost"),
            VerbError::Unavailable(why) => Problem::unavailable().because(why),
            VerbError::RateLimited(_) => {
                let mut problem = of(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests");
                problem.hidden().retry_after_s = Some(1);
                problem
            }
            VerbError::StoreInDoubt(_) => {
                of(StatusCode::CONFLICT, "store_in_doubt", "Store and catalog do not match")
            }
            // Only sweeps lose their lease in this way.
            VerbError::TakenOver => Problem::unavailable(),
            VerbError::Internal(why) => Problem::internal().because(why),
        }
    }
}

impl From<ReceiveError> for Problem {
    fn from(refused: ReceiveError) -> Self {
        let detail = refused.to_string();
        let of = |status, code, title| Problem::new(status, code, title, &detail);
        match refused {
            ReceiveError::Signature => of(StatusCode::FORBIDDEN, "bad_signature", "Bad signature"),
            ReceiveError::Expired => of(StatusCode::FORBIDDEN, "url_expired", "URL expired"),
            ReceiveError::Length(_) => of(StatusCode::BAD_REQUEST, "size_mismatch", "Size mismatch"),
            ReceiveError::ContentType(_) => of(StatusCode::BAD_REQUEST, "type_mismatch", "Type mismatch"),
            ReceiveError::Checksum => of(StatusCode::BAD_REQUEST, "checksum_mismatch", "Checksum mismatch"),
            ReceiveError::Exists => of(StatusCode::PRECONDITION_FAILED, "object_exists", "Object exists"),
            ReceiveError::Ended => of(StatusCode::GONE, "gone", "Gone"),
            ReceiveError::Superseded => of(StatusCode::CONFLICT, "superseded", "Superseded"),
            ReceiveError::Interrupted => of(StatusCode::REQUEST_TIMEOUT, "interrupted", "Interrupted"),
            ReceiveError::Busy => Problem::unavailable_because(refused),
            ReceiveError::Verb(error) => error.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let Hidden { retry_after_s: retry_after, cause } =
            self.hidden.clone().map_or_else(Hidden::default, |it| *it);
        let failed = Failed { code: self.code, cause };
        let mut response = (status, Json(self)).into_response();
        response.extensions_mut().insert(failed);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
