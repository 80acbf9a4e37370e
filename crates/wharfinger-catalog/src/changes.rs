//! The committer: the only code that updates `files`. It takes many decided changes, compares the version of each row and
//! writes each table in few statements. It returns the files whose row had not changed since it was read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use wharfinger_lifecycle::file::{Change, File};
use wharfinger_lifecycle::id::{FileId, TenantId};
use wharfinger_lifecycle::quarantine::QuarantineCause;
use wharfinger_lifecycle::stage::{Stage, show_list};
use wharfinger_lifecycle::text_status::TextStatus;

use crate::database::sql::{Arg, Dialect, Tx, args, places, signed, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::derived::outputs;
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::history;
use crate::jobs::effects;
use crate::outbox::{archive, notifications};
use crate::quota::charges;
use crate::quota::owner::{self, QuotaState};
use crate::{Catalog, RowSettings};

/// The actor of changes, and the settings for the rows that follow from them.
#[derive(Clone, Debug)]
pub(crate) struct Committer {
    pub(crate) actor: String,
    pub(crate) rows: RowSettings,
}

/// The locked quota states of tenants whose refunds may belong to Redis.
type LockedQuotas = BTreeMap<TenantId, QuotaState>;

impl Committer {
    /// Applies the changes whose row still has the version that was read; returns their files.
    pub(crate) async fn apply(
        &self,
        tx: &mut Tx<'_>,
        changes: &[Change],
    ) -> Result<BTreeSet<FileId>, CatalogError> {
        let files: BTreeSet<FileId> = changes.iter().map(|change| change.before.id).collect();
        if files.len() != changes.len() {
            return Err(CatalogError::Corrupt("one set holds two changes of one file".into()));
        }
        // Quota owners are locked before files, as in registrations.
        let locked = self.lock_quotas(tx, changes).await?;
        lock(tx, changes).await?;
        let mut applied = BTreeSet::new();
        for some in changes.chunks(tx.dialect().rows_max()) {
            applied.extend(update(tx, some).await?);
        }
        let changed: Vec<&Change> =
            changes.iter().filter(|change| applied.contains(&change.after.id)).collect();
        self.write_related(tx, &changed, &locked).await?;
        Ok(applied)
    }

    /// The same for files that the caller locked before it decided.
    pub(crate) async fn apply_locked(&self, tx: &mut Tx<'_>, changes: &[Change]) -> Result<(), CatalogError> {
        for some in changes.chunks(tx.dialect().rows_max()) {
            if update(tx, some).await?.len() != some.len() {
                return Err(CatalogError::Corrupt("a locked file was changed by another transaction".into()));
            }
        }
        self.write_related(tx, &changes.iter().collect::<Vec<_>>(), &LockedQuotas::new()).await
    }

    /// Writes the rows of other tables that follow from the changes.
    async fn write_related(
        &self,
        tx: &mut Tx<'_>,
        changes: &[&Change],
        locked: &LockedQuotas,
    ) -> Result<(), CatalogError> {
        if changes.is_empty() {
            return Ok(());
        }
        // Jobs before outputs: workers that write outputs lock only their job. Once it is gone, no more outputs are added.
        effects::apply(tx, changes, self.rows.job_max_attempts).await?;
        for some in changes.chunks(tx.dialect().rows_max()) {
            history::extend(tx, some, &self.actor).await?;
            archive::changed(tx, some, &self.actor, self.rows.targets).await?;
            outputs::delete_for(tx, some, self).await?;
        }
        notifications::changed(tx, changes, self.rows.targets).await?;
        counters::changed(tx, changes).await?;
        refund(tx, changes, locked).await
    }

    async fn lock_quotas(&self, tx: &mut Tx<'_>, changes: &[Change]) -> Result<LockedQuotas, CatalogError> {
        let mut locked = LockedQuotas::new();
        if self.rows.with_redis_quota {
            let refunded = changes.iter().filter(|change| change.refunded_bytes() > 0);
            for tenant in refunded.map(|change| &change.after.tenant).collect::<BTreeSet<_>>() {
                locked.insert(tenant.clone(), owner::lock_shared(tx, tenant).await?);
            }
        }
        Ok(locked)
    }
}

/// Locks the files in the order of their ids, so that two writes of the same files do not deadlock. The UPDATE alone has
/// no such order. SQLite has one writer, and a single row needs no order.
async fn lock(tx: &mut Tx<'_>, changes: &[Change]) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Sqlite || changes.len() < 2 {
        return Ok(());
    }
    let mut ids: Vec<FileId> = changes.iter().map(|change| change.before.id).collect();
    ids.sort_unstable();
    for some in ids.chunks(tx.dialect().rows_max()) {
        let sql =
            format!("SELECT id FROM files WHERE id IN ({}) ORDER BY id FOR UPDATE", places(1, some.len()));
        tx.rows_built(sql, some.iter().flat_map(|id| args![id.to_string()]).collect()).await?;
    }
    Ok(())
}

/// A column of a file that can change: its name, its SQL type and its value.
struct Column(&'static str, &'static str, fn(&File) -> Arg);

