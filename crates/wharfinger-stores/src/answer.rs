//! What the answers of stores over HTTP have in common: documents and refusals.

use serde::de::DeserializeOwned;

pub(super) use wharfinger_calls::http::{header, unreached};

use super::BlobError;

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
