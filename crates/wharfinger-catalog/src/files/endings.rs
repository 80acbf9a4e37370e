//! Ends of many uploads in one transaction, as a sweep finds them: reclaimed, refunded, forgotten. Each statement carries
//! all of them; what somebody else has changed meanwhile is left out.

use std::collections::{BTreeMap, BTreeSet};

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::{Change, File};
use wharfinger_lifecycle::id::{CleanupId, FileId, TenantId};
use wharfinger_lifecycle::stage::Stage;

use crate::Catalog;
use crate::Tells;
use crate::cleanups::pending;
use crate::database::sql::{Tx, args, places, typed_rows};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::batches;
use crate::files::changes::signed;
use crate::files::rows::{decode, select_files};
use crate::files::stage_changes;
use crate::fresh_id;
use crate::quota::charges;
use crate::quota::gate::{self, Gate};

struct EndMany {
    /// In the order of their ids.
    changes: Vec<Change>,
    actor: String,
    storage_type: &'static str,
    cleanup_max_attempts: u32,
    beside_redis: bool,
    tells: Tells,
}

/// Whether nothing else changes than what is written here. What stages made of a file is not.
fn is_an_end(change: &Change) -> bool {
    let Change { before, after, .. } = change;
    let ended = File {
        status: after.status,
        version: after.version,
        charged_bytes: after.charged_bytes,
        ended: after.ended,
        stage: after.stage,
        next_look_at: after.next_look_at,
        updated_at: after.updated_at,
        ..before.clone()
    };
    ended == *after
        && (before.stages.is_empty() || change.cleanup.is_none())
        && change.enqueues.is_none()
        && change.moves_jobs_to.is_none()
        && after.charged_bytes <= before.charged_bytes
}

impl Write for EndMany {
    type Answer = Vec<FileId>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Vec<FileId>>, CatalogError> {
        // Gates are held before rows are locked, as everywhere.
        let mut held: BTreeMap<&TenantId, Gate> = BTreeMap::new();
        if self.beside_redis {
            let refunded = self.changes.iter().filter(|change| change.refunded_bytes() > 0);
            for tenant in refunded.map(|change| &change.after.tenant).collect::<BTreeSet<_>>() {
                held.insert(tenant, gate::hold(tx, tenant).await?);
            }
        }
        let ids: Vec<FileId> = self.changes.iter().map(|change| change.before.id).collect();
        let locked = stage_changes::lock_files(tx, &ids).await?;
        let is_current = |change: &&Change| {
            locked.readable.get(&change.before.id).is_some_and(|file| *file == change.before)
        };
        let changes: Vec<Change> = self.changes.iter().filter(is_current).cloned().collect();
        if changes.is_empty() {
            return Ok(Verdict::Rollback(Vec::new()));
        }
        let now = changes[0].after.updated_at;
        for some in changes.chunks(tx.dialect().rows_max()) {
            update(tx, some).await?;
            end_jobs(tx, some).await?;
            self.order_cleanups(tx, some, now).await?;
        }
        stage_changes::remember_all(tx, &changes, &self.actor, self.tells).await?;
        stage_changes::tell(tx, &changes, self.tells).await?;
        counters::changed(tx, &changes).await?;
        let mut refunds: BTreeMap<&TenantId, u64> = BTreeMap::new();
        for change in &changes {
            *refunds.entry(&change.after.tenant).or_default() += change.refunded_bytes();
        }
        for (tenant, bytes) in refunds.into_iter().filter(|(_, bytes)| *bytes > 0) {
            charges::give_back(tx, tenant, bytes, held.get(tenant).copied(), now).await?;
        }
        Ok(Verdict::Commit(changes.iter().map(|change| change.after.id).collect()))
    }
}

impl EndMany {
    async fn order_cleanups(
        &self,
        tx: &mut Tx<'_>,
        changes: &[Change],
        now: UnixMs,
    ) -> Result<(), CatalogError> {
        let ordered = changes.iter().filter_map(|change| Some((&change.after, change.cleanup.as_ref()?)));
        let orders: Vec<_> = ordered
            .map(|(file, cleanup)| {
                let order = pending::Order {
                    id: CleanupId(fresh_id(file.updated_at)),
                    file: file.clone(),
                    storage_type: self.storage_type,
                    max_attempts: self.cleanup_max_attempts,
                };
                (order, cleanup.reason.as_str(), cleanup.finish_at)
            })
            .collect();
        pending::insert_all(tx, &orders, now).await
    }
}

