//! The calls for uploads and files. Each handler converts the JSON types to the types of its verb and back.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wharfinger_lifecycle::id::FileId;

use super::Shared;
use super::auth::{OperatorAuth, UserAuth};
use super::extract::{Body, Id, PageQuery, QueryParams, TenantPageQuery, cut_page, idempotency_key};
use super::problem::Problem;
use super::wire::downloads::{DownloadQuery, DownloadView};
use super::wire::{
    ChunksView, ConfirmRequest, FileView, FilesView, GrantView, HistoryView, HitsView, InitRequest,
    ReleaseRequest, SearchRequest, StatusView,
};
use crate::clock::rfc3339;
use crate::pipeline::search;
use crate::uploads::{confirm, delete, download, find, init, reissue, release};

/// Announce an upload
#[utoipa::path(
    post, path = "/api/v2/files/init", tag = "uploads", operation_id = "initFile",
    request_body = InitRequest,
    params(("Idempotency-Key" = Option<String>, Header, example = "order-4711", description = "A repeated request with the same key and body returns the same file")),
    responses(
        (status = 201, body = GrantView, description = "The file is registered and its size is charged. Upload to `uploadUrl`, then confirm"),
        (status = 400, body = Problem, description = "`invalid_request`"),
        (status = 403, body = Problem, description = "`quota_exceeded`, `unconfirmed_limit` or `file_limit`"),
        (status = 404, body = Problem, description = "`not_found`: the caller has no batch with this `batchId`"),
        (status = 409, body = Problem, description = "`batch_closed`"),
        (status = 413, body = Problem, description = "`too_large`"),
        (status = 415, body = Problem, description = "`type_not_allowed`: the tenant may not upload this type. Nothing is reserved"),
        (status = 422, body = Problem, description = "`idempotency_mismatch`"),
    ),
)]
pub(super) async fn init(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    headers: HeaderMap,
    Body(request): Body<InitRequest>,
) -> Result<(StatusCode, Json<GrantView>), Problem> {
    let (announced, batch) = request.into_upload_request()?;
    let grant = init::init(&app.uploads, &caller, announced, batch, idempotency_key(&headers)).await?;
    Ok((StatusCode::CREATED, Json(grant.into())))
}

/// Get a new upload URL
#[utoipa::path(
    post, path = "/api/v2/files/{id}/url", tag = "uploads", operation_id = "reissueUrl",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    responses(
        (status = 200, body = GrantView, description = "A new upload URL. Only possible while the file is `registered`"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`already_confirmed`"),
        (status = 410, body = Problem, description = "`gone`"),
    ),
)]
pub(super) async fn reissue(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
) -> Result<Json<GrantView>, Problem> {
    Ok(Json(reissue::reissue(&app.uploads, &caller, id).await?.into()))
}

/// Confirm an upload
#[utoipa::path(
    post, path = "/api/v2/files/{id}/confirm", tag = "uploads", operation_id = "confirmFile",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    request_body(content = Option<ConfirmRequest>),
    responses(
        (status = 200, body = StatusView, description = "The file is confirmed. The answer is the same if it was confirmed before"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`object_missing`, `size_mismatch`, `checksum_mismatch` or `encoding_mismatch`"),
        (status = 410, body = Problem, description = "`gone`: not confirmed in time, or its batch was cancelled or has expired"),
        (status = 415, body = Problem, description = "`type_not_allowed`: the first bytes are of a type that the tenant may not upload. The file stays registered"),
    ),
)]
pub(super) async fn confirm(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
    Body(request): Body<ConfirmRequest>,
) -> Result<Json<StatusView>, Problem> {
    let status = confirm::confirm(&app.uploads, &caller, id, request.checksum_sha256).await?;
    Ok(Json(StatusView { file_id: id.to_string(), status: status.as_str() }))
}

/// List files
#[utoipa::path(
    get, path = "/api/v2/files", tag = "uploads", operation_id = "listFiles",
    params(TenantPageQuery),
    responses(
        (status = 200, body = FilesView, description = "Newest first"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantPageQuery>,
) -> Result<Json<FilesView>, Problem> {
    let (scope, page) = (query.scope(&caller)?, query.page());
    let page = find::list(&app.core, &scope, page.cursor()?, page.limit()?).await?;
    Ok(Json(FilesView {
        files: page.files.into_iter().map(|file| FileView::new(file, &app.core.plan)).collect(),
        next_cursor: page.next.map(|id| id.to_string()),
    }))
}

/// Get a file
#[utoipa::path(
    get, path = "/api/v2/files/{id}", tag = "uploads", operation_id = "getFile",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    responses(
        (status = 200, body = FileView),
        (status = 404, body = Problem, description = "`not_found`: the file does not exist, was deleted by its owner, or belongs to another user"),
        (status = 410, body = Problem, description = "`gone`: the upload was not confirmed in time and was removed"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
) -> Result<Json<FileView>, Problem> {
    let file = find::find(&app.core, &caller, id).await?;
    let mut view = FileView::new(file, &app.core.plan);
    view.text_truncated = find::is_text_cut(&app.core, id).await?.then_some(true);
    Ok(Json(view))
}

/// Read a file's history
#[utoipa::path(
    get, path = "/api/v2/files/{id}/history", tag = "uploads", operation_id = "getHistory",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    responses((status = 200, body = HistoryView), (status = 404, body = Problem)),
)]
pub(super) async fn history(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
) -> Result<Json<HistoryView>, Problem> {
    let events = find::history(&app.core, &caller, id).await?;
    Ok(Json(HistoryView { events: events.into_iter().map(Into::into).collect() }))
}

