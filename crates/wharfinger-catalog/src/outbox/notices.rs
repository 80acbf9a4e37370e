//! What owners are told, written in the transaction of what happened, with a line in the outbox for everybody else who
//! is to hear of it.

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
use crate::files::batches::Totals;
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

/// What somebody is about to be told.
#[derive(Clone, Debug)]
pub(crate) struct NewNotice {
    pub(crate) id: Uuid,
    pub(crate) tenant: TenantId,
    pub(crate) user: UserId,
    pub(crate) kind: &'static str,
    pub(crate) file: Option<(String, String)>,
    pub(crate) batch: Option<String>,
    pub(crate) message: String,
    pub(crate) data: Value,
    pub(crate) at: UnixMs,
    /// What is told of one subject arrives in the order of its places.
    pub(crate) subject: String,
    pub(crate) place: i64,
    /// For operators, where it concerns them.
    pub(crate) alert: Option<String>,
}

impl NewNotice {
    /// Of a file: its versions are the places.
    fn of_file(id: Uuid, file: &File, kind: &'static str, message: String, data: Value) -> NewNotice {
        NewNotice {
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

    pub(crate) fn of_change(id: Uuid, change: &Change, notice: FileNotification) -> NewNotice {
        let file = &change.after;
        let reason = change.history.last().map_or("", |step| step.reason.as_str());
        let (message, data) = match notice {
            FileNotification::Ready => (format!("{} is ready.", file.name), json!({})),
            FileNotification::Failed | FileNotification::GivenUp => (
                format!("{} could not be processed: {reason}.", file.name),
                json!({ "reason": reason, "stage": file.stage }),
            ),
            FileNotification::DeletionWarning => {
                let date = file.next_check_at.map(rfc3339).unwrap_or_default();
                (
                    format!("{} could not be processed and will be deleted after {date}.", file.name),
                    json!({ "reason": file.error, "deletionDate": date }),
                )
            }
            FileNotification::CleanedUp => {
                let message = match change.before.status == Status::Failed {
                    true => format!("{} could not be processed and has been deleted.", file.name),
                    false => {
                        format!("The upload of {} was not confirmed in time and has been removed.", file.name)
                    }
                };
                (message, json!({ "reason": reason, "sizeReclaimed": change.refunded_bytes() }))
            }
            FileNotification::Quarantined => {
                (format!("{} has been quarantined: {reason}.", file.name), json!({ "reason": reason }))
            }
        };
        let told = NewNotice::of_file(id, file, notice.as_str(), message, data);
        match notice {
            FileNotification::Quarantined => told.alarming("quarantined", reason),
            FileNotification::GivenUp => told.alarming("given up", reason),
            FileNotification::Ready | FileNotification::Failed | FileNotification::DeletionWarning | FileNotification::CleanedUp => told,
        }
    }

    /// A batch whose time was over.
    pub(crate) fn of_expired_batch(id: Uuid, batch: &Batch, totals: &Totals, now: UnixMs) -> NewNotice {
        let (confirmed, removed) = (totals.confirmed, totals.unconfirmed);
        NewNotice {
            id,
            tenant: batch.tenant.clone(),
            user: batch.user.clone(),
            kind: "batch-expired",
            file: None,
            batch: Some(batch.id.to_string()),
            message: format!(
                "A batch of uploads was not completed in time: {removed} of its files were not confirmed and are \
                 removed, {confirmed} stay."
            ),
            data: json!({
                "reason": "the time of the batch was over",
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

    /// Operators are told as well.
    fn alarming(mut self, what: &str, reason: &str) -> NewNotice {
        let (id, name) = self.file.clone().unwrap_or_default();
        self.alert = Some(format!("{name} of tenant {} was {what}: {reason} (file {id})", self.tenant));
        self
    }
}

pub(crate) fn rfc3339(at: UnixMs) -> String {
    let at = DateTime::from_timestamp_millis(at).unwrap_or(DateTime::<Utc>::MAX_UTC);
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

const NOTICE_COLUMNS: usize = 10;

/// Writes all of them, each with its lines for whoever else is told.
pub(crate) async fn insert(
    tx: &mut Tx<'_>,
    notices: &[NewNotice],
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    for notices in notices.chunks(tx.dialect().rows_max()) {
        let mut args = Vec::new();
        let mut rows = Vec::with_capacity(notices.len());
        for notice in notices {
            rows.push(format!("({})", places(args.len() + 1, NOTICE_COLUMNS)));
            args.extend(args![
                notice.id.to_string(),
                notice.tenant.as_str(),
                notice.user.as_str(),
                notice.kind,
                notice.file.as_ref().map(|(id, _)| id.as_str()),
                notice.file.as_ref().map(|(_, name)| name.as_str()),
                notice.batch.as_deref(),
                notice.message.as_str(),
                notice.data.to_string(),
                notice.at,
            ]);
        }
        let sql = format!(
            "INSERT INTO notifications (id, tenant_id, user_id, kind, file_id, file_name, batch_id, message, data, \
             created_at) VALUES {}",
            rows.join(", ")
        );
        tx.run_built(sql, args).await?;
    }
    let outbound: Vec<(&NewNotice, OutboxPayload)> =
        notices.iter().flat_map(|notice| notice.outbound(targets).map(move |payload| (notice, payload))).collect();
    let lines: Vec<NewLine<'_>> = outbound
        .iter()
        .map(|(notice, payload)| NewLine { tenant: &notice.tenant, payload, at: notice.at })
        .collect();
    lines::insert_all(tx, &lines).await
}

/// What the owners of changed files are told.
pub(crate) async fn changed(
    tx: &mut Tx<'_>,
    changes: &[&Change],
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    let told = |change: &&Change| {
        let notice = change.notification?;
        Some(NewNotice::of_change(fresh_id(change.after.updated_at), change, notice))
    };
    insert(tx, &changes.iter().filter_map(told).collect::<Vec<_>>(), targets).await
}

impl NewNotice {
    fn outbound(&self, targets: OutboxTargets) -> impl Iterator<Item = OutboxPayload> {
        let notice = targets.webhook.then(|| OutboxPayload::Notice {
            notification: self.id,
            subject: self.subject.clone(),
            place: self.place,
        });
        let alert = self.alert.clone().filter(|_| targets.slack).map(|message| OutboxPayload::Alert { message });
        notice.into_iter().chain(alert)
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

struct ForgetOld {
    before: UnixMs,
    limit: usize,
}

impl Write for ForgetOld {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        // Ids begin with their time: the oldest are the first of the primary key.
        let first_kept = Uuid::from_u128(u128::from(u64::try_from(self.before).unwrap_or(0)) << 80);
        let gone = tx
            .run(
                "DELETE FROM notifications WHERE id IN (SELECT id FROM notifications WHERE id < $1 \
                 AND created_at < $2 ORDER BY id LIMIT $3)",
                args![first_kept.to_string(), self.before, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(gone))
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

    /// Those of these that are still known, in no order.
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

    /// Forgets the oldest of what was told before; answers how many.
    pub async fn purge_notifications(&self, before: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(ForgetOld { before, limit }).await
    }
}
