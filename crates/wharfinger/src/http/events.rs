//! Events: taken whole or not at all, and answered when they are where the settings promise them to be.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{StatusCode, header};
use http_body_util::BodyExt as _;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_events::body::BadBody;
use wharfinger_events::encoding::{Encoding, NotInflated};
use wharfinger_lifecycle::id::TenantId;

use super::auth::UserAuth;
use super::problem::Problem;
use super::{BODY_TIMEOUT, Shared, take_leftover};
use crate::ingest::accept::{Incoming, Refusal};
use crate::ingest::{Ingest, NotTaken};

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// How many events there were.
    #[schema(example = 2)]
    accepted: usize,
}

const FIRST_BYTES_MAX: usize = 1 << 20;
/// Who sends more than may be taken reads the answer only if we read on.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes events: a JSON object, an array of objects, or a JSON object on each line.
///
/// `Content-Encoding: gzip` and `zstd` are taken. All events of a request are accepted or none; 202 means that they are
/// where `INGEST_ACK` promises them to be.
#[utoipa::path(
    post, path = "/api/v2/events", tag = "events", operation_id = "takeEvents",
    request_body(content(
            (Object = "application/json", example = json!({"what": "page viewed", "path": "/pricing"})),
            (String = "application/x-ndjson", example = "{\"n\":1}\n{\"n\":2}\n"),
        ),
        description = "Up to INGEST_MAX_INFLATED_BYTES when inflated; an event up to 1 MiB and 64 levels deep"),
    responses(
        (status = 202, body = Accepted, description = "All of them are accepted"),
        (status = 400, body = Problem, description = "`invalid_request`: the first bad line is named, none is accepted"),
        (status = 401, body = Problem, description = "`unauthorized`"),
        (status = 413, body = Problem, description = "`too_large`"),
        (status = 415, body = Problem, description = "`unsupported_encoding`"),
        (status = 429, body = Problem, description = "`rate_limited`: too many events wait to be stored, of all tenants or of this one; see `Retry-After`"),
        (status = 503, body = Problem, description = "`unavailable`: they cannot be kept as promised at this moment"),
    ),
)]
pub(super) async fn take(
    State(app): State<Shared>,
    request: Request,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    let (mut parts, mut body) = request.into_parts();
    let UserAuth(caller) = UserAuth::from_request_parts(&mut parts, &app).await?;
    let Some(ingest) = app.ingest.get() else { return Err(Problem::not_this_process("ingest", &app.roles)) };
    let encoding = match parts.headers.get(header::CONTENT_ENCODING) {
        None => Encoding::Identity,
        Some(value) => value.to_str().ok().and_then(Encoding::named).ok_or_else(unsupported_encoding)?,
    };
    let incoming = match tokio::time::timeout(BODY_TIMEOUT, read(ingest, &caller.tenant, &mut body)).await {
        Ok(Ok(incoming)) => incoming,
        Ok(Err(NotRead::Refused(refusal))) => {
            let _ = tokio::time::timeout(LEFTOVER_TIMEOUT, take_leftover(body)).await;
            return Err(refused(refusal, ingest));
        }
        Ok(Err(NotRead::Broken)) | Err(_) => return Err(Problem::interrupted()),
    };
    let taking = ingest.clone();
    // A client that hangs up now has sent everything: what it sent is accepted all the same.
    let verb = app.core.verbs.spawn(async move { taking.accept(&caller, encoding, incoming).await });
    match verb.await {
        Ok(Ok(accepted)) => Ok((StatusCode::ACCEPTED, Json(Accepted { accepted }))),
        Ok(Err(refusal)) => Err(refused(refusal, ingest)),
        Err(panicked) => {
            tracing::error!(error = %panicked, "a handler panicked");
            Err(Problem::internal())
        }
    }
}

enum NotRead {
    Refused(Refusal),
    Broken,
}

async fn read(ingest: &Arc<Ingest>, tenant: &TenantId, body: &mut Body) -> Result<Incoming, NotRead> {
    let mut incoming = ingest.incoming(tenant).map_err(NotRead::Refused)?;
    // Room is taken as it comes: who announces much and sends nothing holds nothing.
    incoming.expect(usize::try_from(body.size_hint().lower()).unwrap_or(0).min(FIRST_BYTES_MAX));
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| NotRead::Broken)?.into_data() {
            incoming.add(&data).map_err(NotRead::Refused)?;
        }
    }
    Ok(incoming)
}

fn refused(refusal: Refusal, ingest: &Ingest) -> Problem {
    match refusal {
        Refusal::NotTaken(full @ (NotTaken::NoRoom | NotTaken::OverShare)) => Problem::rate_limited(full),
        Refusal::NotTaken(not_now) => Problem::unavailable_because(not_now),
        Refusal::Body(BadBody::Empty) => Problem::invalid("body", BadBody::Empty),
        Refusal::Body(BadBody::Line { line, problem }) => Problem::bad_line(line, &problem),
        Refusal::Body(BadBody::TooLarge { bytes_max }) => Problem::too_large("body", bytes_max),
        Refusal::Encoding(NotInflated::TooLarge) => Problem::too_large("body", ingest.bytes_max()),
        Refusal::Body(BadBody::NoRoom) | Refusal::Encoding(NotInflated::NoRoom) => {
            Problem::rate_limited(NotTaken::NoRoom)
        }
        Refusal::Encoding(damaged) => Problem::invalid("body", damaged),
    }
}

fn unsupported_encoding() -> Problem {
    let detail = "`Content-Encoding` may be gzip, zstd or identity";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", "Unsupported encoding", detail)
}
