//! The calls for sweeps: list them, run one now.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use wharfinger_catalog::SweepState;
use wharfinger_lifecycle::UnixMs;

use super::Shared;
use super::auth::OperatorAuth;
use super::extract::Body;
use super::problem::Problem;
use crate::app::App;
use crate::clock::rfc3339;
use crate::core::audit::AuditedAction;
use crate::core::{Caller, VerbError};
use crate::sweeps::{ManualRun, Report, Sweep, SweepRunError, run_now};

#[derive(Debug, Serialize, ToSchema)]
pub struct SweepsView {
    sweeps: Vec<SweepView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SweepView {
    #[schema(example = "pending-cleanups")]
    name: &'static str,
    /// Cron, UTC.
    #[schema(example = "* * * * *")]
    schedule: String,
    #[schema(example = "2026-11-16T03:00:00.000Z")]
    next_run: String,
    /// When the last run started. Null before the first run.
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    last_run: Option<String>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    last_success: Option<String>,
    /// Milliseconds.
    #[schema(example = 4_112)]
    duration: Option<i64>,
    /// The result of the last run.
    #[schema(value_type = Option<BTreeMap<String, Value>>, example = json!({"attempted": 3, "done": 3, "failed": 0, "exhausted": 0}))]
    result: Option<Value>,
    #[schema(example = "3 stuck files could not be checked; see the log")]
    error: Option<String>,
    /// The process that runs the sweep now. Null if it is not running.
    #[schema(example = "host-1 4711")]
    running_on: Option<String>,
}

impl SweepView {
    fn new(app: &App, sweep: Sweep, state: &SweepState) -> SweepView {
        let now = app.core.clock.now();
        let lasted = |began: UnixMs| Some(state.last_end_at?.saturating_sub(began));
        SweepView {
            name: sweep.name(),
            schedule: sweep.schedule(&app.core.settings.sweeps).pattern.to_string(),
            next_run: rfc3339(state.next_run_at.unwrap_or_else(|| sweep.next_time(&app.core))),
            last_run: state.last_start_at.map(rfc3339),
            last_success: state.last_success_at.map(rfc3339),
            duration: state.last_start_at.and_then(lasted),
            result: state.last_result.as_deref().and_then(|json| serde_json::from_str(json).ok()),
            error: state.last_error.clone(),
            running_on: state.lease_owner.clone().filter(|_| state.lease_until > now),
        }
    }
}

/// List the sweeps
#[utoipa::path(
    get, path = "/api/v2/maintenance/sweeps", tag = "maintenance", operation_id = "listSweeps",
    responses(
        (status = 200, body = SweepsView, description = "Every sweep with its last run and its next run"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    OperatorAuth(_caller): OperatorAuth,
) -> Result<Json<SweepsView>, Problem> {
    Ok(Json(all(&app).await?))
}

pub(super) async fn all(app: &App) -> Result<SweepsView, VerbError> {
    let states = app.core.catalog.sweeps().await?;
    let view = |sweep: Sweep| {
        let state = states.iter().find(|state| state.name == sweep.name());
        SweepView::new(app, sweep, state.unwrap_or(&SweepState::default()))
    };
    Ok(SweepsView { sweeps: Sweep::ALL.into_iter().map(view).collect() })
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunSweepRequest {
    /// Report what would be done, and change nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SweepRunView {
    #[schema(example = "orphan-cleanup")]
    name: &'static str,
    dry_run: bool,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    started_at: String,
    /// Milliseconds.
    #[schema(example = 4_112)]
    duration: i64,
    result: Report,
    /// What failed in one part of the sweep. The other parts continued.
    #[schema(example = "3 stuck files could not be checked; see the log")]
    error: Option<String>,
}

/// Run a sweep now
#[utoipa::path(
    post, path = "/api/v2/maintenance/sweeps/{name}/run", tag = "maintenance", operation_id = "runSweep",
    params(("name" = String, Path, example = "orphan-cleanup")),
    request_body = RunSweepRequest,
    responses(
        (status = 200, body = SweepRunView, description = "The sweep is finished. It also finishes if the client hangs up"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
        (status = 404, body = Problem, description = "No sweep has this name"),
        (status = 409, body = Problem, description = "`sweep_running`: another process is running this sweep"),
    ),
)]
pub(super) async fn run(
    State(app): State<Shared>,
    OperatorAuth(caller): OperatorAuth,
    Path(name): Path<String>,
    Body(request): Body<RunSweepRequest>,
) -> Result<Json<SweepRunView>, Problem> {
    let sweep = Sweep::named(&name).ok_or_else(Problem::not_found)?;
    Ok(Json(run_by_hand(&app, sweep, &caller, request.dry_run).await?))
}

/// Runs a sweep for a caller and waits for its end.
pub(super) async fn run_by_hand(
    app: &App,
    sweep: Sweep,
    caller: &Caller,
    is_dry_run: bool,
) -> Result<SweepRunView, Problem> {
    let (by, stop) = (caller.actor(), app.core.draining.clone());
    let manual = ManualRun { by, is_dry_run, stop, ..ManualRun::default() };
    tracing::info!(job = sweep.name(), action = "run-now", dryRun = is_dry_run, by = %caller.user, "sweep started by hand");
    if !is_dry_run {
        let action = AuditedAction {
            name: "sweep-requested",
            tenant: None,
            subject: sweep.name().to_owned(),
            detail: json!({}),
        };
        app.core
            .catalog
            .log_action(action.by(caller, app.core.clock.now()))
            .await
            .map_err(VerbError::from)?;
    }
    let ran = run_now(&app.uploads, sweep, &manual).await.map_err(|not_run| match not_run {
        SweepRunError::Failed(VerbError::TakenOver) => Problem::new(
            StatusCode::CONFLICT,
            "sweep_running",
            "Sweep is running",
            "Another process has taken over this sweep and continues it.",
        ),
        SweepRunError::Failed(error) => Problem::from(error),
        SweepRunError::Busy { owner, lease_until } => Problem::new(
            StatusCode::CONFLICT,
            "sweep_running",
            "Sweep is running",
            format!(
                "The process {owner} is running this sweep. If that process is dead, its lease ends at {}.",
                rfc3339(lease_until)
            ),
        ),
    })?;
    Ok(SweepRunView {
        name: sweep.name(),
        dry_run: is_dry_run,
        started_at: rfc3339(ran.started_at),
        duration: ran.ended_at - ran.started_at,
        error: ran.report.error_summary(),
        result: ran.report,
    })
}
