//! The local store's own routes: signed uploads and downloads.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use wharfinger_lifecycle::file::Pin;
use wharfinger_lifecycle::key::{ObjectKey, encode_part};
use wharfinger_lifecycle::state::Status;
use wharfinger_stores::BlobError;
use wharfinger_stores::disk::{DiskStore, SignedQuery};

use super::Shared;
use super::extract::Asked;
use super::problem::Problem;
use crate::core::VerbError;
use crate::uploads::receive::{self, Refused, Sent};

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// These routes serve local disk; another store is served by others.
fn local(app: &Shared) -> Result<Arc<DiskStore>, Problem> {
    app.core.disk.clone().ok_or_else(Problem::not_found)
}

pub(super) async fn put(
    State(app): State<Shared>,
    Path(key): Path<String>,
    Asked(query): Asked<SignedQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let key = ObjectKey::parse(&key).map_err(|_| Refused::Signature)?;
    let sent = Sent {
        content_type: text(&headers, header::CONTENT_TYPE),
        content_length: text(&headers, header::CONTENT_LENGTH).and_then(|length| length.parse().ok()),
    };
    let disk = local(&app)?;
    let admitted = receive::admit(&app.uploads, &disk, &key, &query, &sent).await?;
    let bytes = body.into_data_stream();
    // The client may hang up at any byte: what has begun comes to its end, or leaves nothing.
    let task = app.clone();
    let received = app
        .core
        .verbs
        .spawn(
            async move { receive::receive(&task.uploads, &disk, admitted, &key, query.sha256, bytes).await },
        )
        .await
        .map_err(|_| Problem::internal())?;
    let etag = format!("\"{}\"", received?);
    Ok((StatusCode::OK, [(header::ETAG, etag)]).into_response())
}

/// GET and HEAD. The row is asked, so a URL dies with its file.
pub(super) async fn get(
    State(app): State<Shared>,
    method: Method,
    Path(key): Path<String>,
    Asked(query): Asked<SignedQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let key = ObjectKey::parse(&key).map_err(|_| Refused::Signature)?;
    let disk = local(&app)?;
    let Some(etag) = query.etag.clone().filter(|_| disk.signing_key().verify("GET", &key, &query)) else {
        return Err(Refused::Signature.into());
    };
    if app.core.clock.now() >= query.expires {
        return Err(Refused::Expired.into());
    }
    let id =
        key.as_str().rsplit('/').next().and_then(|part| part.parse().ok()).ok_or_else(Problem::not_found)?;
    let file = app.core.catalog.file(id).await.map_err(VerbError::from)?.ok_or_else(Problem::not_found)?;
    // Of a file in work only workers have URLs.
    if file.status != Status::Ready && !file.status.is_working() {
        return Err(Refused::Ended.into());
    }
    let meta = app.core.blobs.head(&key, None).await.map_err(found)?;
    if meta.etag != etag {
        return Err(found(BlobError::Changed));
    }
    // Ranges are for GET alone.
    let wanted =
        if method == Method::GET { ByteRange::wanted(&headers, &etag, meta.size) } else { Wanted::Whole };
    let (status, range) = match wanted {
        Wanted::Whole => (StatusCode::OK, ByteRange { start: 0, length: meta.size }),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Impossible => {
            let headers = [(header::CONTENT_RANGE, format!("bytes */{}", meta.size))];
            return Ok((headers, Problem::range_not_satisfiable(meta.size)).into_response());
        }
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        let transfer = app.uploads.transfers.begin(&file.tenant).ok_or(Refused::Busy)?;
        let pin = Pin { etag: etag.clone(), version_id: None };
        let bytes = app.core.blobs.get(&key, &pin, range.start, Some(range.length)).await.map_err(found)?;
        // Until the last piece was taken, or the client has gone.
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
    set(header::CONTENT_TYPE, query.content_type.unwrap_or_else(|| "application/octet-stream".into()));
    set(header::ETAG, format!("\"{etag}\""));
    set(header::ACCEPT_RANGES, "bytes".into());
    if status == StatusCode::PARTIAL_CONTENT {
        let last = range.start + range.length - 1;
        set(header::CONTENT_RANGE, format!("bytes {}-{last}/{}", range.start, meta.size));
    }
    // What users upload is data: no page of ours runs it.
    let name = encode_part(query.name.as_deref().unwrap_or("file"));
    set(header::CONTENT_DISPOSITION, format!("attachment; filename*=UTF-8''{name}"));
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff".into());
    set(header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'".into());
    set(header::CACHE_CONTROL, "private, no-store".into());
    Ok(response)
}

fn found(error: BlobError) -> Problem {
    match error {
        BlobError::NotFound | BlobError::Changed => Refused::Ended.into(),
        other => VerbError::from(other).into(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByteRange {
    start: u64,
    length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Whole,
    Part(ByteRange),
    Impossible,
}

impl ByteRange {
    /// One range is served; several, or one that cannot be read, mean the whole, as RFC 9110 allows.
    fn wanted(headers: &HeaderMap, etag: &str, size: u64) -> Wanted {
        if let Some(condition) = text(headers, header::IF_RANGE)
            && condition != format!("\"{etag}\"")
        {
            return Wanted::Whole;
        }
        text(headers, header::RANGE).map_or(Wanted::Whole, |range| ByteRange::parse(&range, size))
    }

    fn parse(range: &str, size: u64) -> Wanted {
        let Some((first, last)) = range
            .strip_prefix("bytes=")
            .and_then(|r| r.split_once('-'))
            .filter(|(_, last)| !last.contains(','))
        else {
            return Wanted::Whole;
        };
        let (start, end) = match (first.trim().parse::<u64>(), last.trim()) {
            (Ok(start), "") => (start, size),
            (Ok(start), last) => match last.parse::<u64>() {
                Ok(last) if last >= start => (start, last.saturating_add(1).min(size)),
                _ => return Wanted::Whole,
            },
            (Err(_), last) if first.trim().is_empty() => match last.parse::<u64>() {
                Ok(count) => (size.saturating_sub(count), size),
                Err(_) => return Wanted::Whole,
            },
            _ => return Wanted::Whole,
        };
        if start >= size || start >= end {
            return Wanted::Impossible;
        }
        Wanted::Part(ByteRange { start, length: end - start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let part = |start, length| Wanted::Part(ByteRange { start, length });
        for (text, wanted) in [
            ("bytes=0-4", part(0, 5)),
            ("bytes=5-", part(5, 5)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-99", part(0, 10)),
            ("bytes=8-99", part(8, 2)),
            ("bytes=10-", Wanted::Impossible),
            ("bytes=-0", Wanted::Impossible),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
            ("bytes=x", Wanted::Whole),
        ] {
            assert_eq!(ByteRange::parse(text, 10), wanted, "{text}");
        }
        assert_eq!(ByteRange::parse("bytes=0-0", 0), Wanted::Impossible);
    }
}