const COLUMNS: [Column; 21] = [
    Column("pipeline_status", "TEXT", |file| file.status.as_str().into()),
    Column("version", "BIGINT", |file| file.version.into()),
    Column("charged_bytes", "BIGINT", |file| signed(file.charged_bytes).into()),
    Column("retry_count", "BIGINT", |file| i64::from(file.retry_count).into()),
    Column("error", "TEXT", |file| file.error.as_deref().into()),
    Column("etag", "TEXT", |file| file.pin.as_ref().map(|pin| pin.etag.as_str()).into()),
    Column("object_version", "TEXT", |file| {
        file.pin.as_ref().and_then(|pin| pin.version_id.as_deref()).into()
    }),
    Column("end_reason", "TEXT", |file| file.ended.map(|reason| reason.as_str()).into()),
    Column("url_dead_at", "BIGINT", |file| file.url_dead_at.into()),
    Column("next_check_at", "BIGINT", |file| file.next_check_at.into()),
    Column("updated_at", "BIGINT", |file| file.updated_at.into()),
    Column("confirmed_at", "BIGINT", |file| file.confirmed_at.into()),
    Column("ready_at", "BIGINT", |file| file.ready_at.into()),
    Column("checksum_sha256", "TEXT", |file| file.checksum_sha256.as_deref().into()),
    Column("stages", "TEXT", |file| file.stages.as_deref().map(show_list).into()),
    Column("stage", "TEXT", |file| file.stage.map(Stage::as_str).into()),
    Column("text_status", "TEXT", |file| file.text_status.map(TextStatus::as_str).into()),
    Column("quarantine", "TEXT", |file| file.quarantine.map(QuarantineCause::as_str).into()),
    Column("failed_at", "BIGINT", |file| file.failed_at.into()),
    Column("warned_at", "BIGINT", |file| file.warned_at.into()),
    Column("metadata", "TEXT", |file| file.metadata.as_deref().into()),
];

/// For one change, the usual case: the text is built once.
static UPDATE_ONE: LazyLock<String> = LazyLock::new(|| update_text(&COLUMNS.iter().collect::<Vec<_>>(), 1));

fn update_text(columns: &[&Column], changes: usize) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.0).collect();
    let types: Vec<&str> =
        ["TEXT", "BIGINT"].into_iter().chain(columns.iter().map(|column| column.1)).collect();
    let set: Vec<String> = names.iter().map(|name| format!("{name} = new.{name}")).collect();
    format!(
        "WITH new (id, before, {}) AS (VALUES {}) UPDATE files SET {} FROM new \
         WHERE files.id = new.id AND files.version = new.before RETURNING files.id AS id",
        names.join(", "),
        typed_rows(1, &types, changes),
        set.join(", ")
    )
}

/// Returns the files whose version was the one that had been read. One change writes all columns, so that its statement
/// is always the same. Several changes write only the columns that differ: most changes change few.
async fn update(tx: &mut Tx<'_>, changes: &[Change]) -> Result<Vec<FileId>, CatalogError> {
    let differs =
        |column: &&Column| changes.iter().any(|change| column.2(&change.before) != column.2(&change.after));
    let columns: Vec<&Column> = match changes {
        [_] => COLUMNS.iter().collect(),
        _ => COLUMNS.iter().filter(differs).collect(),
    };
    let mut args = Vec::with_capacity(changes.len() * (2 + columns.len()));
    for Change { before, after: file, .. } in changes {
        if file.charged_bytes > before.charged_bytes {
            return Err(CatalogError::Corrupt(format!(
                "a change would raise the charge of file {}",
                file.id
            )));
        }
        args.extend(args![file.id.to_string(), before.version]);
        args.extend(columns.iter().map(|column| column.2(file)));
    }
    let rows = match changes.len() {
        1 => tx.rows(UPDATE_ONE.as_str(), args).await?,
        count => tx.rows_built(update_text(&columns, count), args).await?,
    };
    rows.iter().map(|row| row.parsed("id")).collect()
}

/// One refund per tenant.
async fn refund(tx: &mut Tx<'_>, changes: &[&Change], locked: &LockedQuotas) -> Result<(), CatalogError> {
    let mut refunds: BTreeMap<&TenantId, (u64, i64)> = BTreeMap::new();
    for change in changes {
        let (bytes, now) = refunds.entry(&change.after.tenant).or_default();
        *bytes += change.refunded_bytes();
        *now = change.after.updated_at;
    }
    for (tenant, (bytes, now)) in refunds.into_iter().filter(|(_, (bytes, _))| *bytes > 0) {
        charges::refund(tx, tenant, bytes, locked.get(tenant).copied(), now).await?;
    }
    Ok(())
}

struct Commit {
    changes: Vec<Change>,
    committer: Committer,
}

impl Write for Commit {
    type Answer = BTreeSet<FileId>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let applied = self.committer.apply(tx, &self.changes).await?;
        Ok(match applied.is_empty() {
            true => TxOutcome::Rollback(applied),
            false => TxOutcome::Commit(applied),
        })
    }
}

impl Catalog {
    pub(crate) fn committer(&self, actor: &str) -> Committer {
        Committer { actor: actor.to_owned(), rows: self.rows }
    }

    /// Commits a decided change, or fails with [`CatalogError::Stale`] if the row has changed since it was read.
    pub async fn commit(&self, change: Change, actor: &str) -> Result<(), CatalogError> {
        let changes = vec![change];
        match self.write(Commit { changes, committer: self.committer(actor) }).await?.is_empty() {
            true => Err(CatalogError::Stale),
            false => Ok(()),
        }
    }

    /// Commits decided changes of different files in one transaction. Returns the committed files in the order of their
    /// ids. Files whose row has changed since it was read are left as they are.
    pub async fn commit_all(&self, changes: Vec<Change>, actor: &str) -> Result<Vec<FileId>, CatalogError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let applied = self.write(Commit { changes, committer: self.committer(actor) }).await?;
        Ok(applied.into_iter().collect())
    }
}
