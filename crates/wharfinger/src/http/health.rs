//! Health of the process, readiness of its backends, and metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;
use wharfinger_catalog::Dialect;
use wharfinger_lifecycle::UnixMs;

use super::Shared;
use super::auth::MetricsAuth;
use super::problem::Problem;
use crate::config::MetricsAccess;
use crate::pipeline::stage_workers;
use crate::roles::{ProcessRole, Roles};
use crate::telemetry;
use crate::worker::gauges;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    #[schema(example = "ok")]
    status: &'static str,
    #[schema(example = "0.1.0")]
    version: &'static str,
}

/// Check the process
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "healthz",
    responses((status = 200, body = Health, description = "The process is alive")),
)]
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    #[schema(example = "ready")]
    status: &'static str,
    /// The roles of this process.
    #[schema(example = json!(["api", "worker"]))]
    roles: Vec<&'static str>,
    backends: Vec<BackendState>,
    /// What an operator should repair although the process is ready.
    #[schema(example = json!(["no worker has asked for jobs of the stage scan yet, files wait since 2026-11-19T10:00:00.000Z"]))]
    warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct BackendState {
    #[schema(example = "catalog")]
    name: &'static str,
    #[schema(example = "sqlite")]
    kind: &'static str,
    ok: bool,
    /// Whether the process is ready only while this backend answers.
    needed: bool,
    /// The properties of a signed upload that the store itself enforces. Confirm checks the size, and the checksum if
    /// the store does not enforce it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["size", "content type"]))]
    enforces: Option<Vec<&'static str>>,
}

const NEEDED_TIMEOUT: Duration = Duration::from_secs(15);
/// Backends that are not needed must not delay the answer.
const UNNEEDED_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an answer is reused. Anyone may call `/readyz`, and some stores charge for each request.
const ANSWER_MS: i64 = 1_000;

/// The last answer. It stays locked while the backends are checked, so that concurrent requests share one check.
#[derive(Clone, Default)]
pub(super) struct LastAnswer(Arc<Mutex<Option<(UnixMs, Answer)>>>);

type Answer = (StatusCode, Json<Readiness>);

/// Check the backends
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readyz",
    responses(
        (status = 200, body = Readiness, description = "All needed backends answer"),
        (status = 503, body = Readiness, description = "A needed backend does not answer (`ok: false`), or the process is stopping (`draining`)"),
    ),
)]
pub(super) async fn readyz(State(app): State<Shared>, Extension(last): Extension<LastAnswer>) -> Answer {
    // A process that is stopping must get no more requests, so this is checked before and after the backends.
    let draining = || app.core.draining.is_cancelled().then(|| draining(&app));
    if let Some(answer) = draining() {
        return answer;
    }
    let mut last = last.0.lock().await;
    if let Some((at, answer)) = &*last
        && (0..ANSWER_MS).contains(&(app.core.clock.now() - at))
    {
        return answer.clone();
    }
    let answer = check_backends(&app).await;
    *last = Some((app.core.clock.now(), answer.clone()));
    draining().unwrap_or(answer)
}

fn draining(app: &Shared) -> Answer {
    let draining = Readiness {
        status: "draining",
        roles: app.roles.names(),
        backends: Vec::new(),
        warnings: Vec::new(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(draining))
}

async fn check_backends(app: &Shared) -> Answer {
    let roles = app.roles.names();
    // A process that only takes events stores them on disk while the store or the catalog is down.
    let needed = app.roles != Roles::of(ProcessRole::Ingest);
    let timeout = if needed { NEEDED_TIMEOUT } else { UNNEEDED_TIMEOUT };
    let late = || format!("no answer within {} s", timeout.as_secs());
    let (catalog, blobs) = tokio::join!(
        tokio::time::timeout(timeout, app.core.catalog.ping()),
        tokio::time::timeout(timeout, app.core.blobs.is_ready()),
    );
    let catalog = catalog.map_or_else(|_| Err(late()), |ping| ping.map_err(|error| error.to_string()));
    let blobs = blobs.map_or_else(|_| Err(late()), |check| check.map_err(|error| error.to_string()));
    for (name, error) in [("catalog", catalog.as_ref().err()), ("blobs", blobs.as_ref().err())] {
        if let Some(error) = error {
            tracing::warn!(backend = name, error = %error, "backend not ready");
        }
    }
    let kind = match app.core.catalog.dialect() {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
    };
    let mut backends = vec![
        BackendState { name: "catalog", kind, ok: catalog.is_ok(), needed, enforces: None },
        BackendState {
            name: "blobs",
            kind: app.core.blobs.kind(),
            ok: blobs.is_ok(),
            needed,
            enforces: Some(app.core.blobs.capabilities().enforced()),
        },
    ];
    if let Some(owner) = &app.quota.redis_owner {
        // The ping may be slow, so it is skipped where the answer does not depend on it.
        let needed = owner.fails_closed;
        let ok = if needed { owner.redis.ping().await.is_ok() } else { !owner.is_away() };
        backends.push(BackendState { name: "quota", kind: "redis", ok, needed, enforces: None });
    }
    if let Some(broker) = &app.broker {
        let ok = broker.is_up();
        backends.push(BackendState { name: "broker", kind: "rabbitmq", ok, needed: false, enforces: None });
    }
    if let Some(ingest) = app.ingest.get() {
        let (ok, kind) = (ingest.store_is_up(), ingest.store_kind());
        backends.push(BackendState { name: "events", kind, ok, needed: false, enforces: None });
    }
    let warnings = if catalog.is_ok() { warnings(app).await } else { Vec::new() };
    if backends.iter().all(|backend| backend.ok || !backend.needed) {
        (StatusCode::OK, Json(Readiness { status: "ready", roles, backends, warnings }))
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(Readiness { status: "unavailable", roles, backends, warnings }),
        )
    }
}

async fn warnings(app: &Shared) -> Vec<String> {
    let reading = stage_workers::without_worker(&app.core.catalog, app.core.clock.now());
    match tokio::time::timeout(UNNEEDED_TIMEOUT, reading).await {
        Ok(Ok(stages)) => stages.iter().map(stage_workers::warning).collect(),
        Ok(Err(error)) => {
            tracing::warn!(error = %error, "cannot read which stages have workers");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

/// Get metrics for Prometheus
///
/// Gauges are read from the catalog at each request. No token is needed if `WHARFINGER_METRICS` is `open` and the request did
/// not come through a proxy. Otherwise the token of an operator is needed, or a service key of role `metrics`.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((status = 200, body = String, content_type = "text/plain", description = "The text format of Prometheus",
        example = "# TYPE file_pipeline_status gauge\nfile_pipeline_status{status=\"ready\"} 42\n"),
        (status = 401, body = Problem, description = "`unauthorized`"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator` or `metrics`"),
    ),
)]
pub(super) async fn metrics(State(app): State<Shared>, request: Request) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    let is_forwarded = FORWARDED.iter().any(|name| parts.headers.contains_key(*name));
    if app.core.settings.metrics == MetricsAccess::Token || is_forwarded {
        MetricsAuth::from_request_parts(&mut parts, &app).await?;
    }
    Ok(rendered(&app).await)
}

/// Metrics without a token, for the separate metrics address.
pub(super) async fn metrics_for_all(State(app): State<Shared>) -> Response {
    rendered(&app).await
}

/// A request with one of these headers came through a proxy, so its real sender is unknown.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];

async fn rendered(app: &Shared) -> Response {
    if let Err(error) = gauges::refresh(app).await {
        tracing::warn!(error = %error, "cannot read some gauges");
    }
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (headers, telemetry::prometheus().render()).into_response()
}
