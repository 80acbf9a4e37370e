//! The dashboard calls: the figures of a scope, and the outcomes of its files over the last day.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{Figures, OUTCOME_SPAN_MS, Outcomes, RecentError, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use super::Shared;
use super::auth::UserAuth;
use super::extract::{QueryParams, TenantQuery};
use super::problem::Problem;
use crate::app::App;
use crate::clock::rfc3339;
use crate::core::VerbError;
use crate::dashboard::{failure_rate, figures, trend};

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DashboardView {
    status_distribution: StatusDistributionView,
    #[schema(example = 2)]
    active_batches: u64,
    /// Failed files. They are not retried automatically.
    #[schema(example = 1)]
    dlq_depth: u64,
    /// Files without progress for STUCK_FILE_THRESHOLD_MS. 100,000 means 100,000 or more.
    #[schema(example = 0)]
    stuck_files: u64,
    queue_depths: QueueDepthsView,
    /// The last ten files that failed or were quarantined, the newest first.
    recent_errors: Vec<RecentErrorView>,
    metrics: DashboardMetricsView,
}

/// Files in each status. Deleted files are not counted.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatusDistributionView {
    #[schema(example = 3)]
    registered: u64,
    #[schema(example = 0)]
    uploaded: u64,
    #[schema(example = 12)]
    queued: u64,
    #[schema(example = 2)]
    scanning: u64,
    #[schema(example = 1)]
    extracting: u64,
    #[schema(example = 0)]
    chunking: u64,
    #[schema(example = 1)]
    embedding: u64,
    #[schema(example = 1_840)]
    ready: u64,
    #[schema(example = 1)]
    failed: u64,
    #[schema(example = 0)]
    quarantined: u64,
}

/// Files waiting for each stage.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct QueueDepthsView {
    #[schema(example = 9)]
    file_scan: u64,
    #[schema(example = 2)]
    file_extract: u64,
    #[schema(example = 0)]
    file_chunk: u64,
    #[schema(example = 1)]
    file_embed: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecentErrorView {
    #[schema(example = "0198c5a1-7b7e-7c3a-9d53-0e6f0a2b1c4d")]
    file_id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = "extract: the document is encrypted")]
    error: String,
    #[schema(example = "2026-01-01T12:00:00.000Z")]
    timestamp: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DashboardMetricsView {
    /// Average milliseconds from confirm to ready, over the last 100 files. 0 before the first file.
    #[schema(example = 2_310)]
    average_processing_time: i64,
    /// Files that became ready in the last 24 hours and still exist.
    #[schema(example = 310)]
    throughput24h: u64,
    /// Failed files as a percentage of the files that became ready or failed in the last 24 hours.
    #[schema(example = 0.32)]
    failure_rate24h: f64,
}

impl From<RecentError> for RecentErrorView {
    fn from(error: RecentError) -> Self {
        RecentErrorView {
            file_id: error.file.to_string(),
            file_name: error.file_name,
            error: error.error.unwrap_or_default(),
            timestamp: rfc3339(error.at),
        }
    }
}

impl From<Figures> for DashboardView {
    fn from(figures: Figures) -> Self {
        let statuses = &figures.statuses;
        DashboardView {
            status_distribution: StatusDistributionView {
                registered: statuses.of(Status::Registered),
                uploaded: statuses.of(Status::Uploaded),
                queued: statuses.of(Status::Queued),
                scanning: statuses.of(Status::Scanning),
                extracting: statuses.of(Status::Extracting),
                chunking: statuses.of(Status::Chunking),
                embedding: statuses.of(Status::Embedding),
                ready: statuses.of(Status::Ready),
                failed: statuses.of(Status::Failed),
                quarantined: statuses.of(Status::Quarantined),
            },
            active_batches: figures.active_batches,
            dlq_depth: statuses.dead_letters,
            stuck_files: figures.stuck,
            queue_depths: QueueDepthsView {
                file_scan: statuses.waiting_for(Stage::Scan),
                file_extract: statuses.waiting_for(Stage::Extract),
                file_chunk: statuses.waiting_for(Stage::Chunk),
                file_embed: statuses.waiting_for(Stage::Embed),
            },
            metrics: DashboardMetricsView {
                average_processing_time: figures.processing_ms.unwrap_or(0),
                throughput24h: figures.outcomes.ready,
                failure_rate24h: failure_rate(&figures.outcomes),
            },
            recent_errors: figures.recent_errors.into_iter().map(RecentErrorView::from).collect(),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrendView {
    /// The length of a bucket in milliseconds.
    #[schema(example = 900_000)]
    bucket_ms: i64,
    /// The last 24 hours, oldest first. A file is counted in the bucket in which it got its current status.
    buckets: Vec<TrendBucketView>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct TrendBucketView {
    #[schema(example = "2026-01-01T12:00:00.000Z")]
    at: String,
    #[schema(example = 12)]
    ready: u64,
    #[schema(example = 1)]
    failed: u64,
    #[schema(example = 0)]
    quarantined: u64,
}

impl From<&[(UnixMs, Outcomes)]> for TrendView {
    fn from(spans: &[(UnixMs, Outcomes)]) -> Self {
        let bucket = |(at, outcomes): &(UnixMs, Outcomes)| TrendBucketView {
            at: rfc3339(*at),
            ready: outcomes.ready,
            failed: outcomes.failed,
            quarantined: outcomes.quarantined,
        };
        TrendView { bucket_ms: OUTCOME_SPAN_MS, buckets: spans.iter().map(bucket).collect() }
    }
}

/// Get the dashboard figures
#[utoipa::path(
    get, path = "/api/v2/uploads/dashboard", tag = "dashboard", operation_id = "dashboard",
    params(TenantQuery),
    responses(
        (status = 200, body = DashboardView,
            description = "The figures of the caller's scope. Cached for DASHBOARD_CACHE_TTL, or until a file in the scope changes its status"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Response, Problem> {
    let scope = query.scope(&caller)?;
    let cache = &app.dashboard.cache;
    if !cache.is_enabled() {
        return Ok(json(computed(&app, &scope).await?));
    }
    // Read before the figures. A change during the reading then makes the cached answer out of date.
    let (changes, read_at) =
        (app.core.catalog.files_revision(&scope).await.map_err(VerbError::from)?, app.core.clock.now());
    if let Some(answer) = cache.get(&scope, changes, read_at).await {
        return Ok(json(answer));
    }
    let answer = computed(&app, &scope).await?;
    cache.store(&scope, changes, answer.clone(), read_at).await;
    Ok(json(answer))
}

async fn computed(app: &App, scope: &Scope) -> Result<String, Problem> {
    let view = DashboardView::from(figures(&app.core, scope).await?);
    serde_json::to_string(&view).map_err(|_| Problem::internal())
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Get the outcomes of the last day
#[utoipa::path(
    get, path = "/api/v2/uploads/trend", tag = "dashboard", operation_id = "trend",
    params(TenantQuery),
    responses(
        (status = 200, body = TrendView, description = "The last 24 hours in buckets of 15 minutes"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn get_trend(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Json<TrendView>, Problem> {
    let spans = trend(&app.core, &query.scope(&caller)?).await?;
    Ok(Json(TrendView::from(spans.as_slice())))
}
