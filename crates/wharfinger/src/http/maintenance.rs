//! Calls of those who keep the place in order, and what users were told about it.

use axum::Json;
use axum::extract::State;

use super::Shared;
use super::auth::{Keeper, Person};
use super::extract::{Asked, PageQuery, cut_page};
use super::problem::Problem;
use super::wire::{CleanupStatusView, CleanupView, CleanupsView, NotificationView, NotificationsView};
use crate::clock::rfc3339;
use crate::sweeps::pending_cleanups::{self, Outcome};
use crate::sweeps::run_cleanups_of;
use crate::uploads::VerbError;

/// Retry failed deletes now
#[utoipa::path(
    post, path = "/api/v1/maintenance/cleanup/trigger", tag = "maintenance", operation_id = "triggerCleanup",
    responses(
        (status = 200, body = Outcome, description = "All failed deletes of the caller's scope were tried again"),
        (status = 403, body = Problem),
    ),
)]
pub(super) async fn trigger(
    State(app): State<Shared>,
    Keeper(caller): Keeper,
) -> Result<Json<Outcome>, Problem> {
    let now = app.clock.now();
    app.catalog.retry_cleanups_now(&caller.scope(), now).await.map_err(VerbError::from)?;
    Ok(Json(run_cleanups_of(&app, &caller.scope()).await?))
}

/// Count pending deletes
#[utoipa::path(
    get, path = "/api/v1/maintenance/cleanup/status", tag = "maintenance", operation_id = "cleanupStatus",
    responses((status = 200, body = CleanupStatusView), (status = 403, body = Problem)),
)]
pub(super) async fn status(
    State(app): State<Shared>,
    Keeper(caller): Keeper,
) -> Result<Json<CleanupStatusView>, Problem> {
    let counts = app.catalog.cleanup_counts(&caller.scope()).await.map_err(VerbError::from)?;
    let last_run = app.catalog.sweep_ended_at(pending_cleanups::NAME).await.map_err(VerbError::from)?;
    Ok(Json(CleanupStatusView {
        pending: counts.pending,
        exhausted: counts.exhausted,
        oldest_age: counts.oldest_created_at.map(|at| app.clock.now().saturating_sub(at).max(0)),
        last_run: last_run.map(rfc3339),
    }))
}

/// List pending deletes
#[utoipa::path(
    get, path = "/api/v1/maintenance/cleanup/pending", tag = "maintenance", operation_id = "pendingCleanups",
    params(PageQuery),
    responses((status = 200, body = CleanupsView, description = "Oldest first"), (status = 403, body = Problem)),
)]
pub(super) async fn pending(
    State(app): State<Shared>,
    Keeper(caller): Keeper,
    Asked(page): Asked<PageQuery>,
) -> Result<Json<CleanupsView>, Problem> {
    let limit = page.limit()?;
    let mut cleanups = app
        .catalog
        .pending_cleanups(&caller.scope(), page.cursor()?, limit + 1)
        .await
        .map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut cleanups, limit, |cleanup| cleanup.id.to_string());
    Ok(Json(CleanupsView { cleanups: cleanups.into_iter().map(CleanupView::from).collect(), next_cursor }))
}

/// List notifications
#[utoipa::path(
    get, path = "/api/v2/notifications", tag = "notifications", operation_id = "listNotifications",
    params(PageQuery),
    responses((status = 200, body = NotificationsView, description = "What this user was told, newest first")),
)]
pub(super) async fn notifications(
    State(app): State<Shared>,
    Person(caller): Person,
    Asked(page): Asked<PageQuery>,
) -> Result<Json<NotificationsView>, Problem> {
    let limit = page.limit()?;
    let mut told = app
        .catalog
        .notifications(&caller.tenant, &caller.user, page.cursor()?, limit + 1)
        .await
        .map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut told, limit, |notification| notification.id.to_string());
    let notifications = told.into_iter().map(NotificationView::from).collect();
    Ok(Json(NotificationsView { notifications, next_cursor }))
}
