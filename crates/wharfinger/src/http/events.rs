//! The call that accepts events: all events of a request or none. It answers when they are stored as `INGEST_ACK` says.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{StatusCode, header};
use http_body_util::BodyExt as _;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_events::body::BodyError;
use wharfinger_events::encoding::{Encoding, InflateError};
use wharfinger_lifecycle::id::TenantId;

use super::auth::EventsAuth;
use super::problem::Problem;
use super::{BODY_TIMEOUT, Shared, discard_rest};
use crate::ingest::accept::{AcceptError, IncomingBody};
use crate::ingest::{Ingest, IngestError};

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// The number of events in the request.
    #[schema(example = 2)]
    accepted: usize,
}

const FIRST_BYTES_MAX: usize = 1 << 20;
/// How long the rest of a rejected body is read. A client that is still sending reads the answer only after that.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Send events
///
/// The body is a JSON object, an array of objects, or one JSON object per line. `Content-Encoding` can be `gzip` or `zstd`.
/// A token with the role `ingest` can make only this call. All events of a request are accepted or none. 202 means that they are stored as `INGEST_ACK` says.
#[utoipa::path(
    post, path = "/api/v2/events", tag = "events", operation_id = "takeEvents",
    request_body(content(
            (Object = "application/json", example = json!({"what": "page viewed", "path": "/pricing"})),
            (String = "application/x-ndjson", example = "{\"n\":1}\n{\"n\":2}\n"),
        ),
        description = "At most INGEST_MAX_INFLATED_BYTES after decompression. An event has at most 1 MiB and 64 levels"),
    responses(
        (status = 202, body = Accepted, description = "All events are accepted"),
        (status = 400, body = Problem, description = "`invalid_request`: names the first bad line. No event is accepted"),
        (status = 401, body = Problem, description = "`unauthorized`"),
        (status = 403, body = Problem, description = "`forbidden`: the role `worker` or `metrics`"),
        (status = 413, body = Problem, description = "`too_large`"),
        (status = 415, body = Problem, description = "`unsupported_encoding`"),
        (status = 429, body = Problem, description = "`rate_limited`: too many events of this tenant or of all tenants wait to be stored; see `Retry-After`"),
        (status = 503, body = Problem, description = "`unavailable`: the events cannot be stored as `INGEST_ACK` says now"),
    ),
)]
pub(super) async fn take(
    State(app): State<Shared>,
    request: Request,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    let (mut parts, mut body) = request.into_parts();
    let EventsAuth(caller) = EventsAuth::from_request_parts(&mut parts, &app).await?;
    let Some(ingest) = app.ingest.get() else { return Err(Problem::not_this_process("ingest", &app.roles)) };
    let encoding = match parts.headers.get(header::CONTENT_ENCODING) {
        None => Encoding::Identity,
        Some(value) => value.to_str().ok().and_then(Encoding::parse).ok_or_else(unsupported_encoding)?,
    };
    let incoming = match tokio::time::timeout(BODY_TIMEOUT, read(ingest, &caller.tenant, &mut body)).await {
        Ok(Ok(incoming)) => incoming,
        Ok(Err(ReadError::Rejected(error))) => {
            let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard_rest(body)).await;
            return Err(problem_of(error, ingest));
        }
        Ok(Err(ReadError::Disconnected)) | Err(_) => return Err(Problem::interrupted()),
    };
    let accepting = ingest.clone();
    // The body is complete, so the events are accepted even if the client hangs up now.
    let verb = app.core.verbs.spawn(async move { accepting.accept(&caller, encoding, incoming).await });
    match verb.await {
        Ok(Ok(accepted)) => Ok((StatusCode::ACCEPTED, Json(Accepted { accepted }))),
        Ok(Err(error)) => Err(problem_of(error, ingest)),
        Err(panicked) => {
            tracing::error!(error = %panicked, "request handler panicked");
            Err(Problem::internal())
        }
    }
}

enum ReadError {
    Rejected(AcceptError),
    Disconnected,
}

async fn read(ingest: &Arc<Ingest>, tenant: &TenantId, body: &mut Body) -> Result<IncomingBody, ReadError> {
    let mut incoming = ingest.incoming(tenant).map_err(ReadError::Rejected)?;
    // Memory is reserved as bytes arrive. A client that announces a large body and sends nothing reserves little.
    incoming.reserve(usize::try_from(body.size_hint().lower()).unwrap_or(0).min(FIRST_BYTES_MAX));
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| ReadError::Disconnected)?.into_data() {
            incoming.add(&data).map_err(ReadError::Rejected)?;
        }
    }
    Ok(incoming)
}

fn problem_of(error: AcceptError, ingest: &Ingest) -> Problem {
    match error {
        AcceptError::Ingest(full @ (IngestError::MemoryFull | IngestError::OverTenantShare)) => {
            Problem::rate_limited(full)
        }
        AcceptError::Ingest(not_now) => Problem::unavailable_because(not_now),
        AcceptError::Body(BodyError::Empty) => Problem::invalid("body", BodyError::Empty),
        AcceptError::Body(BodyError::Line { line, problem }) => Problem::bad_line(line, &problem),
        AcceptError::Body(BodyError::TooLarge { bytes_max }) => Problem::too_large("body", bytes_max),
        AcceptError::Encoding(InflateError::TooLarge) => Problem::too_large("body", ingest.bytes_max()),
        AcceptError::Body(BodyError::NoMemory) | AcceptError::Encoding(InflateError::NoMemory) => {
            Problem::rate_limited(IngestError::MemoryFull)
        }
        AcceptError::Encoding(damaged) => Problem::invalid("body", damaged),
    }
}

fn unsupported_encoding() -> Problem {
    let detail = "The header `Content-Encoding` must be `gzip`, `zstd` or `identity`.";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", "Unsupported encoding", detail)
}
