//! The calls of a batch's life.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use wharfinger_lifecycle::id::BatchId;

use super::Shared;
use super::auth::UserAuth;
use super::extract::{Body, Id, idempotency_key};
use super::problem::Problem;
use super::wire::{BatchRequest, BatchView, CompletionView};
use crate::batches::{cancel, complete, find, open};

/// Open a batch
#[utoipa::path(
    post, path = "/api/v2/batches", tag = "batches", operation_id = "openBatch",
    request_body = BatchRequest,
    params(("Idempotency-Key" = Option<String>, Header, example = "order-4711", description = "The same key and body make one batch")),
    responses(
        (status = 201, body = BatchView, description = "All files charged and registered, in the order of the request"),
        (status = 400, body = Problem, description = "`invalid_request`, naming fields as `files[17].size`"),
        (status = 403, body = Problem, description = "`quota_exceeded`, `unconfirmed_limit` or `file_limit`: none was registered"),
        (status = 410, body = Problem, description = "`gone`: the batch of this key was cancelled or has expired"),
        (status = 413, body = Problem, description = "`too_large`"),
        (status = 422, body = Problem, description = "`idempotency_mismatch`"),
    ),
)]
pub(super) async fn open(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    headers: HeaderMap,
    Body(request): Body<BatchRequest>,
) -> Result<(StatusCode, Json<BatchView>), Problem> {
    let announced = request.files.into_iter().map(Into::into).collect();
    let opened = open::open(&app.uploads, &caller, announced, idempotency_key(&headers)).await?;
    Ok((StatusCode::CREATED, Json(opened.into())))
}

/// Get a batch
#[utoipa::path(
    get, path = "/api/v2/batches/{id}", tag = "batches", operation_id = "getBatch",
    params(("id" = String, Path, example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")),
    responses(
        (status = 200, body = BatchView, description = "Every file with its status; a URL for each that waits"),
        (status = 404, body = Problem),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<BatchId>,
) -> Result<Json<BatchView>, Problem> {
    Ok(Json(find::find(&app.core, &caller, id).await?.into()))
}

/// Complete a batch
#[utoipa::path(
    post, path = "/api/v2/batches/{id}/complete", tag = "batches", operation_id = "completeBatch",
    params(("id" = String, Path, example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")),
    responses(
        (status = 200, body = CompletionView, description = "All files are confirmed, now or before"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`batch_incomplete`: what is uploaded was confirmed, `files` says \
            what keeps the others"),
        (status = 410, body = Problem, description = "`gone`: cancelled or expired"),
    ),
)]
pub(super) async fn complete(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<BatchId>,
) -> Result<Json<CompletionView>, Problem> {
    Ok(Json(complete::complete(&app.uploads, &caller, id).await?.into()))
}

/// Cancel a batch
#[utoipa::path(
    post, path = "/api/v2/batches/{id}/cancel", tag = "batches", operation_id = "cancelBatch",
    params(("id" = String, Path, example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")),
    responses(
        (status = 200, body = BatchView, description = "Confirmed files stay, the others go in the background"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`batch_closed`: completed or expired"),
    ),
)]
pub(super) async fn cancel(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<BatchId>,
) -> Result<Json<BatchView>, Problem> {
    Ok(Json(cancel::cancel(&app.core, &caller, id).await?.into()))
}
