//! The call with which object stores report new objects. Its senders cannot all set a header, so the secret is accepted in
//! three places.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use serde::Serialize;
use subtle::ConstantTimeEq as _;
use utoipa::ToSchema;
use wharfinger_engines::object_events::{Message, SnsError, parse};

use super::problem::Problem;
use super::{BODY_TIMEOUT, Shared, discard_rest};
use crate::hooks::{Report, object_created};

/// The largest message of the senders is 1 MiB (Event Grid).
const HOOK_BYTES_MAX: usize = 2 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// What happened to the reported objects.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HookReport)]
pub(super) struct HookView {
    /// Uploads that are confirmed now.
    #[schema(example = 1)]
    confirmed: u64,
    /// Uploads that were confirmed before.
    #[schema(example = 0)]
    repeated: u64,
    /// The file has ended, or its object is missing or not what was announced.
    #[schema(example = 0)]
    refused: u64,
    /// Objects of other buckets or without a file.
    #[schema(example = 0)]
    unknown: u64,
    /// Objects whose file could not be read. The server's log has the reason.
    #[schema(example = 0)]
    failed: u64,
    /// Only for the first message of Azure Event Grid: the code that it wants back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "512d38b6-c7b8-40c8-89fe-f46f9e9622b6")]
    validation_response: Option<String>,
}

impl From<Report> for HookView {
    fn from(report: Report) -> Self {
        let Report { confirmed, repeated, refused, unknown, failed } = report;
        HookView { confirmed, repeated, refused, unknown, failed, validation_response: None }
    }
}

/// Report new objects
///
/// For the notifications of an object store: S3 (directly, by SNS or by EventBridge), MinIO, Google Pub/Sub, Azure Event Grid.
/// Uploads whose object is in the store and correct are confirmed, although their client has disappeared. Send the secret
/// WHARFINGER_HOOK_SECRET as a bearer token, as the password of basic authentication, or as the query parameter `token`.
#[utoipa::path(
    post, path = "/hooks/object-created", tag = "files", operation_id = "reportObjects",
    params(("token" = Option<String>, Query, example = "9f2c…", description = "The secret, for senders that cannot set a header")),
    request_body(content = Object, description = "A message as the sender makes it",
        example = json!({ "Records": [{ "eventName": "ObjectCreated:Put",
            "s3": { "bucket": { "name": "my-bucket" }, "object": { "key": "wharf/uploads/acme/ann/01a1ddbc-73f6-7ed5-96bc-09d1851af368" } } }] })),
    responses(
        (status = 200, body = HookView, description = "Also for repeated messages and unknown objects"),
        (status = 400, body = Problem, description = "`invalid_request`: not a known message"),
        (status = 401, body = Problem, description = "`unauthorized`: the secret is wrong or missing"),
        (status = 403, body = Problem, description = "`forbidden`: the signature of SNS is wrong"),
        (status = 404, body = Problem, description = "`not_found`: WHARFINGER_HOOK_SECRET is not set"),
        (status = 413, body = Problem, description = "`too_large`"),
        (status = 503, body = Problem, description = "`unavailable`: the catalog or the store does not answer. Send the message again"),
    ),
)]
pub(super) async fn object_created_call(
    State(app): State<Shared>,
    request: Request,
) -> Result<Json<HookView>, Response> {
    let (parts, mut body) = request.into_parts();
    if !app.core.settings.hooks.is_on() {
        return Err(off().into_response());
    }
    if !is_authorized(&app, &parts).await {
        return Err(unauthorized());
    }
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, read(&app, &mut body)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(problem)) => {
            let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard_rest(body)).await;
            return Err(problem.into_response());
        }
        Err(_) => return Err(Problem::interrupted().into_response()),
    };
    // The message is complete, so it is handled even if the sender hangs up now.
    let task = app.clone();
    let handled = app.core.verbs.spawn(async move { handle(&task, &bytes).await }).await;
    match handled {
        Ok(Ok(view)) => Ok(Json(view)),
        Ok(Err(problem)) => Err(problem.into_response()),
        Err(panicked) => {
            tracing::error!(error = %panicked, "request handler panicked");
            Err(Problem::internal().into_response())
        }
    }
}

