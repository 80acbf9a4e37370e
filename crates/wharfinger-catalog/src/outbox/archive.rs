//! Events for the archive: one per line of a file's history and per change of a batch, each an outbox line that is written
//! in the transaction of the change. Nothing is written if the archive is off.

use serde::Serialize;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::batch::{Batch, BatchStatus};
use wharfinger_lifecycle::file::{Change, EndReason, File, FileNotification, HistoryEntry};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::state::Status;

use crate::OutboxTargets;
use crate::database::sql::{Tx, args, places};
use crate::error::CatalogError;
use crate::files::history::REGISTERED;
use crate::fresh_id;
use crate::outbox::notifications::rfc3339;
use crate::registrations::NewFile;

/// An event as it is archived. Its id is the file and its version, so that a reader can recognise repeated events.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    id: String,
    at: String,
    file_id: String,
    batch_id: Option<String>,
    tenant: &'a str,
    user: &'a str,
    file_name: &'a str,
    size: u64,
    from: Option<Status>,
    to: Status,
    reason: &'a str,
    actor: &'a str,
    version: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BatchEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    id: String,
    at: String,
    batch_id: String,
    tenant: &'a str,
    user: &'a str,
    from: Option<&'static str>,
    to: &'static str,
    actor: &'a str,
    version: i64,
}

/// An event that is not written yet.
struct NewEvent<'a> {
    tenant: &'a TenantId,
    at: UnixMs,
    body: String,
}

/// A line of the history of a file, with the file after the change.
struct HistoryEvent<'a> {
    file: &'a File,
    version: i64,
    kind: &'static str,
    from: Option<Status>,
    to: Status,
    reason: &'a str,
}

impl<'a> HistoryEvent<'a> {
    fn of_entry(change: &'a Change, n: usize, entry: &'a HistoryEntry) -> HistoryEvent<'a> {
        HistoryEvent {
            file: &change.after,
            version: change.version_of_entry(n),
            kind: kind_of(change, entry),
            from: entry.from,
            to: entry.to,
            reason: &entry.reason,
        }
    }

    fn of_registration(file: &'a File) -> HistoryEvent<'a> {
        let (version, to) = (file.version, file.status);
        HistoryEvent { file, version, kind: to.as_str(), from: None, to, reason: REGISTERED }
    }

    fn event(&self, actor: &str) -> Result<NewEvent<'a>, CatalogError> {
        let file = self.file;
        let body = to_json(&FileEvent {
            kind: format!("file.{}", self.kind),
            id: format!("{}:{}", file.id, self.version),
            at: rfc3339(file.updated_at),
            file_id: file.id.to_string(),
            batch_id: file.batch.map(|batch| batch.to_string()),
            tenant: file.tenant.as_str(),
            user: file.user.as_str(),
            file_name: &file.name,
            size: file.size,
            from: self.from,
            to: self.to,
            reason: self.reason,
            actor,
            version: self.version,
        })?;
        Ok(NewEvent { tenant: &file.tenant, at: file.updated_at, body })
    }
}

/// The event is named after the new status. Reclaimed files and deletion warnings have other names.
fn kind_of(change: &Change, entry: &HistoryEntry) -> &'static str {
    match (entry.to, change.after.ended, change.notification) {
        (Status::Deleted, Some(EndReason::Reclaimed), _) => "cleaned-up",
        (Status::Failed | Status::Quarantined, _, Some(FileNotification::DeletionWarning)) => "warned",
        (to, ..) => to.as_str(),
    }
}

fn to_json(event: &impl Serialize) -> Result<String, CatalogError> {
    serde_json::to_string(event)
        .map_err(|error| CatalogError::Corrupt(format!("cannot serialize an event: {error}")))
}

pub(crate) async fn registered(
    tx: &mut Tx<'_>,
    files: &[(&NewFile, &str)],
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    if !targets.archive {
        return Ok(());
    }
    let events = files.iter().map(|(new, actor)| HistoryEvent::of_registration(&new.file).event(actor));
    insert(tx, &events.collect::<Result<Vec<_>, _>>()?).await
}

pub(crate) async fn changed(
    tx: &mut Tx<'_>,
    changes: &[&Change],
    actor: &str,
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    if !targets.archive {
        return Ok(());
    }
    let entries = changes.iter().copied().flat_map(|change| {
        change.history.iter().enumerate().map(move |(n, entry)| HistoryEvent::of_entry(change, n, entry))
    });
    insert(tx, &entries.map(|entry| entry.event(actor)).collect::<Result<Vec<_>, _>>()?).await
}

/// Writes the event of a batch that was opened or has ended.
pub(crate) async fn batch_changed(
    tx: &mut Tx<'_>,
    batch: &Batch,
    actor: &str,
    at: UnixMs,
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    if !targets.archive {
        return Ok(());
    }
    let (kind, from) = match batch.status {
        BatchStatus::Active => ("opened", None),
        ended => (ended.as_str(), Some(BatchStatus::Active.as_str())),
    };
    let body = to_json(&BatchEvent {
        kind: format!("batch.{kind}"),
        id: format!("{}:{}", batch.id, batch.version),
        at: rfc3339(at),
        batch_id: batch.id.to_string(),
        tenant: batch.tenant.as_str(),
        user: batch.user.as_str(),
        from,
        to: batch.status.as_str(),
        actor,
        version: batch.version,
    })?;
    insert(tx, &[NewEvent { tenant: &batch.tenant, at, body }]).await
}

const EVENT_VALUES: usize = 4;

async fn insert(tx: &mut Tx<'_>, events: &[NewEvent<'_>]) -> Result<(), CatalogError> {
    // Lines are claimed in the order of their ids, so sorted ids keep the order of the events.
    let mut ids: Vec<String> = events.iter().map(|event| fresh_id(event.at).to_string()).collect();
    ids.sort();
    let lines: Vec<(String, &NewEvent<'_>)> = ids.into_iter().zip(events).collect();
    for lines in lines.chunks(tx.dialect().rows_max()) {
        let mut args = Vec::with_capacity(lines.len() * EVENT_VALUES);
        let mut rows = Vec::with_capacity(lines.len());
        for (id, event) in lines {
            let first = args.len() + 1;
            rows.push(format!("({}, ${}, 'archive', 0)", places(first, EVENT_VALUES), first + 3));
            args.extend(args![id.as_str(), event.tenant.as_str(), event.body.as_str(), event.at]);
        }
        let sql = format!(
            "INSERT INTO outbox (id, tenant_id, message, created_at, next_attempt_at, destination, attempts) VALUES {}",
            rows.join(", ")
        );
        tx.run_built(sql, args).await?;
    }
    Ok(())
}
