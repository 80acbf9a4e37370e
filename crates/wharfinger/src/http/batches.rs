//! The calls for batches.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use wharfinger_lifecycle::id::BatchId;

use super::Shared;
use super::auth::UserAuth;
use super::extract::{Body, Id, idempotency_key};
use super::problem::Problem;
use super::wire::{BatchCompletionView, BatchRequest, BatchView};
use crate::batches::{cancel, complete, find, open};

/// Open a batch
#[utoipa::path(
    post, path = "/api/v2/batches", tag = "batches", operation_id = "openBatch",
    request_body = BatchRequest,
    params(("Idempotency-Key" = Option<String>, Header, example = "order-4711", description = "A repeated request with the same key and body returns the same batch")),
    responses(
        (status = 201, body = BatchView, description = "All files are registered and charged, in the order of the request"),
        (status = 400, body = Problem, description = "`invalid_request`, naming fields as `files[17].size`"),
        (status = 403, body = Problem, description = "`quota_exceeded`, `unconfirmed_limit` or `file_limit`: no file was registered"),
        (status = 410, body = Problem, description = "`gone`: the batch with this idempotency key was cancelled or has expired"),
        (status = 413, body = Problem, description = "`too_large`"),
        (status = 415, body = Problem, description = "`type_not_allowed`, naming fields as `files[17].contentType`: no file was registered"),
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
        (status = 200, body = BatchView, description = "Every file with its status, and an upload URL for each `registered` file"),
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
        (status = 200, body = BatchCompletionView, description = "All files are confirmed"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`batch_incomplete`: the uploaded files were confirmed; `files` says \
            why the others could not be"),
        (status = 410, body = Problem, description = "`gone`: the batch was cancelled or has expired"),
    ),
)]
pub(super) async fn complete(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<BatchId>,
) -> Result<Json<BatchCompletionView>, Problem> {
    Ok(Json(complete::complete(&app.uploads, &caller, id).await?.into()))
}

/// Cancel a batch
#[utoipa::path(
    post, path = "/api/v2/batches/{id}/cancel", tag = "batches", operation_id = "cancelBatch",
    params(("id" = String, Path, example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")),
    responses(
        (status = 200, body = BatchView, description = "Confirmed files stay. The others are removed in the background"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`batch_closed`: the batch is completed or has expired"),
    ),
)]
pub(super) async fn cancel(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<BatchId>,
) -> Result<Json<BatchView>, Problem> {
    Ok(Json(cancel::cancel(&app.core, &caller, id).await?.into()))
}
