//! Views of a user's notifications.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use wharfinger_catalog::Notification;

use crate::clock::rfc3339;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationsView {
    pub notifications: Vec<NotificationView>,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationView {
    #[schema(example = "01a1ddbc-7f10-7c42-a2b5-3c1f0e9d8b7a")]
    id: String,
    /// `file-ready`, `file-failed`, `file-quarantined`, `file-deletion-warning`, `batch-expired` or `file-cleaned-up`.
    #[schema(example = "file-cleaned-up")]
    kind: String,
    #[schema(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    file_id: Option<String>,
    #[schema(example = "report.pdf")]
    file_name: Option<String>,
    #[schema(example = "01a1ddbc-7a10-7b42-8f00-6d1b5a0e2c33")]
    batch_id: Option<String>,
    #[schema(example = "The upload of report.pdf was not confirmed in time and has been removed")]
    message: String,
    /// `reason`, `deletionDate`, `sizeReclaimed` and other members, depending on the kind.
    #[schema(value_type = BTreeMap<String, Value>, example = json!({"reason": "not confirmed in time", "sizeReclaimed": 52417}))]
    data: Option<Box<RawValue>>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    created_at: String,
}

impl From<Notification> for NotificationView {
    fn from(notification: Notification) -> Self {
        NotificationView {
            id: notification.id.to_string(),
            kind: notification.kind,
            file_id: notification.file_id,
            file_name: notification.file_name,
            batch_id: notification.batch_id,
            message: notification.message,
            data: RawValue::from_string(notification.data).ok(),
            created_at: rfc3339(notification.created_at),
        }
    }
}
