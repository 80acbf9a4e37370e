//! Headers of HTTP responses, and the text of request errors.

use std::error::Error as _;

use chrono::DateTime;
use reqwest::header::HeaderMap;

pub fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The host and the chain of causes. The URL is left out, because it can contain a signature.
pub fn describe_request_error(error: reqwest::Error) -> String {
    let host = error.url().and_then(|url| url.host_str()).map(str::to_owned).unwrap_or_default();
    if error.is_timeout() {
        return format!("no answer from {host} in time");
    }
    let error = error.without_url();
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !texts.iter().any(|before| before.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    format!("{host}: {}", texts.join(": "))
}

/// A `Date` header as milliseconds since 1970.
pub fn from_http_date(date: &str) -> Option<i64> {
    DateTime::parse_from_rfc2822(date).ok().map(|date| date.timestamp_millis())
}
