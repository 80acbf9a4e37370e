//! The HTTP face: one router, one file per resource. A request's body is taken whole before its verb begins,
//! and the verb runs to its end even when its client hangs up.

mod activity;
pub mod auth;
mod batches;
mod blobs;
mod dashboard;
mod dlq;
mod events;
mod extract;
mod files;
mod health;
mod maintenance;
mod orphans;
mod page;
mod places;
mod problem;
mod quota;
mod server;
mod stream;
mod stuck;
mod sweeps;
mod wire;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use axum::{Extension, Router};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::openapi::path::{HttpMethod, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::app::App;
use crate::core::Role;
use crate::memory_budget::Hold;
use crate::roles::ProcessRole;
use crate::telemetry::metric;
use crate::telemetry::traces::for_caller;
pub use places::ConnectionLimits;
use problem::Problem;
pub use server::serve;

pub type Shared = Arc<App>;

const BODY_BYTES_MAX: usize = 64 * 1024;
/// What an outside worker made of a file.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
const OUTPUTS: &str = "/api/v2/workers/jobs/{jobId}/complete";
/// A batch announces many files at once.
const BATCH_BODY_BYTES_MAX: usize = 16 << 20;
const BATCHES: &str = "/api/v2/batches";
const DOCUMENT: &str = "/openapi.json";
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Of a body that is too large so much is still taken, and thrown away.
const LEFTOVER_BYTES_MAX: usize = 64 << 20;
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(5);
const VERB_TIMEOUT: Duration = Duration::from_secs(60);
/// A sweep looks at everything there is; who asks for one by hand waits for its result.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(6 * 3_600);
const SEARCH: &str = "/api/v2/search";
const SWEEP_RUNS: [&str; 2] =
    ["/api/v2/maintenance/sweeps/{name}/run", "/api/v1/maintenance/cleanup/trigger"];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Wharfinger",
        description = "Quota-guarded direct uploads that are confirmed or reclaimed. Errors are RFC 9457 problem \
            documents; switch on their `code`."
    ),
    tags(
        (name = "uploads", description = "init → PUT to the signed URL → confirm; what is not confirmed is reclaimed"),
        (name = "batches", description = "Uploads that begin together, and whose unconfirmed rest ends together"),
        (name = "quota", description = "What a tenant may hold and does hold"),
        (name = "notifications", description = "What happened to one's files without oneself"),
        (name = "workers", description = "Stages worked on by others: lease → work → complete or fail. Role `worker` or `operator`"),
        (name = "dashboard", description = "How uploads stand, and changes as they happen"),
        (name = "recovery", description = "Files on their way that do not get on"),
        (name = "dead letters", description = "Files that no stage will try again unless somebody says so"),
        (name = "events", description = "Events to object storage, as gzip JSONL"),
        (name = "maintenance", description = "For admins (their tenant) and operators"),
        (name = "operations", description = "Health, readiness; Prometheus metrics are at /metrics"),
    ),
    modifiers(&BearerTokens),
    security(("bearer" = [])),
)]
struct Document;

struct BearerTokens;

impl Modify for BearerTokens {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
        openapi
            .components
            .get_or_insert_default()
            .add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
}

fn documented() -> (Router<Shared>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(files::init))
        .routes(routes!(files::reissue))
        .routes(routes!(files::confirm))
        .routes(routes!(files::list))
        .routes(routes!(files::get, files::delete))
        .routes(routes!(files::history))
        .routes(routes!(files::chunks))
        .routes(routes!(files::search))
        .routes(routes!(files::download))
        .routes(routes!(workers::lease))
        .routes(routes!(workers::heartbeat))
        .routes(routes!(workers::complete))
        .routes(routes!(workers::fail))
        .routes(routes!(workers::input))
        .routes(routes!(dashboard::get))
        .routes(routes!(dashboard::get_trend))
        .routes(routes!(stuck::list))
        .routes(routes!(stuck::retry))
        .routes(routes!(stuck::retry_all))
        .routes(routes!(dlq::list))
        .routes(routes!(dlq::redrive))
        .routes(routes!(dlq::discard))
        .routes(routes!(batches::open))
        .routes(routes!(batches::get))
        .routes(routes!(batches::complete))
        .routes(routes!(batches::cancel))
        .routes(routes!(quota::get))
        .routes(routes!(quota::set))
        .routes(routes!(quota::list))
        .routes(routes!(orphans::get))
        .routes(routes!(maintenance::trigger))
        .routes(routes!(maintenance::status))
        .routes(routes!(maintenance::pending))
        .routes(routes!(maintenance::notifications))
        .routes(routes!(maintenance::spool))
        .routes(routes!(stream::get))
        .routes(routes!(sweeps::list))
        .routes(routes!(sweeps::run))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .split_for_parts()
}

