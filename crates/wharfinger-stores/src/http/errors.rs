//! What came instead of success, and its words.

use reqwest::Response;
use wharfinger_calls::http::{header, describe_request_error};

use super::Service;
use crate::BlobError;

/// A call that did not succeed, with what that means here.
#[derive(Debug)]
pub(crate) struct Failure {
    /// 0 where there was no answer.
    pub(crate) status: u16,
    /// The service's own word for it, or empty.
    pub(crate) code: String,
    error: BlobError,
}

impl Failure {
    /// Not asked, or the answer was lost.
    pub(crate) fn unavailable(why: impl Into<String>) -> Failure {
        BlobError::Unavailable(why.into()).into()
    }

    pub(super) async fn read<S: Service>(answer: Response) -> Failure {
        let status = answer.status().as_u16();
        // The answer to a HEAD has no body: Azure names the error in a header too.
        let named = header(answer.headers(), "x-ms-error-code").filter(|code| !code.is_empty());
        let body = answer.text().await.unwrap_or_default();
        let code = named.or_else(|| element(&body, "Code")).unwrap_or_default();
        let message = element(&body, "Message").unwrap_or_default();
        // Azure's further lines are an id and a time.
        let message = message.lines().next().unwrap_or_default().trim().trim_end_matches('.');
        let error = S::meaning(status, &code, said(status, &code, message));
        Failure { status, code, error }
    }

    pub(crate) fn is_passing(&self) -> bool {
        self.error.is_retryable()
    }
}

impl From<BlobError> for Failure {
    fn from(error: BlobError) -> Failure {
        Failure { status: 0, code: String::new(), error }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Failure {
        Failure::unavailable(describe_request_error(error))
    }
}

impl From<Failure> for BlobError {
    fn from(failure: Failure) -> BlobError {
        failure.error
    }
}

fn said(status: u16, code: &str, message: &str) -> String {
    match (code, message) {
        ("", _) => format!("HTTP {status}"),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code} ({message})"),
    }
}

pub(crate) fn element(body: &str, name: &str) -> Option<String> {
    let rest = body.split_once(&format!("<{name}>"))?.1;
    Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
}

/// An error, with what was tried.
pub(crate) fn doing(what: &str, error: BlobError) -> BlobError {
    match error {
        BlobError::Unavailable(why) => BlobError::Unavailable(format!("it could not {what}: {why}")),
        BlobError::Refused(why) => BlobError::Refused(format!("it will not let us {what}: {why}")),
        other => BlobError::Refused(format!("it will not let us {what}: {other}")),
    }
}

/// The outcome of a delete: an absent object counts as deleted.
pub(crate) fn gone<T>(outcome: Result<T, BlobError>) -> Result<(), BlobError> {
    match outcome {
        Ok(_) | Err(BlobError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}
