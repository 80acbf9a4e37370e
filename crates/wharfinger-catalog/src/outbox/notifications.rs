//! Notifications of owners, written in the transaction that causes them. The webhook gets an outbox line for each
//! notification, Slack for each alert.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use uuid::Uuid;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::Batch;
use wharfinger_lifecycle::file::{Change, File, FileNotification};
use wharfinger_lifecycle::id::{TenantId, UserId};
use wharfinger_lifecycle::state::Status;

use crate::Catalog;
use crate::OutboxTargets;
use crate::database::sql::{Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::files::batches::BatchTotals;
use crate::fresh_id;
use crate::outbox::lines::{self, NewLine, OutboxPayload};
use crate::unreadable::{SPARE_ROWS, Table};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub id: Uuid,
    pub tenant: String,
    pub user: String,
    pub kind: String,
    pub file_id: Option<String>,
    pub file_name: Option<String>,
    pub batch_id: Option<String>,
    pub message: String,
    /// A JSON object.
    pub data: String,
    pub created_at: UnixMs,
}

/// A notification that is not written yet.
#[derive(Clone, Debug)]
pub(crate) struct NewNotification {
    pub(crate) id: Uuid,
    pub(crate) tenant: TenantId,
    pub(crate) user: UserId,
    pub(crate) kind: &'static str,
    pub(crate) file: Option<(String, String)>,
    pub(crate) batch: Option<String>,
    pub(crate) message: String,
    pub(crate) data: Value,
    pub(crate) at: UnixMs,
    /// Messages about one subject are delivered in the order of their places.
    pub(crate) subject: String,
    pub(crate) place: i64,
    /// The text of an alert for operators, if there is one.
    pub(crate) alert: Option<String>,
}

impl NewNotification {
    /// About a file. Its version is the place.
    fn of_file(id: Uuid, file: &File, kind: &'static str, message: String, data: Value) -> NewNotification {
        NewNotification {
            id,
            tenant: file.tenant.clone(),
            user: file.user.clone(),
            kind,
            file: Some((file.id.to_string(), file.name.clone())),
            batch: file.batch.map(|batch| batch.to_string()),
            message,
            data,
            at: file.updated_at,
            subject: file.id.to_string(),
            place: file.version,
            alert: None,
        }
    }

    pub(crate) fn of_change(id: Uuid, change: &Change, notification: FileNotification) -> NewNotification {
        let file = &change.after;
        let reason = change.history.last().map_or("", |step| step.reason.as_str());
        let (message, data) = match notification {
            FileNotification::Ready => {
                (format!("{} is ready.", file.name), json!({ "textStatus": file.text_status }))
            }
            FileNotification::Failed | FileNotification::GivenUp => (
                format!("{} could not be processed: {reason}.", file.name),
                json!({ "reason": reason, "stage": file.stage }),
            ),
            FileNotification::DeletionWarning => {
                let date = file.next_check_at.map(rfc3339).unwrap_or_default();
                let state = match file.status {
                    Status::Quarantined => "is quarantined",
                    _ => "could not be processed",
                };
                (
                    format!("{} {state} and will be deleted after {date}.", file.name),
                    json!({ "reason": file.error, "deletionDate": date }),
                )
            }
            FileNotification::CleanedUp => {
                let message = match change.before.status {
                    Status::Failed => format!("{} could not be processed and has been deleted.", file.name),
                    Status::Quarantined => format!("{} was quarantined and has been deleted.", file.name),
                    _ => {
                        format!("The upload of {} was not confirmed in time and has been removed.", file.name)
                    }
                };
                (message, json!({ "reason": reason, "sizeReclaimed": change.refunded_bytes() }))
            }
            FileNotification::Quarantined => {
                (format!("{} has been quarantined: {reason}.", file.name), json!({ "reason": reason }))
            }
        };
        let new = NewNotification::of_file(id, file, notification.as_str(), message, data);
        match notification {
            FileNotification::Quarantined => new.with_alert("was quarantined", reason),
            FileNotification::GivenUp => new.with_alert("failed permanently", reason),
            FileNotification::Ready
            | FileNotification::Failed
            | FileNotification::DeletionWarning
            | FileNotification::CleanedUp => new,
        }
    }

    /// About an expired batch.
    pub(crate) fn of_expired_batch(
        id: Uuid,
        batch: &Batch,
        totals: &BatchTotals,
        now: UnixMs,
    ) -> NewNotification {
        let (confirmed, removed) = (totals.confirmed, totals.unconfirmed);
        NewNotification {
            id,
            tenant: batch.tenant.clone(),
            user: batch.user.clone(),
            kind: "batch-expired",
            file: None,
            batch: Some(batch.id.to_string()),
            message: format!(
                "A batch of uploads was not completed in time. {removed} unconfirmed files are removed, {confirmed} \
                 confirmed files stay."
            ),
            data: json!({
                "reason": "the batch has expired",
                "confirmedFiles": confirmed,
                "removedFiles": removed,
                "sizeReclaimed": totals.unconfirmed_bytes,
            }),
            at: now,
            subject: batch.id.to_string(),
            place: batch.version,
            alert: None,
        }
    }

