//! The calls for cleanups, the event spool and notifications.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;
use wharfinger_catalog::Scope;

use super::Shared;
use super::auth::{AdminAuth, OperatorAuth, UserAuth};
use super::extract::{PageQuery, QueryParams, TenantPageQuery, TenantQuery, cut_page};
use super::problem::Problem;
use super::wire::{CleanupStatusView, CleanupView, CleanupsView, NotificationView, NotificationsView};
use crate::app::App;
use crate::clock::rfc3339;
use crate::core::VerbError;
use crate::core::audit::AuditedAction;
use crate::sweeps::pending_cleanups::{self, Outcome};
use crate::sweeps::run_cleanups_in;

/// Retry failed cleanups now
#[utoipa::path(
    post, path = "/api/v1/maintenance/cleanup/trigger", tag = "maintenance", operation_id = "triggerCleanup",
    params(TenantQuery),
    responses(
        (status = 200, body = Outcome, description = "All failed cleanups in the caller's scope were tried again"),
        (status = 403, body = Problem),
    ),
)]
pub(super) async fn trigger(
    State(app): State<Shared>,
    AdminAuth(caller): AdminAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Json<Outcome>, Problem> {
    let (scope, now) = (query.scope(&caller)?, app.core.clock.now());
    let action = AuditedAction {
        name: "cleanups-triggered",
        tenant: match &scope {
            Scope::Tenant(tenant) | Scope::User(tenant, _) => Some(tenant),
            Scope::All => None,
        },
        subject: "pending-cleanups".to_owned(),
        detail: json!({}),
    };
    let audited = app.core.catalog.audited(action.by(&caller, now));
    audited.retry_cleanups_now(&scope, now).await.map_err(VerbError::from)?;
    Ok(Json(run_cleanups_in(&app.core, &scope, &caller.actor()).await?))
}

/// Count pending cleanups
#[utoipa::path(
    get, path = "/api/v1/maintenance/cleanup/status", tag = "maintenance", operation_id = "cleanupStatus",
    params(TenantQuery),
    responses((status = 200, body = CleanupStatusView), (status = 403, body = Problem)),
)]
pub(super) async fn status(
    State(app): State<Shared>,
    AdminAuth(caller): AdminAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Json<CleanupStatusView>, Problem> {
    Ok(Json(cleanup_status(&app, &query.scope(&caller)?).await?))
}

pub(super) async fn cleanup_status(app: &App, scope: &Scope) -> Result<CleanupStatusView, VerbError> {
    let counts = app.core.catalog.cleanup_counts(scope).await?;
    let last_run = app.core.catalog.sweep_ended_at(pending_cleanups::NAME).await?;
    Ok(CleanupStatusView {
        pending: counts.pending,
        exhausted: counts.exhausted,
        oldest_age: counts.oldest_created_at.map(|at| app.core.clock.now().saturating_sub(at).max(0)),
        last_run: last_run.map(rfc3339),
    })
}

/// Events on disk that wait for the object store.
#[derive(Debug, Serialize, ToSchema)]
pub struct SpoolView {
    /// The process that answered. Each process has its own spool.
    #[schema(example = "wharf-1")]
    instance: String,
    /// Null if this process does not have the role `ingest`.
    spool: Option<SpoolStateView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpoolStateView {
    /// The number of batches, one file each.
    #[schema(example = 3)]
    files: u64,
    #[schema(example = 48_213)]
    bytes: u64,
    /// Above this limit the oldest files are removed.
    #[schema(example = 10_737_418_240_u64)]
    max_bytes: u64,
    /// Milliseconds. Null if the spool is empty.
    #[schema(example = 61_000)]
    oldest_age: Option<i64>,
    /// False while the object store does not accept events.
    is_store_up: bool,
}

/// Get the event spool
#[utoipa::path(
    get, path = "/api/v2/maintenance/spool", tag = "maintenance", operation_id = "spool",
    responses(
        (status = 200, body = SpoolView, description = "The spool of the process that answers"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn spool(
    State(app): State<Shared>,
    OperatorAuth(_caller): OperatorAuth,
) -> Result<Json<SpoolView>, Problem> {
    Ok(Json(spool_state(&app)))
}

pub(super) fn spool_state(app: &App) -> SpoolView {
    let now = app.core.clock.now();
    let spool = app.ingest.get().map(|ingest| {
        let status = ingest.spool_status();
        SpoolStateView {
            files: status.files,
            bytes: status.bytes,
            max_bytes: ingest.spool_bytes_max(),
            oldest_age: status.oldest_unix.map(|unix| now.saturating_sub(unix.saturating_mul(1_000)).max(0)),
            is_store_up: ingest.store_is_up(),
        }
    });
    SpoolView { instance: app.core.settings.instance_id.clone(), spool }
}

/// List pending cleanups
#[utoipa::path(
    get, path = "/api/v1/maintenance/cleanup/pending", tag = "maintenance", operation_id = "pendingCleanups",
    params(TenantPageQuery),
    responses((status = 200, body = CleanupsView, description = "Oldest first"), (status = 403, body = Problem)),
)]
pub(super) async fn pending(
    State(app): State<Shared>,
    AdminAuth(caller): AdminAuth,
    QueryParams(query): QueryParams<TenantPageQuery>,
) -> Result<Json<CleanupsView>, Problem> {
    let (scope, page) = (query.scope(&caller)?, query.page());
    let limit = page.limit()?;
    let mut cleanups = app
        .core
        .catalog
        .pending_cleanups(&scope, page.cursor()?, limit + 1)
        .await
        .map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut cleanups, limit, |cleanup| cleanup.id.to_string());
    Ok(Json(CleanupsView { cleanups: cleanups.into_iter().map(CleanupView::from).collect(), next_cursor }))
}

/// List notifications
#[utoipa::path(
    get, path = "/api/v2/notifications", tag = "notifications", operation_id = "listNotifications",
    params(PageQuery),
    responses((status = 200, body = NotificationsView, description = "The notifications of this user, newest first")),
)]
pub(super) async fn notifications(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<NotificationsView>, Problem> {
    let limit = page.limit()?;
    let mut rows = app
        .core
        .catalog
        .notifications(&caller.tenant, &caller.user, page.cursor()?, limit + 1)
        .await
        .map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut rows, limit, |notification| notification.id.to_string());
    let notifications = rows.into_iter().map(NotificationView::from).collect();
    Ok(Json(NotificationsView { notifications, next_cursor }))
}
