//! Events for the archive: every line of a file's history and every turn of a batch once more, as a line of the outbox
//! written in the transaction of what happened. Nothing is written where nobody archives.

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
use crate::outbox::notices::rfc3339;
use crate::registrations::NewFile;

/// As the archive has it. Its id is the place in the history that it tells of, so whoever gets it twice can tell.
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

/// A line that is not written yet.
struct NewEvent<'a> {
    tenant: &'a TenantId,
    at: UnixMs,
    body: String,
}

/// One line of a history, with the file as it is after it.
struct Told<'a> {
    file: &'a File,
    version: i64,
    word: &'static str,
    from: Option<Status>,
    to: Status,
    reason: &'a str,
}

impl<'a> Told<'a> {
    fn of_step(change: &'a Change, n: usize, step: &'a HistoryEntry) -> Told<'a> {
        Told {
            file: &change.after,
            version: change.version_of_entry(n),
            word: word(change, step),
            from: step.from,
            to: step.to,
            reason: &step.reason,
        }
    }

    fn of_registration(file: &'a File) -> Told<'a> {
        let (version, to) = (file.version, file.status);
        Told { file, version, word: to.as_str(), from: None, to, reason: REGISTERED }
    }

    fn event(&self, actor: &str) -> Result<NewEvent<'a>, CatalogError> {
        let file = self.file;
        let body = written(&FileEvent {
            kind: format!("file.{}", self.word),
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

/// What happened, in the word of where it led to; a status that can be reached in two ways, or stayed in, has more.
fn word(change: &Change, step: &HistoryEntry) -> &'static str {
    match (step.to, change.after.ended, change.notification) {
        (Status::Deleted, Some(EndReason::Reclaimed), _) => "cleaned-up",
        (Status::Failed, _, Some(FileNotification::DeletionWarning)) => "warned",
        (to, ..) => to.as_str(),
    }
}

fn written(event: &impl Serialize) -> Result<String, CatalogError> {
    serde_json::to_string(event).map_err(|error| CatalogError::Corrupt(format!("an event: {error}")))
}

pub(crate) async fn registered(
    tx: &mut Tx<'_>,
    files: &[(&NewFile, &str)],
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    if !targets.archive {
        return Ok(());
    }
    let events = files.iter().map(|(new, actor)| Told::of_registration(&new.file).event(actor));
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
    let steps = changes.iter().copied().flat_map(|change| {
        change.history.iter().enumerate().map(move |(n, step)| Told::of_step(change, n, step))
    });
    insert(tx, &steps.map(|told| told.event(actor)).collect::<Result<Vec<_>, _>>()?).await
}

/// A batch as it is now, which has come to be or has ended.
pub(crate) async fn batch_turned(
    tx: &mut Tx<'_>,
    batch: &Batch,
    actor: &str,
    at: UnixMs,
    targets: OutboxTargets,
) -> Result<(), CatalogError> {
    if !targets.archive {
        return Ok(());
    }
    let (word, from) = match batch.status {
        BatchStatus::Active => ("opened", None),
        ended => (ended.as_str(), Some(BatchStatus::Active.as_str())),
    };
    let body = written(&BatchEvent {
        kind: format!("batch.{word}"),
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
    // What happened together leaves in its order: lines are claimed in the order of their ids.
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
