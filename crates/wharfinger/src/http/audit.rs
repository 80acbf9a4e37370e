//! The list of what operators and admins did.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use wharfinger_catalog::AuditLine;

use super::Shared;
use super::auth::AdminAuth;
use super::extract::{PageQuery, QueryParams, cut_page};
use super::problem::Problem;
use crate::clock::rfc3339;
use crate::core::{Role, VerbError};

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditLogView {
    /// Newest first.
    entries: Vec<AuditEntryView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEntryView {
    #[schema(example = "2026-11-19T10:00:00.000Z")]
    at: String,
    /// The role and the user, or `cli` for a command on the server's machine.
    #[schema(example = "operator:ann")]
    actor: String,
    #[schema(example = "quota-limit-set")]
    action: String,
    /// Null: it concerns no single tenant.
    #[schema(example = "acme")]
    tenant: Option<String>,
    /// The name or id of the thing that was changed.
    #[schema(example = "acme")]
    subject: String,
    #[schema(value_type = BTreeMap<String, Value>, example = json!({"limit": 10_737_418_240_u64}))]
    detail: Value,
}

impl From<AuditLine> for AuditEntryView {
    fn from(line: AuditLine) -> Self {
        AuditEntryView {
            at: rfc3339(line.at),
            actor: line.actor,
            action: line.action,
            tenant: line.tenant,
            subject: line.subject,
            detail: serde_json::from_str(&line.detail).unwrap_or_default(),
        }
    }
}

/// List what operators and admins did
///
/// Limits, policies, service keys, releases, discarded dead letters, and sweeps and cleanups started by hand. Admins see their
/// tenant. Entries are kept for AUDIT_LOG_DAYS.
#[utoipa::path(
    get, path = "/api/v2/maintenance/audit", tag = "maintenance", operation_id = "listAuditLog",
    params(PageQuery),
    responses(
        (status = 200, body = AuditLogView, description = "A page of the log"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `admin` or `operator`"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    AdminAuth(caller): AdminAuth,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<AuditLogView>, Problem> {
    let (limit, before) = (page.limit()?, page.cursor::<String>()?);
    let tenant = (caller.role != Role::Operator).then_some(&caller.tenant);
    let lines = app.core.catalog.audit_log(tenant, before.as_deref(), limit + 1).await;
    let mut lines = lines.map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut lines, limit, |line| line.id.clone());
    Ok(Json(AuditLogView { entries: lines.into_iter().map(AuditEntryView::from).collect(), next_cursor }))
}
