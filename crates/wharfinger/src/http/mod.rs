//! The HTTP API: one router, one file per resource. The body of an API call is read completely before its handler
//! starts. The handler then runs to its end, even if the client hangs up. Bytes of files, events, searches and the
//! event stream are handled in other ways.

mod access_log;
mod activity;
mod audit;
pub mod auth;
mod batches;
mod blobs;
mod connection_slots;
mod dashboard;
mod deletions;
mod dlq;
mod events;
mod extract;
mod files;
mod health;
mod hooks;
mod keys;
mod maintenance;
mod orphans;
mod page;
mod policy;
mod problem;
mod quota;
mod server;
mod session;
mod stream;
mod stuck;
mod sweep_runs;
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
use crate::memory_budget::Reservation;
use crate::roles::ProcessRole;
use crate::telemetry::metric;
use crate::telemetry::traces::for_caller;
use access_log::Logged;
pub use connection_slots::ConnectionLimits;
use problem::Problem;
pub use server::serve;
pub use wire::KeyView;

pub type Shared = Arc<App>;

const BODY_BYTES_MAX: usize = 64 * 1024;
/// The output of a stage, sent by an outside worker.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
const COMPLETE_JOB: &str = "/api/v2/workers/jobs/{jobId}/complete";
/// A batch can hold 10,000 files.
const BATCH_BODY_BYTES_MAX: usize = 16 << 20;
const BATCHES: &str = "/api/v2/batches";
const DOCUMENT: &str = "/openapi.json";
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a body that is too large is still read and discarded.
const DISCARDED_BYTES_MAX: usize = 64 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);
const VERB_TIMEOUT: Duration = Duration::from_secs(60);
/// A sweep may check every file; a manual run answers with its result.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(6 * 3_600);
const SEARCH: &str = "/api/v2/search";
const SWEEP_RUNS: [&str; 3] = [
    "/api/v2/maintenance/sweeps/{name}/run",
    "/api/v2/uploads/orphans/scan",
    "/api/v1/maintenance/cleanup/trigger",
];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Wharfinger",
        description = "Quota-guarded direct uploads that are confirmed or reclaimed. Errors are RFC 9457 problem \
            documents; switch on their `code`."
    ),
    tags(
        (name = "uploads", description = "init → PUT to the signed URL → confirm. An upload that is not confirmed in time is reclaimed"),
        (name = "batches", description = "Uploads that are announced, completed or cancelled together"),
        (name = "quota", description = "Used and allowed bytes of a tenant"),
        (name = "notifications", description = "File events caused by the system"),
        (name = "workers", description = "Stages run by outside workers: lease → work → complete or fail. Role `worker` or `operator`"),
        (name = "dashboard", description = "Figures about uploads, and a live stream of changes"),
        (name = "recovery", description = "Stuck files"),
        (name = "dead letters", description = "Failed files. They are not retried automatically"),
        (name = "events", description = "Stores events in the object store as gzip JSONL"),
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

fn api_routes() -> (Router<Shared>, utoipa::openapi::OpenApi) {
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
        .routes(routes!(files::release))
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
        .routes(routes!(keys::list))
        .routes(routes!(audit::list))
        .routes(routes!(session::get))
        .routes(routes!(policy::get, policy::set))
        .routes(routes!(orphans::get))
        .routes(routes!(orphans::scan))
        .routes(routes!(maintenance::trigger))
        .routes(routes!(maintenance::status))
        .routes(routes!(maintenance::pending))
        .routes(routes!(maintenance::notifications))
        .routes(routes!(maintenance::spool))
        .routes(routes!(stream::get))
        .routes(routes!(sweeps::list))
        .routes(routes!(sweeps::run))
        .routes(routes!(sweep_runs::list))
        .routes(routes!(deletions::list))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .split_for_parts()
}

pub fn router(app: Shared) -> Router {
    if !app.roles.has(ProcessRole::Api) {
        return router_without_api(app);
    }
    let (api, mut document) = api_routes();
    // This handler reads its body itself, within the memory budget of ingest.
    let (events, of_events) = OpenApiRouter::new().routes(routes!(events::take)).split_for_parts();
    document.merge(of_events);
    document_aliases(&mut document);
    let api = api
        .route("/files/init", post(files::init))
        .route("/files/{id}/confirm", post(files::confirm))
        .route("/api/v1/documents/{id}", delete(files::delete))
        .route("/api/{*rest}", any(async || Problem::not_found()))
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), run_to_completion));
    // This handler reads its body itself, because its senders have no tokens of callers.
    let (_, of_hooks) =
        OpenApiRouter::<Shared>::new().routes(routes!(hooks::object_created_call)).split_for_parts();
    document.merge(of_hooks);
    let hook = post(hooks::object_created_call).options(hooks::object_created_options);
    let hooks = Router::new()
        .route("/hooks/object-created", hook)
        .method_not_allowed_fallback(async || Problem::other_method())
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .layer(middleware::from_fn_with_state(app.clone(), close_when_draining));
    let blobs = Router::new().route("/blobs/{*key}", put(blobs::put).get(blobs::get));
    let plain = Router::new().route("/", get(page::page)).route("/dashboard/{*name}", get(page::asset));
    api.merge(events.layer(DefaultBodyLimit::disable()))
        .merge(blobs)
        .merge(plain)
        .merge(openapi_route(&document))
        .merge(SwaggerUi::new("/docs").config(DOCUMENT.into()))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || Problem::other_method())
        .layer(Extension(health::LastAnswer::default()))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .layer(middleware::from_fn_with_state(app.clone(), close_when_draining))
        .layer(cors(&app.core.settings.cors_origins))
        // Outside of CORS, which would answer the OPTIONS of a handshake.
        .merge(hooks)
        // The outermost layer, so that CORS preflight answers get these headers too.
        .layer(middleware::from_fn(security_headers))
        .with_state(app)
}

