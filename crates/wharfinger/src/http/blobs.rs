//! The routes of the local store: signed uploads and downloads.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use wharfinger_lifecycle::download::downloadable;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::disk::{DiskStore, SignedQuery};
use wharfinger_stores::{BlobError, Disposition};

use super::Shared;
use super::extract::QueryParams;
use super::problem::Problem;
use crate::core::VerbError;
use crate::uploads::receive::{self, ReceiveError, RequestHeaders};

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The local store. Another store has its own endpoint, so these routes answer 404.
fn local(app: &Shared) -> Result<Arc<DiskStore>, Problem> {
    app.core.disk.clone().ok_or_else(Problem::not_found)
}

pub(super) async fn put(
    State(app): State<Shared>,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<SignedQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let key = ObjectKey::parse(&key).map_err(|_| ReceiveError::Signature)?;
    let sent = RequestHeaders {
        content_type: text(&headers, header::CONTENT_TYPE),
        content_length: text(&headers, header::CONTENT_LENGTH).and_then(|length| length.parse().ok()),
    };
    let disk = local(&app)?;
    let checked = receive::check_request(&app.uploads, &disk, &key, &query, &sent).await?;
    let bytes = body.into_data_stream();
    // The upload runs in its own task, so that it either finishes or cleans up when the client hangs up.
    let task = app.clone();
    let received = app
        .core
        .verbs
        .spawn(
            async move { receive::receive(&task.uploads, &disk, checked, &key, query.sha256, bytes).await },
        )
        .await
        .map_err(|_| Problem::internal())?;
    let etag = format!("\"{}\"", received?);
    Ok((StatusCode::OK, [(header::ETAG, etag)]).into_response())
}

/// GET and HEAD. Each call reads the file's row, so a URL stops working when its file ends.
pub(super) async fn get(
    State(app): State<Shared>,
    method: Method,
    Path(key): Path<String>,
    QueryParams(query): QueryParams<SignedQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let key = ObjectKey::parse(&key).map_err(|_| ReceiveError::Signature)?;
    let disk = local(&app)?;
    let Some(etag) = query.etag.clone().filter(|_| disk.signing_key().verify("GET", &key, &query)) else {
        return Err(ReceiveError::Signature.into());
    };
    if app.core.clock.now() >= query.expires {
        return Err(ReceiveError::Expired.into());
    }
    let id =
        key.as_str().rsplit('/').next().and_then(|part| part.parse().ok()).ok_or_else(Problem::not_found)?;
    let file = app.core.catalog.file(id).await.map_err(VerbError::from)?.ok_or_else(Problem::not_found)?;
    // Only workers get download URLs for files that are being processed.
    if downloadable(&file).is_err() && !file.status.is_working() {
        return Err(ReceiveError::Ended.into());
    }
    let meta = app.core.blobs.head(&key, None).await.map_err(read_problem)?;
    if meta.etag != etag {
        return Err(read_problem(BlobError::Changed));
    }
    // Ranges apply only to GET.
    let wanted = if method == Method::GET {
        ByteRange::wanted(&headers, &etag, meta.size)
    } else {
        RangeRequest::Whole
    };
    let (status, range) = match wanted {
        RangeRequest::Whole => (StatusCode::OK, ByteRange { start: 0, length: meta.size }),
        RangeRequest::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        RangeRequest::Unsatisfiable => {
            let headers = [(header::CONTENT_RANGE, format!("bytes */{}", meta.size))];
            return Ok((headers, Problem::range_not_satisfiable(meta.size)).into_response());
        }
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        let transfer = app.uploads.transfers.begin(&file.tenant).ok_or(ReceiveError::Busy)?;
        let pin = Pin { etag: etag.clone(), version_id: None };
        let bytes =
            app.core.blobs.get(&key, &pin, range.start, Some(range.length)).await.map_err(read_problem)?;
        // The closure holds the transfer until the last piece is sent or the client hangs up.
        Body::from_stream(bytes.inspect(move |_| _ = &transfer))
    };
    let mut response = (status, body).into_response();
    let to = response.headers_mut();
    let mut set = |name: HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            to.insert(name, value);
        }
    };
    set(header::CONTENT_LENGTH, range.length.to_string());
    let content_type = query.content_type.as_deref().unwrap_or("application/octet-stream");
    set(header::CONTENT_TYPE, content_type.to_owned());
    set(header::ETAG, format!("\"{etag}\""));
    set(header::ACCEPT_RANGES, "bytes".into());
    if status == StatusCode::PARTIAL_CONTENT {
        let last = range.start + range.length - 1;
        set(header::CONTENT_RANGE, format!("bytes {}-{last}/{}", range.start, meta.size));
    }
    // Uploaded content must never run as part of our site.
    let disposition = if query.inline == Some(true) { Disposition::Inline } else { Disposition::Attachment };
    set(header::CONTENT_DISPOSITION, disposition.header(query.name.as_deref().unwrap_or("file")));
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".into());
    let shown = query.content_type.as_deref().filter(|_| query.inline == Some(true));
    set(header::CONTENT_SECURITY_POLICY, content_security_policy(shown).into());
    // Anyone who has the URL may use it, so pages of other origins may show the file.
    set(HeaderName::from_static("cross-origin-resource-policy"), "cross-origin".into());
    set(header::CACHE_CONTROL, "private, no-store".into());
    Ok(response)
}

