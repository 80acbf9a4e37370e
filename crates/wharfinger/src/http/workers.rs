//! The calls for outside workers: lease, heartbeat, complete, fail.

use std::convert::Infallible;
use wharfinger_lifecycle::stage_end::CompletionResult;

use axum::Json;
use axum::body::Body as Stream;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use wharfinger_lifecycle::id::JobId;
use wharfinger_lifecycle::stage::Stage;

use super::Shared;
use super::auth::WorkerAuth;
use super::extract::{Body, Id, QueryParams};
use super::problem::Problem;
use crate::clock::rfc3339;
use crate::pipeline::input::{self, Input};
use crate::pipeline::remote::{self, Delivery, Failure, LEASE_JOBS_MAX, LeasedJob};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseRequest {
    /// `scan`, `extract`, `chunk`, `embed`. Jobs of the first stage are leased first.
    #[schema(example = json!(["scan"]))]
    stages: Vec<String>,
    /// 1 to 100. Default: 1.
    #[schema(example = 4)]
    max: Option<usize>,
    /// How long the lease lasts without a heartbeat. Default: JOB_LEASE_MS.
    #[schema(example = 60_000)]
    lease_ms: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LeasesView {
    jobs: Vec<LeaseView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseView {
    #[schema(example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")]
    job_id: String,
    /// Opaque. Only the worker that took the lease can use it.
    #[schema(example = "3.5f2d0c…")]
    lease_token: String,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    lease_until: String,
    #[schema(example = "scan")]
    stage: &'static str,
    #[schema(example = 1)]
    attempt: u32,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = "application/pdf")]
    content_type: Option<String>,
    #[schema(example = 52_417)]
    size: u64,
    /// A signed URL for the object, which was compared with the confirmed one just now.
    #[schema(example = "https://objects.example.com/uploads/acme/ada/01a1ddbc?signature=…")]
    download_url: String,
    /// The output of the previous stage: `{text}`, `{chunks}` or `{verdict}`. A large output is `{url}`, which returns the same.
    #[schema(value_type = BTreeMap<String, Value>, example = json!({"text": "The lighthouse owner signed for forty crates of coffee."}))]
    input: Value,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    #[schema(example = "3.5f2d0c…")]
    lease_token: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompleteRequest {
    #[schema(example = "3.5f2d0c…")]
    lease_token: String,
    /// scan `{verdict,signature?}`, extract `{text}`, chunk `{chunks:[{text,start,end}]}`, embed `{vectors:[[…]]}`.
    #[schema(value_type = BTreeMap<String, Value>, example = json!({"verdict": "clean"}))]
    output: Box<RawValue>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailRequest {
    #[schema(example = "3.5f2d0c…")]
    lease_token: String,
    #[schema(example = "the scanner did not answer")]
    error: String,
    /// False if a retry would not help (not supported, corrupted, encrypted).
    #[serde(default = "yes")]
    retryable: bool,
    /// Only for the stage `extract`: true if the type of the file has no text. EXTRACT_UNSUPPORTED then decides whether the
    /// file becomes ready without text or fails. `retryable` does not matter.
    #[serde(default)]
    unsupported: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatView {
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    lease_until: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct EndedView {
    /// The new status of the file.
    #[schema(example = "queued")]
    status: &'static str,
}

impl From<CompletionResult> for EndedView {
    fn from(ended: CompletionResult) -> Self {
        EndedView {
            status: match ended {
                CompletionResult::Next(_) | CompletionResult::Retried | CompletionResult::LeaseLost => {
                    "queued"
                }
                CompletionResult::Ready => "ready",
                CompletionResult::Failed => "failed",
                CompletionResult::Quarantined => "quarantined",
            },
        }
    }
}

impl From<LeasedJob> for LeaseView {
    fn from(leased: LeasedJob) -> Self {
        let (job, file) = (leased.held.job, leased.held.file);
        LeaseView {
            job_id: job.id.to_string(),
            lease_token: leased.token,
            lease_until: rfc3339(job.lease_until),
            stage: leased.held.stage.as_str(),
            attempt: job.attempt,
            file_id: file.id.to_string(),
            file_name: file.name,
            content_type: file.content_type,
            size: file.size,
            download_url: leased.download_url,
            input: match leased.input {
                Input::Empty => json!({}),
                Input::Inline(value) => value,
                Input::Url(url) => json!({ "url": url }),
            },
        }
    }
}

/// Lease jobs
#[utoipa::path(
    post, path = "/api/v2/workers/lease", tag = "workers", operation_id = "leaseJobs",
    request_body = LeaseRequest,
    responses(
        (status = 200, body = LeasesView, description = "The leased jobs. If there are none, try again later"),
        (status = 400, body = Problem, description = "`invalid_request`, or `not_in_pipeline`"),
        (status = 403, body = Problem),
    ),
)]
pub(super) async fn lease(
    State(app): State<Shared>,
    WorkerAuth(worker): WorkerAuth,
    Body(request): Body<LeaseRequest>,
) -> Result<Response, Problem> {
    let mut stages = Vec::new();
    for word in &request.stages {
        let stage = Stage::parse(word);
        stages.push(stage.ok_or_else(|| Problem::invalid("stages", format!("`{word}` is not a stage")))?);
    }
    if stages.is_empty() {
        return Err(Problem::invalid("stages", "must name at least one stage"));
    }
    let max = request.max.unwrap_or(1);
    if !(1..=LEASE_JOBS_MAX).contains(&max) {
        return Err(Problem::invalid("max", format!("must be 1 to {LEASE_JOBS_MAX}")));
    }
    if request.lease_ms.is_some_and(|ms| ms <= 0) {
        return Err(Problem::invalid("leaseMs", "must be more than 0"));
    }
    if let Some(stage) =
        stages.iter().find(|stage| worker.scope.stages.as_ref().is_some_and(|may| !may.contains(stage)))
    {
        let detail = format!("The token may not lease the stage `{}` (claim `stages`).", stage.as_str());
        return Err(Problem::forbidden(&detail));
    }
    let leased = remote::lease(&app.pipeline, &worker, &stages, max, request.lease_ms).await?;
    let mut delivery = Delivery::of(&app.pipeline, &leased);
    let view = LeasesView { jobs: leased.into_iter().map(LeaseView::from).collect() };
    let Ok(json) = serde_json::to_vec(&view) else { return Err(Problem::internal()) };
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_LENGTH, json.len().to_string()),
    ];
    // The stream is polled when the answer is written. If it is dropped before that, the leases are released.
    let body = futures::stream::once(async move {
        delivery.sent();
        Ok::<_, Infallible>(json)
    });
    Ok((headers, Stream::from_stream(body)).into_response())
}