/// Read the chunks of a file's text
#[utoipa::path(
    get, path = "/api/v2/files/{id}/chunks", tag = "uploads", operation_id = "getChunks",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368"), PageQuery),
    responses(
        (status = 200, body = ChunksView, description = "The chunks of the file's text. Empty before the chunk stage has finished"),
        (status = 404, body = Problem),
    ),
)]
pub(super) async fn chunks(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<ChunksView>, Problem> {
    let limit = page.limit()?;
    let mut chunks = find::chunks(&app.core, &caller, id, page.cursor()?, limit + 1).await?;
    let next_cursor = cut_page(&mut chunks, limit, |chunk| (chunk.ordinal + 1).to_string());
    Ok(Json(ChunksView { chunks: chunks.into_iter().map(Into::into).collect(), next_cursor }))
}

/// Search the caller's files
#[utoipa::path(
    post, path = "/api/v2/search", tag = "uploads", operation_id = "search",
    request_body = SearchRequest,
    responses(
        (status = 200, body = HitsView, description = "Chunks of the caller's own files by cosine similarity, best first"),
        (status = 400, body = Problem, description = "`invalid_request`"),
        (status = 429, body = Problem, description = "`rate_limited`: this user has two searches running; see `Retry-After`"),
    ),
)]
pub(super) async fn search(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Body(request): Body<SearchRequest>,
) -> Result<Json<HitsView>, Problem> {
    let (query, limit) = request.into_checked()?;
    let hits = search::search(&app.pipeline, &caller, &query, limit).await?;
    Ok(Json(HitsView { hits: hits.into_iter().map(Into::into).collect() }))
}

/// Download a file
///
/// Ready files, and failed ones after a clean scan or without a scan. The URL needs no token, so it also works in an `<img>`.
#[utoipa::path(
    get, path = "/api/v2/files/{id}/download", tag = "uploads", operation_id = "downloadFile",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368"), DownloadQuery),
    responses(
        (status = 200, body = DownloadView, description = "With `redirect=false`: the URL"),
        (status = 302, description = "Redirect to the URL"),
        (status = 400, body = Problem, description = "`invalid_request`"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`not_ready`; `quarantined`; or `object_missing`: the object was removed from the store by another program"),
        (status = 415, body = Problem, description = "`not_inline`: with `disposition=inline`, a type that a browser could run, or an unknown one"),
    ),
)]
pub(super) async fn download(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
    QueryParams(query): QueryParams<DownloadQuery>,
) -> Result<Response, Problem> {
    let link = download::download(&app.uploads, &caller, id, query.request()?).await?;
    let not_stored = (header::CACHE_CONTROL, "no-store".to_owned());
    if query.is_redirect() {
        return Ok((StatusCode::FOUND, [(header::LOCATION, link.url), not_stored]).into_response());
    }
    let view = DownloadView { url: link.url, expires_at: rfc3339(link.expires_at) };
    Ok(([not_stored], Json(view)).into_response())
}

/// Release a quarantined file
///
/// For a false alarm. The file continues at the stage after its scan. If its object was changed in the store, the confirmed
/// bytes must be there again: the file then continues where it stopped. The file's history has the reason and the caller.
#[utoipa::path(
    post, path = "/api/v2/files/{id}/release", tag = "recovery", operation_id = "releaseFile",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    request_body = ReleaseRequest,
    responses(
        (status = 200, body = StatusView, description = "`queued`, or `ready` if no stage is left"),
        (status = 400, body = Problem, description = "`invalid_request`: `reason` is missing, empty or longer than 1,000 bytes"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "`not_quarantined`, also for a repeated call; `object_changed`: the store does not have the confirmed bytes; or `object_missing`"),
        (status = 410, body = Problem, description = "`gone`: the file was deleted at the end of its retention"),
    ),
)]
pub(super) async fn release(
    State(app): State<Shared>,
    OperatorAuth(caller): OperatorAuth,
    Id(id): Id<FileId>,
    Body(request): Body<ReleaseRequest>,
) -> Result<Json<StatusView>, Problem> {
    let status = release::release(&app.uploads, &caller, id, &request.reason()?).await?;
    Ok(Json(StatusView { file_id: id.to_string(), status: status.as_str() }))
}

/// Delete a file
#[utoipa::path(
    delete, path = "/api/v2/files/{id}", tag = "uploads", operation_id = "deleteFile",
    params(("id" = String, Path, example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")),
    responses(
        (status = 204, description = "Deleted. The bytes are deleted in the background"),
        (status = 404, body = Problem),
    ),
)]
pub(super) async fn delete(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    Id(id): Id<FileId>,
) -> Result<StatusCode, Problem> {
    delete::delete(&app.uploads, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
