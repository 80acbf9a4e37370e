//! Orphans: objects without rows, rows without objects, and abandoned uploads.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{MissingBlob, OrphanBlob, Scope};

use super::Shared;
use super::auth::UserAuth;
use super::extract::{QueryParams, TenantQuery};
use super::problem::Problem;
use crate::app::App;
use crate::clock::rfc3339;
use crate::core::VerbError;
use crate::sweeps::abandoned_uploads::abandoned;

const SAMPLES_MAX: usize = 20;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphansView {
    /// When the store was last compared with the catalog. Null before the first scan.
    #[schema(example = "2026-11-15T03:00:09.112Z")]
    last_scan_time: Option<String>,
    orphan_blobs: OrphanBlobsView,
    abandoned_uploads: AbandonedUploadsView,
    missing_blobs: MissingBlobsView,
}

/// Objects without a live file that the last scan found and that are not deleted yet.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanBlobsView {
    #[schema(example = 2)]
    count: u64,
    /// Bytes.
    #[schema(example = 1_048_583)]
    total_size: u64,
    /// The first 20, ordered by key.
    samples: Vec<OrphanBlobView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanBlobView {
    #[schema(example = "uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_path: String,
    #[schema(example = 52_417)]
    size: u64,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    last_modified: String,
}

/// Uploads that are still not confirmed after ABANDONED_UPLOAD_THRESHOLD_MS.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbandonedUploadsView {
    #[schema(example = 1)]
    count: u64,
    /// Milliseconds since the start of the oldest. Null if there is none.
    #[schema(example = 93_600_000)]
    oldest_age: Option<i64>,
}

/// Live files whose objects the last scan did not find in the store.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissingBlobsView {
    #[schema(example = 1)]
    count: u64,
    samples: Vec<MissingBlobView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissingBlobView {
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: String,
    #[schema(example = "report.pdf")]
    file_name: String,
    #[schema(example = "uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_path: String,
}

impl From<OrphanBlob> for OrphanBlobView {
    fn from(blob: OrphanBlob) -> Self {
        OrphanBlobView { file_path: blob.key, size: blob.size, last_modified: rfc3339(blob.modified_at) }
    }
}

impl From<MissingBlob> for MissingBlobView {
    fn from(blob: MissingBlob) -> Self {
        MissingBlobView { file_id: blob.file_id, file_name: blob.file_name, file_path: blob.key }
    }
}

/// Show orphans
#[utoipa::path(
    get, path = "/api/v2/uploads/orphans", tag = "maintenance", operation_id = "orphans",
    params(TenantQuery),
    responses(
        (status = 200, body = OrphansView,
            description = "What the last scan found in the caller's scope and is still true"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    UserAuth(caller): UserAuth,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<Json<OrphansView>, Problem> {
    Ok(Json(orphans_in(&app, &query.scope(&caller)?).await?))
}

async fn orphans_in(app: &App, scope: &Scope) -> Result<OrphansView, VerbError> {
    let now = app.core.clock.now();
    let last_scan_at = app.core.catalog.last_scan_at().await?;
    let orphans = app.core.catalog.orphans(scope, SAMPLES_MAX).await?;
    let missing = app.core.catalog.missing_blobs(scope, SAMPLES_MAX).await?;
    let (abandoned, oldest_at) = app.core.catalog.count_abandoned(scope, abandoned(&app.core)).await?;
    Ok(OrphansView {
        last_scan_time: last_scan_at.map(rfc3339),
        orphan_blobs: OrphanBlobsView {
            count: orphans.count,
            total_size: orphans.bytes,
            samples: orphans.samples.into_iter().map(OrphanBlobView::from).collect(),
        },
        abandoned_uploads: AbandonedUploadsView {
            count: abandoned,
            oldest_age: oldest_at.map(|at| now.saturating_sub(at)),
        },
        missing_blobs: MissingBlobsView {
            count: missing.count,
            samples: missing.samples.into_iter().map(MissingBlobView::from).collect(),
        },
    })
}
