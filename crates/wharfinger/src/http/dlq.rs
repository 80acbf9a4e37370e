//! Dead letters: list, redrive, discard.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::DeadLetter;
use wharfinger_lifecycle::id::JobId;

use super::Shared;
use super::auth::UserAuth;
use super::extract::{Id, QueryParams, TenantPageQuery, cut_page};
use super::problem::Problem;
use crate::clock::rfc3339;
use crate::pipeline::dead_letters;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLettersView {
    jobs: Vec<DeadLetterView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterView {
    #[schema(example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")]
    job_id: String,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = "scan")]
    stage: &'static str,
    #[schema(example = "no attempts left")]
    reason: String,
    #[schema(example = 5)]
    attempts: u32,
    #[schema(example = "clamd did not answer")]
    last_error: Option<String>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    died_at: String,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(letter: DeadLetter) -> Self {
        DeadLetterView {
            job_id: letter.job.to_string(),
            file_id: letter.file.to_string(),
            file_name: letter.file_name,
            stage: letter.stage.as_str(),
            reason: letter.reason,
            attempts: letter.attempts,
            last_error: letter.last_error,
            died_at: rfc3339(letter.died_at),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedrivenView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "queued")]
    status: &'static str,
}

/// List dead letters
#[utoipa::path(
    get, path = "/api/v2/dlq", tag = "dead letters", operation_id = "listDeadLetters",
    params(TenantPageQuery),
    responses(
        (status = 200, body = DeadLettersView, description = "The dead letters in the caller's scope, newest first"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantPageQuery>,
) -> Result<Json<DeadLettersView>, Problem> {
    let (scope, page) = (query.scope(&caller)?, query.page());
    let limit = page.limit()?;
    let mut letters = dead_letters::list(&app.core, &scope, page.cursor()?, limit + 1).await?;
    let next_cursor = cut_page(&mut letters, limit, |letter| letter.job.to_string());
    Ok(Json(DeadLettersView { jobs: letters.into_iter().map(DeadLetterView::from).collect(), next_cursor }))
}

/// Process a failed file again
#[utoipa::path(
    post, path = "/api/v2/dlq/{id}/redrive", tag = "dead letters", operation_id = "redriveDeadLetter",
    params(("id" = String, Path, example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")),
    responses(
        (status = 200, body = RedrivenView, description = "The file is queued again at the stage where it failed, or at its next one that is still configured. Without any it is `ready`"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`redrive_limit`: the owner has redriven the file three times and it failed each time"),
    ),
)]
pub(super) async fn redrive(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(job): Id<JobId>,
) -> Result<Json<RedrivenView>, Problem> {
    let (file, status) = dead_letters::redrive(&app.core, &caller, job).await?;
    Ok(Json(RedrivenView { file_id: file.to_string(), status: status.as_str() }))
}

/// Discard a dead letter
#[utoipa::path(
    delete, path = "/api/v2/dlq/{id}", tag = "dead letters", operation_id = "discardDeadLetter",
    params(("id" = String, Path, example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")),
    responses((status = 204, description = "Discarded. The file stays `failed`"), (status = 404, body = Problem)),
)]
pub(super) async fn discard(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(job): Id<JobId>,
) -> Result<StatusCode, Problem> {
    dead_letters::discard(&app.core, &caller, job).await?;
    Ok(StatusCode::NO_CONTENT)
}
