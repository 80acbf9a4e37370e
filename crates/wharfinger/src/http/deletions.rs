//! The deletion log: which objects were deleted, why, and by which sweep.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wharfinger_catalog::{Deletion, Scope};

use super::Shared;
use super::auth::AdminAuth;
use super::extract::{QueryParams, TenantPageQuery, cut_page};
use super::problem::Problem;
use crate::clock::{parse_rfc3339, rfc3339};
use crate::core::{Caller, VerbError};
use crate::sweeps::Sweep;
use crate::uploads::init::CHECK_QUEUE;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeletionsQuery {
    /// Only objects that were deleted at this time or later.
    #[param(example = "2026-11-15T00:00:00Z")]
    since: Option<String>,
    /// `nextCursor` of the previous page.
    #[param(example = "1767268800000.0198c5a1-7b7e-7c3a-9d53-0e6f0a2b1c4d")]
    cursor: Option<String>,
    /// 1 to 1000. Default: 50.
    #[param(example = 50)]
    limit: Option<usize>,
    /// For operators: only this tenant. Default: all tenants.
    #[param(example = "default")]
    tenant: Option<String>,
}

impl DeletionsQuery {
    fn since(&self) -> Result<i64, Problem> {
        let Some(text) = &self.since else { return Ok(i64::MIN) };
        parse_rfc3339(text)
            .ok_or_else(|| Problem::invalid("since", "is not a time like 2026-11-15T00:00:00Z (RFC 3339)"))
    }

    fn page(self, caller: &Caller) -> Result<(Scope, TenantPageQuery), Problem> {
        let page = TenantPageQuery::new(self.cursor, self.limit, self.tenant);
        Ok((page.scope(caller)?, page))
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionsView {
    deletions: Vec<DeletionView>,
    #[schema(example = "1767268800000.0198c5a1-7b7e-7c3a-9d53-0e6f0a2b1c4d")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionView {
    /// What stages made of a file is one line, whose key is the folder.
    #[schema(example = "uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    key: String,
    /// Bytes, as far as they are known: those of derived objects and of unfinished uploads are not.
    #[schema(example = 52_417)]
    size: u64,
    /// How many objects the line stands for. 0: an unfinished upload in parts was aborted.
    #[schema(example = 1)]
    objects: u64,
    /// `deleted`, `reclaimed`, `orphan_blob`, `unfinished_upload` or `superseded` (the output of an attempt that failed).
    #[schema(example = "orphan_blob")]
    reason: String,
    /// The sweep that ordered the delete, or `upload-check`: the check at the end of an upload's window. Null: a person or
    /// a worker ordered it.
    #[schema(example = "orphan-cleanup")]
    sweep: Option<String>,
    /// Who ordered the delete. Null: the server, for bytes that arrived after the end of their file.
    #[schema(example = "orphan-cleanup")]
    by: Option<String>,
    /// Null: the key names no file.
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: Option<String>,
    /// Null: the key names no tenant.
    #[schema(example = "acme")]
    tenant: Option<String>,
    /// When the store had confirmed the last delete of the object.
    #[schema(example = "2026-11-15T03:00:09.112Z")]
    deleted_at: String,
}

impl From<Deletion> for DeletionView {
    fn from(deletion: Deletion) -> Self {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let is_sweep = |by: &&String| Sweep::named(by).is_some() || *by == CHECK_QUEUE;
        DeletionView {
            key: deletion.key,
            size: deletion.size,
            objects: deletion.objects,
            reason: deletion.reason,
            sweep: deletion.ordered_by.as_ref().filter(is_sweep).cloned(),
            by: deletion.ordered_by,
            file_id: some(deletion.file),
            tenant: some(deletion.tenant),
            deleted_at: rfc3339(deletion.cursor.deleted_at),
        }
    }
}

/// List deleted objects
#[utoipa::path(
    get, path = "/api/v2/maintenance/deletions", tag = "maintenance", operation_id = "listDeletions",
    params(DeletionsQuery),
    responses(
        (status = 200, body = DeletionsView,
            description = "Newest first. Kept for DELETION_LOG_DAYS. Admins see their tenant, operators all"),
        (status = 400, body = Problem, description = "`invalid_request`: `since` is not a time"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `admin` or `operator`"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    AdminAuth(caller): AdminAuth,
    QueryParams(query): QueryParams<DeletionsQuery>,
) -> Result<Json<DeletionsView>, Problem> {
    let since = query.since()?;
    let (scope, page) = query.page(&caller)?;
    let page = page.page();
    let (limit, cursor) = (page.limit()?, page.cursor()?);
    let catalog = &app.core.catalog;
    let mut lines = catalog.deletions(&scope, since, cursor, limit + 1).await.map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut lines, limit, |line| line.cursor.to_string());
    Ok(Json(DeletionsView { deletions: lines.into_iter().map(DeletionView::from).collect(), next_cursor }))
}
