//! Stuck files: list them, retry one, retry all.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::StuckFile;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::FileId;

use super::Shared;
use super::auth::UserAuth;
use super::extract::{Id, QueryParams, TenantPageQuery, TenantQuery, cut_page};
use super::problem::Problem;
use crate::clock::rfc3339;
use crate::pipeline::recovery::{self, RetriedAll};

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StuckFilesView {
    files: Vec<StuckFileView>,
    /// The length of the whole list, not of this page.
    #[schema(example = 1)]
    total: u64,
    #[schema(example = "1767268800000.0198c5a1-7b7e-7c3a-9d53-0e6f0a2b1c4d")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StuckFileView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = "scanning")]
    status: &'static str,
    /// Milliseconds without progress.
    #[schema(example = 2_712_000)]
    stuck_duration: i64,
    #[schema(example = 1)]
    retry_count: u32,
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: Option<String>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    updated_at: String,
    /// What is wrong with the file's job. Null if it only waits in the queue or a worker has it.
    #[schema(example = "its job was missing")]
    problem: Option<String>,
}

impl StuckFileView {
    fn new(file: StuckFile, now: UnixMs) -> StuckFileView {
        StuckFileView {
            id: file.cursor.file.to_string(),
            file_name: file.file_name,
            status: file.status.as_str(),
            stuck_duration: now.saturating_sub(file.updated_at).max(0),
            retry_count: file.retry_count,
            batch_id: file.batch,
            updated_at: rfc3339(file.updated_at),
            problem: file.fault.map(|fault| fault.to_string()),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetriedView {
    success: bool,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "scanning")]
    previous_status: &'static str,
    #[schema(example = "queued")]
    new_status: &'static str,
    /// Unchanged if the file only waited in the queue.
    #[schema(example = 1)]
    retry_count: u32,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetriedAllView {
    /// True if there were no errors and all files were processed.
    success: bool,
    #[schema(example = 7)]
    retried_count: u64,
    /// Files that only wait in the queue, are leased by a worker, made progress in the meantime, or were recovered
    /// MAX_STUCK_RETRIES times.
    #[schema(example = 2)]
    skipped_count: u64,
    /// At most 1,000.
    errors: Vec<RetryErrorView>,
    /// True if the call stopped at its time limit. Send it again for the remaining files.
    is_broken_off: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryErrorView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "The file was changed by another request.")]
    error: String,
}

impl From<RetriedAll> for RetriedAllView {
    fn from(all: RetriedAll) -> Self {
        let view = |(file, error): (FileId, crate::core::VerbError)| RetryErrorView {
            file_id: file.to_string(),
            error: error.to_string(),
        };
        RetriedAllView {
            success: all.errors.is_empty() && !all.is_broken_off,
            retried_count: all.retried,
            skipped_count: all.skipped,
            errors: all.errors.into_iter().map(view).collect(),
            is_broken_off: all.is_broken_off,
        }
    }
}

/// List stuck files
#[utoipa::path(
    get, path = "/api/v2/uploads/stuck", tag = "recovery", operation_id = "listStuckFiles",
    params(TenantPageQuery),
    responses(
        (status = 200, body = StuckFilesView,
            description = "Files in the caller's scope without progress for STUCK_FILE_THRESHOLD_MS, the longest first"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantPageQuery>,
) -> Result<Json<StuckFilesView>, Problem> {
    let (scope, page) = (query.scope(&caller)?, query.page());
    let limit = page.limit()?;
    let (mut files, total) = recovery::list(&app.core, &scope, page.cursor()?, limit + 1).await?;
    let next_cursor = cut_page(&mut files, limit, |file| file.cursor.to_string());
    let now = app.core.clock.now();
    let files = files.into_iter().map(|file| StuckFileView::new(file, now)).collect();
    Ok(Json(StuckFilesView { files, total, next_cursor }))
}

/// Retry a stuck file
#[utoipa::path(
    post, path = "/api/v2/uploads/stuck/{fileId}/retry", tag = "recovery", operation_id = "retryStuckFile",
    params(("fileId" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    responses(
        (status = 200, body = RetriedView, description = "The file is queued again at the stage where it stopped"),
        (status = 400, body = Problem, description = "`terminal_state`, or `not_in_pipeline`: the file is not confirmed"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`in_work`: a worker has a valid lease"),
    ),
)]
pub(super) async fn retry(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(file): Id<FileId>,
) -> Result<Json<RetriedView>, Problem> {
    let retried = recovery::retry(&app.core, &caller, file).await?;
    Ok(Json(RetriedView {
        success: true,
        file_id: file.to_string(),
        previous_status: retried.from.as_str(),
        new_status: "queued",
        retry_count: retried.retry_count,
    }))
}

/// Retry all stuck files
#[utoipa::path(
    post, path = "/api/v2/uploads/stuck/retry-all", tag = "recovery", operation_id = "retryAllStuckFiles",
    params(TenantQuery),
    responses(
        (status = 200, body = RetriedAllView,
            description = "Stuck files in the caller's scope were queued again. Files that only wait in the queue, and files that were recovered MAX_STUCK_RETRIES times, are skipped. The call for one file takes the latter too"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn retry_all(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Json<RetriedAllView>, Problem> {
    let scope = query.scope(&caller)?;
    Ok(Json(recovery::retry_all(&app.core, &scope, &caller.actor()).await?.into()))
}