    /// Also alerts operators.
    fn with_alert(mut self, event: &str, reason: &str) -> NewNotification {
        let (id, name) = self.file.clone().unwrap_or_default();
        self.alert = Some(format!("{name} of tenant {} {event}: {reason} (file {id})", self.tenant));
        self
    }
}

pub(crate) fn rfc3339(at: UnixMs) -> String {
    let at = DateTime::from_timestamp_millis(at).unwrap_or(DateTime::<Utc>::MAX_UTC);
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

const NOTIFICATION_COLUMNS: usize = 10;

/// Writes notifications, each with its lines in the outbox.
pub(crate) async fn insert(
    tx: &mut Tx<'_>,
    notifications: &[NewNotification],
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    for notifications in notifications.chunks(tx.dialect().rows_max()) {
        let mut args = Vec::new();
        let mut rows = Vec::with_capacity(notifications.len());
        for notification in notifications {
            rows.push(format!("({})", places(args.len() + 1, NOTIFICATION_COLUMNS)));
            args.extend(args![
                notification.id.to_string(),
                notification.tenant.as_str(),
                notification.user.as_str(),
                notification.kind,
                notification.file.as_ref().map(|(id, _)| id.as_str()),
                notification.file.as_ref().map(|(_, name)| name.as_str()),
                notification.batch.as_deref(),
                notification.message.as_str(),
                notification.data.to_string(),
                notification.at,
            ]);
        }
        let sql = format!(
            "INSERT INTO notifications (id, tenant_id, user_id, kind, file_id, file_name, batch_id, message, data, \
             created_at) VALUES {}",
            rows.join(", ")
        );
        tx.run_built(sql, args).await?;
    }
    let outbound: Vec<(&NewNotification, OutboxPayload)> = notifications
        .iter()
        .flat_map(|notification| notification.outbound(targets).map(move |payload| (notification, payload)))
        .collect();
    let lines: Vec<NewLine<'_>> = outbound
        .iter()
        .map(|(notification, payload)| NewLine { tenant: &notification.tenant, payload, at: notification.at })
        .collect();
    lines::insert_all(tx, &lines).await
}

/// Writes the notifications that changes of files cause.
pub(crate) async fn changed(
    tx: &mut Tx<'_>,
    changes: &[&Change],
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    let new = |change: &&Change| {
        let notification = change.notification?;
        Some(NewNotification::of_change(fresh_id(change.after.updated_at), change, notification))
    };
    insert(tx, &changes.iter().filter_map(new).collect::<Vec<_>>(), targets).await
}

impl NewNotification {
    fn outbound(&self, targets: OutboxTargets) -> impl Iterator<Item = OutboxPayload> {
        let notification = targets.webhook.then(|| OutboxPayload::Notification {
            notification: self.id,
            subject: self.subject.clone(),
            place: self.place,
        });
        let alert =
            self.alert.clone().filter(|_| targets.slack).map(|message| OutboxPayload::Alert { message });
        notification.into_iter().chain(alert)
    }
}

const COLUMNS: &str = "id, tenant_id, user_id, kind, file_id, file_name, batch_id, message, data, created_at";

pub(crate) fn decode(row: &Row) -> Result<Notification, CatalogError> {
    Ok(Notification {
        id: row.parsed("id")?,
        tenant: row.text("tenant_id")?,
        user: row.text("user_id")?,
        kind: row.text("kind")?,
        file_id: row.maybe_text("file_id")?,
        file_name: row.maybe_text("file_name")?,
        batch_id: row.maybe_text("batch_id")?,
        message: row.text("message")?,
        data: row.text("data")?,
        created_at: row.int("created_at")?,
    })
}

struct PurgeNotifications {
    before: UnixMs,
    limit: usize,
}

impl Write for PurgeNotifications {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        // Ids begin with their time, so the primary key finds the oldest.
        let first_kept = Uuid::from_u128(u128::from(u64::try_from(self.before).unwrap_or(0)) << 80);
        let deleted = tx
            .run(
                "DELETE FROM notifications WHERE id IN (SELECT id FROM notifications WHERE id < $1 \
                 AND created_at < $2 ORDER BY id LIMIT $3)",
                args![first_kept.to_string(), self.before, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(deleted))
    }
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
        let sql = format!(
            "SELECT {COLUMNS} FROM notifications \
             WHERE tenant_id = $1 AND user_id = $2 AND id < $3 ORDER BY id DESC LIMIT $4"
        );
        let mut reader = self.reader().await?;
        let rows = reader
            .tx(&self.faults)
            .rows_built(sql, args![tenant.as_str(), user.as_str(), before, (limit + SPARE_ROWS) as i64])
            .await?;
        Ok(self.readable_page(Table::Notifications, &rows, limit, decode).await)
    }

    /// Those of these notifications that still exist, in no order.
    pub async fn notifications_by_id(&self, ids: &[Uuid]) -> Result<Vec<Notification>, CatalogError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!("SELECT {COLUMNS} FROM notifications WHERE id IN ({})", places(1, ids.len()));
        let args = ids.iter().flat_map(|id| args![id.to_string()]).collect();
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        Ok(self.readable(Table::Notifications, "id", &rows, decode).await)
    }

    /// Deletes the oldest notifications from before a time; returns how many.
    pub async fn purge_notifications(&self, before: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeNotifications { before, limit }).await
    }
}
