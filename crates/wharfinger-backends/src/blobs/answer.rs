//! What every answer over HTTP has: headers, a document, and ways not to come at all.

use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;

use super::BlobError;

pub(crate) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

pub(super) fn element(body: &str, name: &str) -> Option<String> {
    let rest = body.split_once(&format!("<{name}>"))?.1;
    Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
}

pub(super) fn from_xml<T: DeserializeOwned>(xml: &str) -> Result<T, quick_xml::DeError> {
    // Some begin their documents with a mark of their byte order.
    quick_xml::de::from_str(xml.trim_start_matches('\u{feff}'))
}

/// An error, with what was tried.
pub(super) fn doing(what: &str, error: BlobError) -> BlobError {
    match error {
        BlobError::Unavailable(why) => BlobError::Unavailable(format!("it could not {what}: {why}")),
        BlobError::Refused(why) => BlobError::Refused(format!("it will not let us {what}: {why}")),
        other => BlobError::Refused(format!("it will not let us {what}: {other}")),
    }
}

pub(super) fn said(status: u16, code: &str, message: &str) -> String {
    match (code, message) {
        ("", _) => format!("HTTP {status}"),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code} ({message})"),
    }
}

/// The chain of causes, without the URL, for that may carry a signature.
pub(crate) fn unreached(error: reqwest::Error) -> String {
    let host = error.url().and_then(|url| url.host_str()).map(str::to_owned).unwrap_or_default();
    if error.is_timeout() {
        return format!("no answer from {host} in time");
    }
    let error = error.without_url();
    let mut told = vec![error.to_string()];
    let mut next = std::error::Error::source(&error);
    while let Some(cause) = next {
        let said = cause.to_string();
        if !told.iter().any(|before| before.contains(&said)) {
            told.push(said);
        }
        next = cause.source();
    }
    format!("{host}: {}", told.join(": "))
}
