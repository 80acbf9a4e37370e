//! The calls for quotas.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::json;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::limits::QUOTA_BYTES_MAX;

use super::Shared;
use super::auth::{OperatorAuth, UserAuth};
use super::extract::{Body, PageQuery, QueryParams, cut_page};
use super::problem::Problem;
use super::wire::{QuotaView, SetQuotaRequest, TenantsView};
use crate::core::VerbError;
use crate::core::audit::AuditedAction;

/// Show the tenant's quota
#[utoipa::path(
    get, path = "/api/v2/quota", tag = "quota", operation_id = "getQuota",
    responses((status = 200, body = QuotaView, description = "The quota of the caller's tenant")),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
) -> Result<Json<QuotaView>, Problem> {
    show(&app, &caller.tenant).await
}

/// Set a tenant's limit
#[utoipa::path(
    put, path = "/api/v2/tenants/{tenant}/quota", tag = "quota", operation_id = "setQuota",
    params(("tenant" = String, Path, example = "acme")),
    request_body = SetQuotaRequest,
    responses(
        (status = 200, body = QuotaView, description = "The new limit. Below the used bytes it only rejects new uploads"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn set(
    State(app): State<Shared>,
    OperatorAuth(caller): OperatorAuth,
    Path(tenant): Path<String>,
    Body(request): Body<SetQuotaRequest>,
) -> Result<Json<QuotaView>, Problem> {
    let tenant = TenantId::new(&tenant).map_err(|bad| Problem::invalid("tenant", bad))?;
    if request.limit > QUOTA_BYTES_MAX {
        return Err(Problem::invalid("limit", format!("must be at most {QUOTA_BYTES_MAX}")));
    }
    let action = AuditedAction {
        name: "quota-limit-set",
        tenant: Some(&tenant),
        subject: tenant.to_string(),
        detail: json!({ "limit": request.limit }),
    };
    let audited = app.core.catalog.audited(action.by(&caller, app.core.clock.now()));
    audited.set_limit(&tenant, request.limit).await.map_err(VerbError::from)?;
    tracing::info!(tenant = %tenant, action = "quota-set", limit = request.limit, by = %caller.user, "quota limit set");
    show(&app, &tenant).await
}

/// List tenants
#[utoipa::path(
    get, path = "/api/v2/tenants", tag = "quota", operation_id = "listTenants",
    params(PageQuery),
    responses(
        (status = 200, body = TenantsView, description = "Every tenant that has files or its own limit, ordered by name"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    OperatorAuth(_caller): OperatorAuth,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<TenantsView>, Problem> {
    let (limit, after) = (page.limit()?, page.cursor::<String>()?.unwrap_or_default());
    let quotas = app.core.catalog.quotas(&after, limit + 1, app.core.settings.default_quota_bytes).await;
    let mut quotas = quotas.map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut quotas, limit, |(tenant, _)| tenant.to_string());
    let tenants = quotas.into_iter().map(|(tenant, quota)| QuotaView::new(tenant.as_str(), quota)).collect();
    Ok(Json(TenantsView { tenants, next_cursor }))
}

async fn show(app: &Shared, tenant: &TenantId) -> Result<Json<QuotaView>, Problem> {
    let quota = app
        .core
        .catalog
        .quota(tenant, app.core.settings.default_quota_bytes)
        .await
        .map_err(VerbError::from)?;
    Ok(Json(QuotaView::new(tenant.as_str(), quota)))
}