/// No policy lets the content run scripts. `shown`: the type of content that is shown inline.
fn content_security_policy(shown: Option<&str>) -> &'static str {
    match shown {
        // A browser opens films and sound in a page of its own, which reads the URL once more. Without `allow-same-origin` it
        // may not.
        Some(shown) if shown.starts_with("video/") || shown.starts_with("audio/") => {
            "sandbox allow-same-origin; default-src 'none'; media-src 'self'; style-src 'unsafe-inline'"
        }
        // Safari shows no PDF with `sandbox`, and its viewer has inline styles.
        Some("application/pdf") => "default-src 'none'; style-src 'unsafe-inline'",
        _ => "sandbox; default-src 'none'",
    }
}

fn read_problem(error: BlobError) -> Problem {
    match error {
        BlobError::NotFound | BlobError::Changed => ReceiveError::Ended.into(),
        other => VerbError::from(other).into(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByteRange {
    start: u64,
    length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeRequest {
    Whole,
    Part(ByteRange),
    Unsatisfiable,
}

impl ByteRange {
    /// One range is served. Several ranges, or an invalid one, get the whole object, as RFC 9110 allows.
    fn wanted(headers: &HeaderMap, etag: &str, size: u64) -> RangeRequest {
        if let Some(condition) = text(headers, header::IF_RANGE)
            && condition != format!("\"{etag}\"")
        {
            return RangeRequest::Whole;
        }
        text(headers, header::RANGE).map_or(RangeRequest::Whole, |range| ByteRange::parse(&range, size))
    }

    fn parse(range: &str, size: u64) -> RangeRequest {
        let Some((first, last)) = range
            .strip_prefix("bytes=")
            .and_then(|r| r.split_once('-'))
            .filter(|(_, last)| !last.contains(','))
        else {
            return RangeRequest::Whole;
        };
        let (start, end) = match (first.trim().parse::<u64>(), last.trim()) {
            (Ok(start), "") => (start, size),
            (Ok(start), last) => match last.parse::<u64>() {
                Ok(last) if last >= start => (start, last.saturating_add(1).min(size)),
                _ => return RangeRequest::Whole,
            },
            (Err(_), last) if first.trim().is_empty() => match last.parse::<u64>() {
                Ok(count) => (size.saturating_sub(count), size),
                Err(_) => return RangeRequest::Whole,
            },
            _ => return RangeRequest::Whole,
        };
        if start >= size || start >= end {
            return RangeRequest::Unsatisfiable;
        }
        RangeRequest::Part(ByteRange { start, length: end - start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let part = |start, length| RangeRequest::Part(ByteRange { start, length });
        for (text, wanted) in [
            ("bytes=0-4", part(0, 5)),
            ("bytes=5-", part(5, 5)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-99", part(0, 10)),
            ("bytes=8-99", part(8, 2)),
            ("bytes=10-", RangeRequest::Unsatisfiable),
            ("bytes=-0", RangeRequest::Unsatisfiable),
            ("bytes=5-2", RangeRequest::Whole),
            ("bytes=0-1,3-4", RangeRequest::Whole),
            ("lines=1-2", RangeRequest::Whole),
            ("bytes=x", RangeRequest::Whole),
        ] {
            assert_eq!(ByteRange::parse(text, 10), wanted, "{text}");
        }
        assert_eq!(ByteRange::parse("bytes=0-0", 0), RangeRequest::Unsatisfiable);
    }
}
