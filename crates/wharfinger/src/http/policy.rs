//! The calls for the rules of single tenants.

use axum::Json;
use axum::extract::{Path, State};
use wharfinger_lifecycle::id::TenantId;

use super::Shared;
use super::auth::OperatorAuth;
use super::extract::Body;
use super::problem::Problem;
use super::wire::policies::{PolicyView, SetPolicyRequest};
use crate::core::VerbError;

/// Show a tenant's rules
#[utoipa::path(
    get, path = "/api/v2/tenants/{tenant}/policy", tag = "quota", operation_id = "getPolicy",
    params(("tenant" = String, Path, example = "acme")),
    responses(
        (status = 200, body = PolicyView, description = "The rules that are set for the tenant, and those that apply"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    OperatorAuth(_caller): OperatorAuth,
    Path(tenant): Path<String>,
) -> Result<Json<PolicyView>, Problem> {
    let tenant = TenantId::new(&tenant).map_err(|bad| Problem::invalid("tenant", bad))?;
    let policy = app.core.catalog.tenant_policy(&tenant).await.map_err(VerbError::from)?;
    Ok(Json(PolicyView::new(&tenant, &policy, app.rules.defaults())))
}

/// Set a tenant's rules
#[utoipa::path(
    put, path = "/api/v2/tenants/{tenant}/policy", tag = "quota", operation_id = "setPolicy",
    params(("tenant" = String, Path, example = "acme")),
    request_body = SetPolicyRequest,
    responses(
        (status = 200, body = PolicyView, description = "The new rules. Other processes apply them after at most 5 seconds"),
        (status = 400, body = Problem, description = "`invalid_request`"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn set(
    State(app): State<Shared>,
    OperatorAuth(caller): OperatorAuth,
    Path(tenant): Path<String>,
    Body(request): Body<SetPolicyRequest>,
) -> Result<Json<PolicyView>, Problem> {
    let tenant = TenantId::new(&tenant).map_err(|bad| Problem::invalid("tenant", bad))?;
    let change = request.into_change(app.rules.defaults())?;
    let policy = app.rules.change(&caller, &tenant, change).await.map_err(VerbError::from)?;
    tracing::info!(tenant = %tenant, action = "policy-set", by = %caller.user,
        allowedTypes = policy.allowed_types.as_ref().map(ToString::to_string),
        maxFileSizeBytes = policy.file_size_bytes_max, requestsPerSecond = policy.requests_per_second,
        "tenant policy set");
    Ok(Json(PolicyView::new(&tenant, &policy, app.rules.defaults())))
}