pub fn router(app: Shared) -> Router {
    if !app.roles.has(ProcessRole::Api) {
        return without_api(app);
    }
    let (api, mut document) = documented();
    // Its bodies are taken as they come, within what all of them may hold.
    let (events, of_events) = OpenApiRouter::new().routes(routes!(events::take)).split_for_parts();
    document.merge(of_events);
    describe_other_names(&mut document);
    let api = api
        .route("/files/init", post(files::init))
        .route("/files/{id}/confirm", post(files::confirm))
        .route("/api/v1/documents/{id}", delete(files::delete))
        .route("/api/{*rest}", any(async || Problem::not_found()))
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), to_the_end));
    let blobs = Router::new().route("/blobs/{*key}", put(blobs::put).get(blobs::get));
    let plain = Router::new().route("/", get(page::page)).route("/dashboard/{*name}", get(page::asset));
    api.merge(events.layer(DefaultBodyLimit::disable()))
        .merge(blobs)
        .merge(plain)
        .merge(description(&document))
        .merge(SwaggerUi::new("/docs").config(DOCUMENT.into()))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::other_method())
        .layer(Extension(health::LastAnswer::default()))
        .layer(middleware::from_fn(observe))
        .layer(middleware::from_fn_with_state(app.clone(), close_when_draining))
        .layer(cors(&app.core.settings.cors_origins))
        // Outside of everything that answers, preflights too.
        .layer(middleware::from_fn(secure))
        .with_state(app)
}

/// The document is made once and shared by all answers: it is large, and anybody may ask for it and leave it unread.
fn description<S: Clone + Send + Sync + 'static>(document: &utoipa::openapi::OpenApi) -> Router<S> {
    let text = Bytes::from(document.to_json().expect("a document is JSON"));
    let answer = async move || ([(header::CONTENT_TYPE, "application/json")], text.clone());
    Router::new().route(DOCUMENT, get(answer))
}

/// The same calls under their other names.
fn describe_other_names(document: &mut utoipa::openapi::OpenApi) {
    for (method, name, same_as) in [
        (HttpMethod::Post, "/files/init", "/api/v2/files/init"),
        (HttpMethod::Post, "/files/{id}/confirm", "/api/v2/files/{id}/confirm"),
        (HttpMethod::Delete, "/api/v1/documents/{id}", "/api/v2/files/{id}"),
    ] {
        let found = document.paths.get_path_operation(same_as, method.clone()).cloned();
        let Some(mut call) = found else { continue };
        call.operation_id = call.operation_id.map(|id| format!("{id}ByOtherName"));
        call.description = Some(format!("The same as `{same_as}`."));
        document.paths.paths.insert(name.to_owned(), PathItem::new(method, call));
    }
}

/// At the address that is for metrics alone.
pub fn metrics_router(app: Shared) -> Router {
    Router::new()
        .route("/metrics", get(health::metrics_for_all))
        .fallback(async || Problem::not_found())
        .layer(middleware::from_fn(secure))
        .with_state(app)
}

/// What every process answers, events where it is there for them, and nothing else.
fn without_api(app: Shared) -> Router {
    let events = match app.roles.has(ProcessRole::Ingest) {
        true => Router::new().route("/api/v2/events", post(events::take)).layer(DefaultBodyLimit::disable()),
        false => Router::new(),
    };
    events
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .fallback(async |State(app): State<Shared>| Problem::not_this_process("api", &app.roles))
        .method_not_allowed_fallback(async || Problem::other_method())
        .layer(Extension(health::LastAnswer::default()))
        .layer(middleware::from_fn(observe))
        .layer(middleware::from_fn_with_state(app.clone(), close_when_draining))
        .layer(cors(&app.core.settings.cors_origins))
        // Outside of everything that answers, preflights too.
        .layer(middleware::from_fn(secure))
        .with_state(app)
}

/// Pages of these origins may call. So may our own, opened by another name than the store's URLs have (`localhost` for
/// `127.0.0.1`): it sends bytes there.
fn cors(origins: &[String]) -> CorsLayer {
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    let is_allowed =
        move |origin: &HeaderValue, request: &Parts| origins.contains(origin) || is_our_page(origin, request);
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            header::CONTENT_ENCODING,
            header::RANGE,
            HeaderName::from_static("idempotency-key"),
        ])
        .expose_headers([header::ETAG, header::LOCATION, header::RETRY_AFTER])
        .max_age(Duration::from_secs(3_600))
}

/// Whether both are this very machine and port, by any of its names.
fn is_our_page(origin: &HeaderValue, request: &Parts) -> bool {
    fn loopback_port(authority: &str) -> Option<&str> {
        let names = ["localhost", "127.0.0.1", "[::1]"];
        let rest = names.iter().find_map(|name| authority.strip_prefix(name))?;
        if rest.is_empty() { Some("80") } else { rest.strip_prefix(':') }
    }
    let from = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://")).and_then(loopback_port);
    let host = request.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let to = host.or_else(|| request.uri.authority().map(|to| to.as_str())).and_then(loopback_port);
    request.uri.path().starts_with("/blobs/") && from.is_some() && from == to
}