/// The handshake of Azure Event Grid for the CloudEvents schema.
pub(super) async fn object_created_options(State(app): State<Shared>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    if !app.core.settings.hooks.is_on() {
        return off().into_response();
    }
    if !is_authorized(&app, &parts).await {
        return unauthorized();
    }
    let mut answer = StatusCode::OK.into_response();
    if let Some(origin) = parts.headers.get("webhook-request-origin") {
        answer.headers_mut().insert("webhook-allowed-origin", origin.clone());
        answer.headers_mut().insert("webhook-allowed-rate", HeaderValue::from_static("*"));
    }
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST, OPTIONS"));
    answer
}

async fn handle(app: &Shared, body: &[u8]) -> Result<HookView, Problem> {
    let objects = match parse(body).map_err(|problem| Problem::invalid("body", problem))? {
        Message::Created(objects) => objects,
        Message::AzureValidation { code } => {
            return Ok(HookView { validation_response: Some(code), ..Report::default().into() });
        }
        Message::Sns(message) => app.hooks.sns.accept(&message).await.map_err(|error| match error {
            SnsError::Refused(why) => {
                tracing::warn!(error = why, "message of SNS refused");
                Problem::forbidden(&why)
            }
            SnsError::Unavailable(why) => {
                tracing::warn!(error = why, "cannot verify a message of SNS");
                Problem::unavailable()
            }
        })?,
    };
    Ok(object_created(&app.uploads, objects).await?.into())
}

async fn read(app: &Shared, body: &mut Body) -> Result<Vec<u8>, Problem> {
    let mut reservation = app.request_bodies.reservation_for("");
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > HOOK_BYTES_MAX {
        return Err(Problem::body_too_large(HOOK_BYTES_MAX));
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Problem::interrupted())?.into_data() else { continue };
        if bytes.len() + data.len() > HOOK_BYTES_MAX {
            return Err(Problem::body_too_large(HOOK_BYTES_MAX));
        }
        if !reservation.grow(data.len()) {
            return Err(Problem::unavailable());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

async fn is_authorized(app: &Shared, parts: &Parts) -> bool {
    let given = [bearer(&parts.headers), basic_password(&parts.headers), query_token(parts)];
    let settings = &app.core.settings.hooks;
    let is_secret = |given: &String| {
        settings.secret.as_ref().is_some_and(|secret| secret.as_bytes().ct_eq(given.as_bytes()).into())
    };
    if given.iter().flatten().any(is_secret) {
        return true;
    }
    match (&app.hooks.pub_sub, &given[0]) {
        (Some(tokens), Some(token)) => tokens.accept(token, app.core.clock.now()).await,
        _ => false,
    }
}

fn authorization<'h>(headers: &'h HeaderMap, scheme: &str) -> Option<&'h str> {
    let (given, value) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    given.eq_ignore_ascii_case(scheme).then(|| value.trim())
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    authorization(headers, "bearer").map(str::to_owned)
}

fn basic_password(headers: &HeaderMap) -> Option<String> {
    let decoded = STANDARD.decode(authorization(headers, "basic")?).ok()?;
    Some(String::from_utf8(decoded).ok()?.split_once(':')?.1.to_owned())
}

fn query_token(parts: &Parts) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Query {
        token: Option<String>,
    }
    axum::extract::Query::<Query>::try_from_uri(&parts.uri).ok()?.0.token
}

fn off() -> Problem {
    let detail = "Hooks are off. Set WHARFINGER_HOOK_SECRET to use them.";
    Problem::new(StatusCode::NOT_FOUND, "not_found", "Not found", detail)
}

/// SNS sends the password of its URL only after an answer that asks for it.
fn unauthorized() -> Response {
    let detail = "Send WHARFINGER_HOOK_SECRET as a bearer token, as a basic password, or as the query parameter `token`.";
    let mut answer = Problem::unauthorized(detail).into_response();
    answer
        .headers_mut()
        .append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"wharfinger hooks\""));
    answer
}
