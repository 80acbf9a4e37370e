//! The call for the history of a sweep.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use wharfinger_catalog::RecordedRun;

use super::Shared;
use super::auth::OperatorAuth;
use super::extract::{PageQuery, QueryParams, cut_page};
use super::problem::Problem;
use crate::clock::rfc3339;
use crate::core::VerbError;
use crate::sweeps::Sweep;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SweepRunsView {
    runs: Vec<RecordedRunView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRunView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    run_id: String,
    #[schema(example = "2026-11-15T03:00:00.000Z")]
    started_at: String,
    /// Null: it is running, or its process was lost and no other one has taken over yet.
    #[schema(example = "2026-11-15T03:00:04.112Z")]
    ended_at: Option<String>,
    /// Milliseconds.
    #[schema(example = 4_112)]
    duration: Option<i64>,
    dry_run: bool,
    /// `schedule`, `command line`, or the caller that started it: its role and its user.
    #[schema(example = "operator:olga")]
    by: String,
    /// The process that ran it (INSTANCE_ID).
    #[schema(example = "host-1")]
    instance: String,
    /// It found nothing to do.
    idle: bool,
    #[schema(value_type = Option<BTreeMap<String, Value>>, example = json!({"attempted": 3, "done": 3, "failed": 0, "exhausted": 0}))]
    result: Option<Value>,
    #[schema(example = "3 stuck files could not be checked; see the log")]
    error: Option<String>,
}

impl From<RecordedRun> for RecordedRunView {
    fn from(run: RecordedRun) -> Self {
        RecordedRunView {
            run_id: run.id.to_string(),
            started_at: rfc3339(run.started_at),
            ended_at: run.ended_at.map(rfc3339),
            duration: run.ended_at.map(|at| at.saturating_sub(run.started_at)),
            dry_run: run.start.is_dry_run,
            by: run.start.by,
            instance: run.start.instance,
            idle: run.is_idle,
            result: run.result.and_then(|json| serde_json::from_str(&json).ok()),
            error: run.error,
        }
    }
}

/// List the runs of a sweep
#[utoipa::path(
    get, path = "/api/v2/maintenance/sweeps/{name}/runs", tag = "maintenance", operation_id = "listSweepRuns",
    params(("name" = String, Path, example = "orphan-cleanup"), PageQuery),
    responses(
        (status = 200, body = SweepRunsView,
            description = "The last 100 runs, newest first, with dry runs and runs by hand. Of scheduled runs of \
                `pending-cleanups` and `upload-window` that found nothing, only the last one is kept"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
        (status = 404, body = Problem, description = "No sweep has this name"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    OperatorAuth(_caller): OperatorAuth,
    Path(name): Path<String>,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<SweepRunsView>, Problem> {
    let sweep = Sweep::named(&name).ok_or_else(Problem::not_found)?;
    let (limit, cursor) = (page.limit()?, page.cursor()?);
    let catalog = &app.core.catalog;
    let mut runs = catalog.sweep_runs(sweep.name(), cursor, limit + 1).await.map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut runs, limit, |run| run.id.to_string());
    Ok(Json(SweepRunsView { runs: runs.into_iter().map(RecordedRunView::from).collect(), next_cursor }))
}
