//! Changes of many files by the pipeline in one transaction: each statement carries all of them. The rows are locked
//! before they are read, so what was decided about them still holds when it is written.

use std::collections::{BTreeMap, BTreeSet};

use wharfinger_lifecycle::file::{Change, File};
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::stage::Stage;

use crate::Tells;
use crate::database::sql::{Tx, args, places, typed_rows};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::retention;
use crate::files::rows::{decode, select_files};
use crate::fresh_id;
use crate::outbox::archive;
use crate::outbox::notices::{self, NewNotice};
use crate::unreadable::{self, Table};

/// Files under their locks.
#[derive(Default)]
pub(crate) struct LockedFiles {
    pub(crate) readable: BTreeMap<FileId, File>,
    /// Rows that are there and cannot be read: they are left alone.
    pub(crate) unreadable: BTreeSet<FileId>,
}

/// Reads these files and keeps others from changing them until the end of the transaction. In one order everywhere.
pub(crate) async fn lock_files(tx: &mut Tx<'_>, ids: &[FileId]) -> Result<LockedFiles, CatalogError> {
    if ids.is_empty() {
        return Ok(LockedFiles::default());
    }
    let lock = tx.dialect().pick("", "FOR UPDATE");
    let sql = format!("{} WHERE id IN ({}) ORDER BY id {lock}", select_files!(""), places(1, ids.len()));
    let rows = tx.rows_built(sql, ids.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
    let (files, others) = unreadable::split(&rows, "id", decode);
    unreadable::record(tx, Table::Files, &others).await?;
    Ok(LockedFiles {
        readable: files.into_iter().map(|file| (file.id, file)).collect(),
        unreadable: others.iter().filter_map(|(id, _)| id.parse().ok()).collect(),
    })
}

/// Writes the new state of each file, its history, its owner's counters and what the owner is told. Jobs are the
/// caller's.
pub(crate) async fn write(
    tx: &mut Tx<'_>,
    changes: &[Change],
    actor: &str,
    tells: Tells,
) -> Result<(), CatalogError> {
    if changes.is_empty() {
        return Ok(());
    }
    for some in changes.chunks(tx.dialect().rows_max()) {
        update(tx, some).await?;
        remember(tx, some, actor, tells).await?;
    }
    tell(tx, changes, tells).await?;
    counters::changed(tx, changes).await
}

/// Tells the owners what these changes have them told.
pub(crate) async fn tell(tx: &mut Tx<'_>, changes: &[Change], tells: Tells) -> Result<(), CatalogError> {
    let told = |change: &Change| {
        let notice = change.notice?;
        Some(NewNotice::of_change(fresh_id(change.after.updated_at), change, notice))
    };
    let notices: Vec<NewNotice> = changes.iter().filter_map(told).collect();
    notices::insert(tx, &notices, tells).await
}

/// The history of all of them, in bounded statements.
pub(crate) async fn remember_all(
    tx: &mut Tx<'_>,
    changes: &[Change],
    actor: &str,
    tells: Tells,
) -> Result<(), CatalogError> {
    for some in changes.chunks(tx.dialect().rows_max()) {
        remember(tx, some, actor, tells).await?;
    }
    Ok(())
}

async fn update(tx: &mut Tx<'_>, changes: &[Change]) -> Result<(), CatalogError> {
    const TYPES: [&str; 12] = [
        "TEXT", "BIGINT", "TEXT", "BIGINT", "TEXT", "TEXT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT",
        "BIGINT",
    ];
    let sql = format!(
        "WITH new (id, before, status, version, error, stage, next_look_at, updated_at, ready_at, failed_at, \
         warned_at, retry_count) AS (VALUES {}) \
         UPDATE files SET pipeline_status = new.status, version = new.version, error = new.error, \
         stage = new.stage, next_look_at = new.next_look_at, updated_at = new.updated_at, ready_at = new.ready_at, \
         failed_at = new.failed_at, warned_at = new.warned_at, retry_count = new.retry_count \
         FROM new WHERE files.id = new.id AND files.version = new.before",
        typed_rows(1, &TYPES, changes.len())
    );
    let mut args = Vec::with_capacity(changes.len() * TYPES.len());
    for Change { before, after, .. } in changes {
        args.extend(args![
            after.id.to_string(),
            before.version,
            after.status.as_str(),
            after.version,
            after.error.as_deref(),
            after.stage.map(Stage::as_str),
            after.next_look_at,
            after.updated_at,
            after.ready_at,
            after.failed_at,
            after.warned_at,
            i64::from(after.retry_count),
        ]);
    }
    let changed = tx.run_built(sql, args).await?;
    match changed == changes.len() as u64 {
        true => Ok(()),
        false => Err(CatalogError::Corrupt("a file was changed under its lock".into())),
    }
}

/// In the history, and for the archive.
async fn remember(
    tx: &mut Tx<'_>,
    changes: &[Change],
    actor: &str,
    tells: Tells,
) -> Result<(), CatalogError> {
    let mut args = args![actor];
    let mut rows = Vec::new();
    for change in changes {
        let after = &change.after;
        for (n, step) in change.steps.iter().enumerate() {
            rows.push(format!("({}, $1)", places(args.len() + 1, 6)));
            args.extend(args![
                after.id.to_string(),
                change.version_of_step(n),
                after.updated_at,
                step.from.map(|status| status.as_str()),
                step.to.as_str(),
                step.reason.as_str(),
            ]);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO file_history (file_id, version, at, from_status, to_status, reason, actor) VALUES {}",
        rows.join(", ")
    );
    tx.run_built(sql, args).await?;
    let reached = changes.iter().map(|change| (change.after.id, change.before.version, change.after.version));
    retention::cut_histories(tx, reached).await?;
    archive::changed(tx, changes, actor, tells).await
}