async fn update(tx: &mut Tx<'_>, changes: &[Change]) -> Result<(), CatalogError> {
    const TYPES: [&str; 9] =
        ["TEXT", "BIGINT", "TEXT", "BIGINT", "BIGINT", "TEXT", "TEXT", "BIGINT", "BIGINT"];
    let sql = format!(
        "WITH new (id, before, status, version, charged_bytes, end_reason, stage, next_look_at, updated_at) \
         AS (VALUES {}) UPDATE files SET pipeline_status = new.status, version = new.version, \
         charged_bytes = new.charged_bytes, end_reason = new.end_reason, stage = new.stage, \
         next_look_at = new.next_look_at, updated_at = new.updated_at \
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
            signed(after.charged_bytes),
            after.ended.map(|reason| reason.as_str()),
            after.stage.map(Stage::as_str),
            after.next_look_at,
            after.updated_at,
        ]);
    }
    match tx.run_built(sql, args).await? == changes.len() as u64 {
        true => Ok(()),
        false => Err(CatalogError::Corrupt("a file was changed under its lock".into())),
    }
}

async fn end_jobs(tx: &mut Tx<'_>, changes: &[Change]) -> Result<(), CatalogError> {
    let ids: Vec<String> =
        changes.iter().filter(|change| change.ends_jobs).map(|change| change.after.id.to_string()).collect();
    match ids.is_empty() {
        true => Ok(()),
        false => delete_of(tx, "jobs", &ids).await,
    }
}

async fn delete_of(tx: &mut Tx<'_>, table: &'static str, files: &[String]) -> Result<(), CatalogError> {
    let sql = format!("DELETE FROM {table} WHERE file_id IN ({})", places(1, files.len()));
    tx.run_built(sql, files.iter().flat_map(|id| args![id.as_str()]).collect()).await?;
    Ok(())
}

/// Removes tombstones that nobody needs, with everything that hangs on them.
struct ForgetMany {
    tombstones: Vec<File>,
}

impl Write for ForgetMany {
    type Answer = Vec<FileId>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Vec<FileId>>, CatalogError> {
        let mut gone: Vec<File> = Vec::new();
        for some in self.tombstones.chunks(tx.dialect().rows_max()) {
            let sql = format!(
                "DELETE FROM files WHERE id IN ({}) AND pipeline_status = 'deleted' AND charged_bytes = 0 \
                 AND next_look_at <= $1 \
                 AND NOT EXISTS (SELECT 1 FROM pending_cleanups WHERE document_id = files.id) RETURNING id",
                places(2, some.len())
            );
            let due_by = some.iter().filter_map(|file| file.next_look_at).max().unwrap_or(i64::MIN);
            let mut args = args![due_by];
            args.extend(some.iter().flat_map(|file| args![file.id.to_string()]));
            let rows = tx.rows_built(sql, args).await?;
            let ids: Vec<String> = rows.iter().map(|row| row.text("id")).collect::<Result<_, _>>()?;
            if ids.is_empty() {
                continue;
            }
            for table in ["objects", "file_history", "jobs", "stage_outputs"] {
                delete_of(tx, table, &ids).await?;
            }
            let is_gone = |file: &&File| ids.contains(&file.id.to_string());
            gone.extend(some.iter().filter(is_gone).cloned());
        }
        if gone.is_empty() {
            return Ok(Verdict::Rollback(Vec::new()));
        }
        counters::gone(tx, &gone).await?;
        for batch in gone.iter().filter_map(|file| file.batch).collect::<BTreeSet<_>>() {
            batches::forget_if_empty(tx, batch).await?;
        }
        Ok(Verdict::Commit(gone.iter().map(|file| file.id).collect()))
    }
}

impl Catalog {
    /// These files, as far as they are there. One that cannot be read is left out.
    pub async fn files_by_id(&self, ids: &[FileId]) -> Result<Vec<File>, CatalogError> {
        let mut files = Vec::with_capacity(ids.len());
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        for some in ids.chunks(tx.dialect().rows_max()) {
            let sql = format!("{} WHERE id IN ({})", select_files!(""), places(1, some.len()));
            let rows = tx.rows_built(sql, some.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
            files.extend(rows.iter().filter_map(|row| decode(row).ok()));
        }
        Ok(files)
    }

    /// Commits the ends of unconfirmed uploads, and refunds of what has ended; answers those that were still as they
    /// were read.
    pub async fn end_many(&self, mut changes: Vec<Change>, actor: &str) -> Result<Vec<FileId>, CatalogError> {
        if let Some(other) = changes.iter().find(|change| !is_an_end(change)) {
            return Err(CatalogError::Corrupt(format!("the change of file {} is no end", other.before.id)));
        }
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        changes.sort_by_key(|change| change.before.id);
        self.write(EndMany {
            changes,
            actor: actor.to_owned(),
            storage_type: self.storage_type,
            cleanup_max_attempts: self.cleanup_max_attempts,
            beside_redis: self.beside_redis,
            tells: self.tells,
        })
        .await
    }

    /// Answers those of these tombstones that are gone now; the others' bytes, say, are still waited for.
    pub async fn forget_many(&self, mut tombstones: Vec<File>) -> Result<Vec<FileId>, CatalogError> {
        tombstones.sort_by_key(|file| file.id);
        self.write(ForgetMany { tombstones }).await
    }
}
