//! Views of pending cleanups (physical deletes).

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::PendingCleanup;

use crate::clock::rfc3339;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanupStatusView {
    #[schema(example = 3)]
    pub pending: u64,
    #[schema(example = 0)]
    pub exhausted: u64,
    /// Milliseconds. Null if nothing is pending.
    #[schema(example = 93_600)]
    pub oldest_age: Option<i64>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    pub last_run: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanupsView {
    pub cleanups: Vec<CleanupView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanupView {
    #[schema(example = "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71")]
    id: String,
    #[schema(example = "uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_path: String,
    #[schema(example = "deleted")]
    reason: String,
    #[schema(example = 2)]
    attempts: i64,
    #[schema(example = 5)]
    max_attempts: i64,
    #[schema(example = "AccessDenied: the bucket has a legal hold")]
    last_error: Option<String>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    created_at: String,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    last_attempt_at: Option<String>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    document_id: String,
}

impl From<PendingCleanup> for CleanupView {
    fn from(cleanup: PendingCleanup) -> Self {
        CleanupView {
            id: cleanup.id.to_string(),
            file_path: cleanup.file_path,
            reason: cleanup.reason,
            attempts: cleanup.attempts,
            max_attempts: cleanup.max_attempts,
            last_error: cleanup.last_error,
            created_at: rfc3339(cleanup.created_at),
            last_attempt_at: cleanup.last_attempt_at.map(rfc3339),
            document_id: cleanup.document_id,
        }
    }
}
