//! Headers of HTTP answers, and why there was none.

use std::error::Error as _;

use chrono::DateTime;
use reqwest::header::HeaderMap;

pub fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The chain of causes, without the URL, for that may carry a signature.
pub fn unreached(error: reqwest::Error) -> String {
    let host = error.url().and_then(|url| url.host_str()).map(str::to_owned).unwrap_or_default();
    if error.is_timeout() {
        return format!("no answer from {host} in time");
    }
    let error = error.without_url();
    let mut told = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !told.iter().any(|before| before.contains(&said)) {
            told.push(said);
        }
        next = cause.source();
    }
    format!("{host}: {}", told.join(": "))
}

/// Milliseconds since 1970 of a `Date` header.
pub fn from_http_date(date: &str) -> Option<i64> {
    DateTime::parse_from_rfc2822(date).ok().map(|date| date.timestamp_millis())
}
