//! Failed calls, with the error text of the service.

use reqwest::Response;
use wharfinger_calls::http::{describe_request_error, header};

use super::Service;
use crate::BlobError;

/// A failed call: the service's answer and the store error that follows from it.
#[derive(Debug)]
pub(crate) struct CallError {
    /// 0: there was no answer.
    pub(crate) status: u16,
    /// The service's error code, or empty.
    pub(crate) code: String,
    error: BlobError,
}

impl CallError {
    /// The call was not sent, or its answer was lost or useless.
    pub(crate) fn unavailable(why: impl Into<String>) -> CallError {
        BlobError::Unavailable(why.into()).into()
    }

    pub(super) async fn read<S: Service>(answer: Response) -> CallError {
        let status = answer.status().as_u16();
        // The answer to a HEAD has no body. Azure also sends the code in a header.
        let code_header = header(answer.headers(), "x-ms-error-code").filter(|code| !code.is_empty());
        let body = answer.text().await.unwrap_or_default();
        let code = code_header.or_else(|| element(&body, "Code")).unwrap_or_default();
        let message = element(&body, "Message").unwrap_or_default();
        // Azure appends lines with a request id and a time.
        let message = message.lines().next().unwrap_or_default().trim().trim_end_matches('.');
        let error = S::classify(status, &code, describe(status, &code, message));
        CallError { status, code, error }
    }

    pub(crate) fn is_retryable(&self) -> bool {
        self.error.is_retryable()
    }
}

impl From<BlobError> for CallError {
    fn from(error: BlobError) -> CallError {
        CallError { status: 0, code: String::new(), error }
    }
}

impl From<reqwest::Error> for CallError {
    fn from(error: reqwest::Error) -> CallError {
        CallError::unavailable(describe_request_error(error))
    }
}

impl From<CallError> for BlobError {
    fn from(error: CallError) -> BlobError {
        error.error
    }
}

fn describe(status: u16, code: &str, message: &str) -> String {
    match (code, message) {
        ("", _) => format!("HTTP {status}"),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code} ({message})"),
    }
}

/// The text of the first XML element with this name.
pub(crate) fn element(body: &str, name: &str) -> Option<String> {
    let rest = body.split_once(&format!("<{name}>"))?.1;
    Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
}

/// Adds what was tried to an error.
pub(crate) fn cannot(what: &str, error: BlobError) -> BlobError {
    match error {
        BlobError::Unavailable(why) => BlobError::Unavailable(format!("cannot {what}: {why}")),
        BlobError::Refused(why) => BlobError::Refused(format!("cannot {what}: {why}")),
        other => BlobError::Refused(format!("cannot {what}: {other}")),
    }
}

/// For deletes: an absent object counts as deleted.
pub(crate) fn absent_is_ok<T>(outcome: Result<T, BlobError>) -> Result<(), BlobError> {
    match outcome {
        Ok(_) | Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}