/// Extend a lease
#[utoipa::path(
    post, path = "/api/v2/workers/jobs/{jobId}/heartbeat", tag = "workers", operation_id = "heartbeatJob",
    params(("jobId" = String, Path, example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")), request_body = TokenRequest,
    responses((status = 200, body = HeartbeatView), (status = 409, body = Problem, description = "`lease_lost`")),
)]
pub(super) async fn heartbeat(
    State(app): State<Shared>,
    WorkerAuth(worker): WorkerAuth,
    Id(job): Id<JobId>,
    Body(request): Body<TokenRequest>,
) -> Result<Json<HeartbeatView>, Problem> {
    let until = remote::heartbeat(&app.pipeline, &worker.caller, job, &request.lease_token).await?;
    Ok(Json(HeartbeatView { lease_until: rfc3339(until) }))
}

/// Complete a job
#[utoipa::path(
    post, path = "/api/v2/workers/jobs/{jobId}/complete", tag = "workers", operation_id = "completeJob",
    params(("jobId" = String, Path, example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")), request_body = CompleteRequest,
    responses(
        (status = 200, body = EndedView, description = "The output is stored, and the file continues with its next stage"),
        (status = 400, body = Problem, description = "`invalid_request`: not a valid output of this stage"),
        (status = 409, body = Problem, description = "`lease_lost`: nothing was changed"),
    ),
)]
pub(super) async fn complete(
    State(app): State<Shared>,
    WorkerAuth(worker): WorkerAuth,
    Id(job): Id<JobId>,
    Body(request): Body<CompleteRequest>,
) -> Result<Json<EndedView>, Problem> {
    let CompleteRequest { lease_token, output } = &request;
    Ok(Json(remote::complete(&app.pipeline, &worker.caller, job, lease_token, output).await?.into()))
}

/// Report a failed attempt
#[utoipa::path(
    post, path = "/api/v2/workers/jobs/{jobId}/fail", tag = "workers", operation_id = "failJob",
    params(("jobId" = String, Path, example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")), request_body = FailRequest,
    responses(
        (status = 200, body = EndedView),
        (status = 400, body = Problem, description = "`invalid_request`: `unsupported` in another stage than `extract`"),
        (status = 409, body = Problem, description = "`lease_lost`"),
    ),
)]
pub(super) async fn fail(
    State(app): State<Shared>,
    WorkerAuth(worker): WorkerAuth,
    Id(job): Id<JobId>,
    Body(request): Body<FailRequest>,
) -> Result<Json<EndedView>, Problem> {
    if request.error.trim().is_empty() {
        return Err(Problem::invalid("error", "must say what went wrong"));
    }
    let FailRequest { lease_token, error, retryable, unsupported } = &request;
    let failure = match (unsupported, retryable) {
        (true, _) => Failure::Unsupported,
        (false, true) => Failure::Retryable,
        (false, false) => Failure::Permanent,
    };
    let ended = remote::fail(&app.pipeline, &worker.caller, job, lease_token, error, failure).await?;
    Ok(Json(ended.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InputQuery {
    #[param(example = 3)]
    lease: i64,
    #[param(example = "5f2d…")]
    signature: String,
}

/// Read a large input
#[utoipa::path(
    get, path = "/api/v2/workers/jobs/{jobId}/input", tag = "workers", operation_id = "jobInput",
    params(("jobId" = String, Path, example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71"), InputQuery),
    responses(
        (status = 200, description = "The input as JSON, while the lease is valid"),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "`lease_lost`"),
    ),
    security(()),
)]
pub(super) async fn input(
    State(app): State<Shared>,
    Id(job): Id<JobId>,
    QueryParams(query): QueryParams<InputQuery>,
) -> Result<Response, Problem> {
    let pieces = input::open(app.pipeline.clone(), job, query.lease, &query.signature).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], Stream::from_stream(pieces)).into_response())
}