/// All answers share one copy of the document. It is large, and a client without a token can request it and not read it.
fn openapi_route<S: Clone + Send + Sync + 'static>(document: &utoipa::openapi::OpenApi) -> Router<S> {
    let text = Bytes::from(document.to_json().expect("a document is JSON"));
    let answer = async move || ([(header::CONTENT_TYPE, "application/json")], text.clone());
    Router::new().route(DOCUMENT, get(answer))
}

/// Adds the short and old paths of some calls to the document.
fn document_aliases(document: &mut utoipa::openapi::OpenApi) {
    for (method, name, same_as) in [
        (HttpMethod::Post, "/files/init", "/api/v2/files/init"),
        (HttpMethod::Post, "/files/{id}/confirm", "/api/v2/files/{id}/confirm"),
        (HttpMethod::Delete, "/api/v1/documents/{id}", "/api/v2/files/{id}"),
    ] {
        let found = document.paths.get_path_operation(same_as, method.clone()).cloned();
        let Some(mut call) = found else { continue };
        call.operation_id = call.operation_id.map(|id| format!("{id}Alias"));
        call.description = Some(format!("Same as `{same_as}`."));
        document.paths.paths.insert(name.to_owned(), PathItem::new(method, call));
    }
}

/// Routes of the separate address for metrics (`WHARFINGER_METRICS_LISTEN`).
pub fn metrics_router(app: Shared) -> Router {
    Router::new()
        .route("/metrics", get(health::metrics_for_all))
        .fallback(async || Problem::not_found())
        .layer(middleware::from_fn(security_headers))
        .with_state(app)
}

/// Routes of a process without the role `api`: health, metrics, and events where it has the role `ingest`.
fn router_without_api(app: Shared) -> Router {
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
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .layer(middleware::from_fn_with_state(app.clone(), close_when_draining))
        .layer(cors(&app.core.settings.cors_origins))
        // The outermost layer, so that CORS preflight answers get these headers too.
        .layer(middleware::from_fn(security_headers))
        .with_state(app)
}

/// Pages of these origins may call. The dashboard may call too, when it was opened as `localhost` and the upload URLs
/// have `127.0.0.1`, or the other way round.
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

/// Whether the origin and the host are both this machine (a loopback name) and have the same port.
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

/// Reads the whole body, then runs the handler in a separate task. If the client hangs up before the last byte, nothing
/// is changed. If it hangs up later, the handler still runs to its end, except a search.
async fn run_to_completion(State(app): State<Shared>, request: Request, next: Next) -> Response {
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
            // HTTP/2 tells the client at once to stop sending.
            if parts.version < Version::HTTP_2 {
                let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard_rest(body)).await;
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
        // A search changes nothing and reads a lot, so it is cancelled when the client hangs up.
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
            tracing::error!(error = %panicked, "request handler panicked");
            Problem::internal().into_response()
        }
        Err(_) => Problem::unavailable().into_response(),
    }
}

/// Authenticates the caller, then reads the body. Returns it with its share of the memory budget.
async fn read_body(
    app: &Shared,
    parts: &mut Parts,
    body: &mut Body,
) -> Result<(Bytes, Option<Reservation>), Problem> {
    let session = auth::authenticate(parts, app).await?;
    let limit_bytes = body_limit_bytes(parts, session.caller.role);
    let mut reservation = app.request_bodies.reservation_for(session.caller.tenant.as_str());
    parts.extensions.insert(session);
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Problem::interrupted())?.into_data() else { continue };
        if bytes.len() + data.len() > limit_bytes {
            return Err(Problem::body_too_large(limit_bytes));
        }
        if !reservation.grow(data.len()) {
            return Err(Problem::rate_limited("Too many large requests at once. Try again in a moment."));
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), Some(reservation)))
}

/// Reads and discards the rest of a body. A client that is still sending does not read the answer, and loses it if the
/// connection is closed.
async fn discard_rest(mut body: Body) {
    let mut taken_bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        taken_bytes += frame.data_ref().map_or(0, |data| data.len());
        if taken_bytes > DISCARDED_BYTES_MAX {
            return;
        }
    }
}

fn body_limit_bytes(parts: &Parts, role: Role) -> usize {
    match parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str) {
        BATCHES if matches!(role, Role::User | Role::Admin | Role::Operator) => BATCH_BODY_BYTES_MAX,
        COMPLETE_JOB if matches!(role, Role::Worker | Role::Operator) => OUTPUT_BYTES_MAX,
        _ => BODY_BYTES_MAX,
    }
}

/// While the process is stopping, each HTTP/1 answer closes its connection. An idle connection would be cut at the end,
/// perhaps during a new request.
async fn close_when_draining(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    if is_http1 && app.core.draining.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Adds browser security headers to every answer that does not set them: no scripts, no frames, no cache.
async fn security_headers(request: Request, next: Next) -> Response {
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

/// The Swagger page has inline styles and no inline scripts.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn observe(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let started = Instant::now();
    let response = next.run(request).await;
    let took = started.elapsed();
    let logged = Logged { method: &method, route: &route, path: uri.path() };
    access_log::log(&logged, &response, took, app.core.settings.access_log);
    metric::request(&route, &method, response.status(), took);
    metric::dashboard_request(&route, took);
    response
}

#[cfg(test)]
mod tests {
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    /// Otherwise thousands of unread answers would take thousands of copies.
    #[tokio::test]
    async fn all_answers_share_one_copy_of_the_document() {
        let router = TowerToHyperService::new(openapi_route::<()>(&Document::openapi()));
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