/// Takes the whole body, then runs the handler on a task of its own: a client that hangs up before the last
/// byte has asked for nothing, one that hangs up later does not leave a verb half-way.
async fn to_the_end(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let (mut parts, mut body) = request.into_parts();
    let read = match body.is_end_stream() {
        true => Ok((Bytes::new(), None)),
        false => {
            let reading = read_body(&app, &mut parts, &mut body);
            tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| Err(Problem::interrupted()))
        }
    };
    let (bytes, held) = match read {
        Ok(read) => read,
        Err(problem) => {
            // HTTP/2 tells its client at once that the rest is not wanted.
            if parts.version < Version::HTTP_2 {
                let _ = tokio::time::timeout(LEFTOVER_TIMEOUT, take_leftover(body)).await;
            }
            return problem.into_response();
        }
    };
    let route =
        parts.extensions.get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
    let timeout = if SWEEP_RUNS.contains(&route.as_str()) { SWEEP_TIMEOUT } else { VERB_TIMEOUT };
    let traceparent =
        parts.headers.get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let request = Request::from_parts(parts, Body::from(bytes));
    if route == SEARCH {
        // It changes nothing, and reads a lot: it ends with its request.
        let searched = tokio::time::timeout(timeout, for_caller(traceparent.as_deref(), next.run(request)));
        return searched.await.unwrap_or_else(|_| Problem::unavailable().into_response());
    }
    let verb = app.core.verbs.spawn(async move {
        let answer = for_caller(traceparent.as_deref(), next.run(request)).await;
        drop(held);
        answer
    });
    match tokio::time::timeout(timeout, verb).await {
        Ok(Ok(response)) => response,
        Ok(Err(panicked)) => {
            tracing::error!(error = %panicked, "a handler panicked");
            Problem::internal().into_response()
        }
        Err(_) => Problem::unavailable().into_response(),
    }
}

/// The whole body of a caller with a token, and the memory that it holds.
async fn read_body(
    app: &Shared,
    parts: &mut Parts,
    body: &mut Body,
) -> Result<(Bytes, Option<Hold>), Problem> {
    let session = auth::authenticate(parts, app).await?;
    let limit_bytes = body_limit_bytes(parts, session.caller.role);
    let mut hold = app.request_bodies.hold_for(session.caller.tenant.as_str());
    parts.extensions.insert(session);
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Problem::interrupted())?.into_data() else { continue };
        if bytes.len() + data.len() > limit_bytes {
            return Err(Problem::body_too_large(limit_bytes));
        }
        if !hold.grow(data.len()) {
            return Err(Problem::rate_limited("Too many large requests at once. Try again in a moment."));
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), Some(hold)))
}

/// A client that is still sending does not read our answer, and gets none once the connection is closed on it.
async fn take_leftover(mut body: Body) {
    let mut taken_bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        taken_bytes += frame.data_ref().map_or(0, |data| data.len());
        if taken_bytes > LEFTOVER_BYTES_MAX {
            return;
        }
    }
}

fn body_limit_bytes(parts: &Parts, role: Role) -> usize {
    match parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str) {
        BATCHES if role != Role::Worker => BATCH_BODY_BYTES_MAX,
        OUTPUTS if matches!(role, Role::Worker | Role::Operator) => OUTPUT_BYTES_MAX,
        _ => BODY_BYTES_MAX,
    }
}

/// A connection that is kept would be cut when the process stops, perhaps under a request: it ends with an answer.
async fn close_when_draining(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    if is_http1 && app.core.draining.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Headers for browsers on every answer that does not set its own: no page, no frame, no cache.
async fn secure(request: Request, next: Next) -> Response {
    let is_docs = request.uri().path().starts_with("/docs");
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let policy = if is_docs { DOCS_POLICY } else { "default-src 'none'; frame-ancestors 'none'" };
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, policy);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::CACHE_CONTROL, "no-store");
    response
}

/// Swagger's page has styles inline, and no scripts.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn observe(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let started = Instant::now();
    let response = next.run(request).await;
    let took = started.elapsed();
    metric::request(&route, &method, response.status(), took);
    metric::dashboard_request(&route, took);
    response
}

#[cfg(test)]
mod tests {
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    /// Thousands of answers that nobody reads take no more than one.
    #[tokio::test]
    async fn all_answers_share_one_document() {
        let router = TowerToHyperService::new(description::<()>(&Document::openapi()));
        let mut pieces = Vec::new();
        for _ in 0..2 {
            let request = Request::get(DOCUMENT).body(Body::empty()).expect("a request");
            let mut answer = router.call(request).await.expect("an answer");
            assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
            let frame = answer.body_mut().frame().await.expect("a piece").expect("whole");
            pieces.push(frame.into_data().expect("bytes"));
        }
        assert!(pieces[0].len() > 1_000 && pieces[0].as_ptr() == pieces[1].as_ptr());
    }
}
