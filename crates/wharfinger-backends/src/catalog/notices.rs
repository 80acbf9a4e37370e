//! What owners are told, written in the transaction of what happened.

use serde_json::json;
use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::Batch;
use wharfinger_lifecycle::file::{Change, Notice};
use wharfinger_lifecycle::id::{TenantId, UserId};

use super::Catalog;
use super::batches::Tally;
use super::error::CatalogError;
use super::sql::{Tx, args};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub id: Uuid,
    pub kind: String,
    pub file_id: Option<String>,
    pub file_name: Option<String>,
    pub batch_id: Option<String>,
    pub message: String,
    /// A JSON object.
    pub data: String,
    pub created_at: UnixMs,
}

pub(super) async fn insert(
    tx: &mut Tx<'_>,
    id: Uuid,
    change: &Change,
    notice: Notice,
) -> Result<(), CatalogError> {
    let file = &change.after;
    let reason = change.steps.last().map_or("", |step| step.reason.as_str());
    let (message, data) = match notice {
        Notice::Ready => (format!("{} is ready.", file.name), json!({})),
        Notice::Failed => (
            format!("{} could not be processed: {reason}.", file.name),
            json!({ "reason": reason, "stage": file.stage }),
        ),
        Notice::CleanedUp => (
            format!("The upload of {} was not confirmed in time and has been removed.", file.name),
            json!({ "reason": reason, "sizeReclaimed": change.refunded_bytes() }),
        ),
        Notice::Quarantined => {
            (format!("{} has been quarantined: {reason}.", file.name), json!({ "reason": reason }))
        }
    };
    tx.run(
        "INSERT INTO notifications (id, tenant_id, user_id, kind, file_id, file_name, batch_id, message, data, \
         created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        args![
            id.to_string(),
            file.tenant.as_str(),
            file.user.as_str(),
            notice.as_str(),
            file.id.to_string(),
            file.name.as_str(),
            file.batch.map(|batch| batch.to_string()),
            message,
            data.to_string(),
            file.updated_at,
        ],
    )
    .await?;
    Ok(())
}

/// A batch whose time was over.
pub(super) async fn insert_for_batch(
    tx: &mut Tx<'_>,
    id: Uuid,
    batch: &Batch,
    tally: &Tally,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let (confirmed, removed) = (tally.confirmed, tally.unconfirmed);
    let message = format!(
        "A batch of uploads was not completed in time: {removed} of its files were not confirmed and are removed, \
         {confirmed} stay."
    );
    let data = json!({
        "reason": "the time of the batch was over",
        "confirmedFiles": confirmed,
        "removedFiles": removed,
        "sizeReclaimed": tally.unconfirmed_bytes,
    });
    tx.run(
        "INSERT INTO notifications (id, tenant_id, user_id, kind, batch_id, message, data, created_at) \
         VALUES ($1, $2, $3, 'batch-expired', $4, $5, $6, $7)",
        args![
            id.to_string(),
            batch.tenant.as_str(),
            batch.user.as_str(),
            batch.id.to_string(),
            message,
            data.to_string(),
            now,
        ],
    )
    .await?;
    Ok(())
}

impl Catalog {
    /// Newest first.
    pub async fn notifications(
        &self,
        tenant: &TenantId,
        user: &UserId,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<Notification>, CatalogError> {
        let before = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let mut reader = self.reader().await?;
        let rows = reader
            .tx(&self.faults)
            .rows(
                "SELECT id, kind, file_id, file_name, batch_id, message, data, created_at FROM notifications \
                 WHERE tenant_id = $1 AND user_id = $2 AND id < $3 ORDER BY id DESC LIMIT $4",
                args![tenant.as_str(), user.as_str(), before, limit as i64],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Notification {
                    id: row.parsed("id")?,
                    kind: row.text("kind")?,
                    file_id: row.maybe_text("file_id")?,
                    file_name: row.maybe_text("file_name")?,
                    batch_id: row.maybe_text("batch_id")?,
                    message: row.text("message")?,
                    data: row.text("data")?,
                    created_at: row.int("created_at")?,
                })
            })
            .collect()
    }
}
