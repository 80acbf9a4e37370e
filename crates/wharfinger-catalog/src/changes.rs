//! The one committer: the only code that updates `files`. It takes many decided changes, compares the version of each row,
//! writes each table by one statement for all of them, and answers whose row was still what had been read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use wharfinger_lifecycle::file::Change;
use wharfinger_lifecycle::id::{FileId, TenantId};
use wharfinger_lifecycle::stage::{Stage, show_list};

use crate::database::sql::{Dialect, Tx, args, places, signed, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::derived::outputs;
use crate::error::CatalogError;
use crate::figures::counters;
use crate::files::history;
use crate::jobs::effects;
use crate::outbox::{archive, notices};
use crate::quota::charges;
use crate::quota::owner::{self, QuotaState};
use crate::{Catalog, RowSettings};

/// Who makes changes, and what the rows that follow from them say.
#[derive(Clone, Debug)]
pub(crate) struct Committer {
    pub(crate) actor: String,
    pub(crate) rows: RowSettings,
}

/// The quota rows of tenants whose refunds may belong to Redis.
type HeldQuotas = BTreeMap<TenantId, QuotaState>;

impl Committer {
    /// Makes the changes whose row is still what was read; answers their files.
    pub(crate) async fn apply(
        &self,
        tx: &mut Tx<'_>,
        changes: &[Change],
    ) -> Result<BTreeSet<FileId>, CatalogError> {
        let files: BTreeSet<FileId> = changes.iter().map(|change| change.before.id).collect();
        if files.len() != changes.len() {
            return Err(CatalogError::Corrupt("two changes of one file in one set".into()));
        }
        // Quota rows are locked before files, as everywhere.
        let held = self.hold_quotas(tx, changes).await?;
        lock(tx, changes).await?;
        let mut applied = BTreeSet::new();
        for some in changes.chunks(tx.dialect().rows_max()) {
            applied.extend(update(tx, some).await?);
        }
        let made: Vec<&Change> = changes.iter().filter(|change| applied.contains(&change.after.id)).collect();
        self.follow(tx, &made, &held).await?;
        Ok(applied)
    }

    /// The same for files that the caller has locked, in the order of their ids, and decided under that lock.
    pub(crate) async fn apply_locked(&self, tx: &mut Tx<'_>, changes: &[Change]) -> Result<(), CatalogError> {
        for some in changes.chunks(tx.dialect().rows_max()) {
            if update(tx, some).await?.len() != some.len() {
                return Err(CatalogError::Corrupt("a file was changed under its lock".into()));
            }
        }
        self.follow(tx, &changes.iter().collect::<Vec<_>>(), &HeldQuotas::new()).await
    }

    /// Everything that a change brings with it.
    async fn follow(
        &self,
        tx: &mut Tx<'_>,
        changes: &[&Change],
        held: &HeldQuotas,
    ) -> Result<(), CatalogError> {
        if changes.is_empty() {
            return Ok(());
        }
        // Jobs before outputs: workers that write outputs hold only their job. Once it is gone, nothing is added to what is
        // removed here.
        effects::apply(tx, changes, self.rows.job_max_attempts).await?;
        for some in changes.chunks(tx.dialect().rows_max()) {
            history::extend(tx, some, &self.actor).await?;
            archive::changed(tx, some, &self.actor, self.rows.targets).await?;
            outputs::end(tx, some, &self.rows).await?;
        }
        notices::changed(tx, changes, self.rows.targets).await?;
        counters::changed(tx, changes).await?;
        refund(tx, changes, held).await
    }

    async fn hold_quotas(&self, tx: &mut Tx<'_>, changes: &[Change]) -> Result<HeldQuotas, CatalogError> {
        let mut held = HeldQuotas::new();
        if self.rows.with_redis_quota {
            let refunded = changes.iter().filter(|change| change.refunded_bytes() > 0);
            for tenant in refunded.map(|change| &change.after.tenant).collect::<BTreeSet<_>>() {
                held.insert(tenant.clone(), owner::hold(tx, tenant).await?);
            }
        }
        Ok(held)
    }
}

/// In one order everywhere, so that two that change the same files do not wait for each other in a ring. The update itself
/// locks in no order; SQLite has one writer, and one row needs no order.
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

/// The columns of a file that can change, after its id and the version that was read.
const COLUMNS: [(&str, &str); 19] = [
    ("pipeline_status", "TEXT"),
    ("version", "BIGINT"),
    ("charged_bytes", "BIGINT"),
    ("retry_count", "BIGINT"),
    ("error", "TEXT"),
    ("etag", "TEXT"),
    ("object_version", "TEXT"),
    ("end_reason", "TEXT"),
    ("url_dead_at", "BIGINT"),
    ("next_check_at", "BIGINT"),
    ("updated_at", "BIGINT"),
    ("confirmed_at", "BIGINT"),
    ("ready_at", "BIGINT"),
    ("checksum_sha256", "TEXT"),
    ("stages", "TEXT"),
    ("stage", "TEXT"),
    ("failed_at", "BIGINT"),
    ("warned_at", "BIGINT"),
    ("metadata", "TEXT"),
];

/// For one change, which is what most callers have: the text is made once.
static UPDATE_ONE: LazyLock<String> = LazyLock::new(|| update_text(1));

fn update_text(changes: usize) -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let types: Vec<&str> =
        ["TEXT", "BIGINT"].into_iter().chain(COLUMNS.iter().map(|(_, kind)| *kind)).collect();
    let set: Vec<String> = names.iter().map(|name| format!("{name} = new.{name}")).collect();
    format!(
        "WITH new (id, before, {}) AS (VALUES {}) UPDATE files SET {} FROM new \
         WHERE files.id = new.id AND files.version = new.before RETURNING files.id AS id",
        names.join(", "),
        typed_rows(1, &types, changes),
        set.join(", ")
    )
}

/// Answers the files whose version was the one that had been read.
async fn update(tx: &mut Tx<'_>, changes: &[Change]) -> Result<Vec<FileId>, CatalogError> {
    let mut args = Vec::with_capacity(changes.len() * (2 + COLUMNS.len()));
    for Change { before, after: file, .. } in changes {
        if file.charged_bytes > before.charged_bytes {
            return Err(CatalogError::Corrupt(format!("file {} would be charged again", file.id)));
        }
        args.extend(args![
            file.id.to_string(),
            before.version,
            file.status.as_str(),
            file.version,
            signed(file.charged_bytes),
            i64::from(file.retry_count),
            file.error.as_deref(),
            file.pin.as_ref().map(|pin| pin.etag.as_str()),
            file.pin.as_ref().and_then(|pin| pin.version_id.as_deref()),
            file.ended.map(|reason| reason.as_str()),
            file.url_dead_at,
            file.next_check_at,
            file.updated_at,
            file.confirmed_at,
            file.ready_at,
            file.checksum_sha256.as_deref(),
            show_list(&file.stages),
            file.stage.map(Stage::as_str),
            file.failed_at,
            file.warned_at,
            file.metadata.as_deref(),
        ]);
    }
    let rows = match changes.len() {
        1 => tx.rows(UPDATE_ONE.as_str(), args).await?,
        count => tx.rows_built(update_text(count), args).await?,
    };
    rows.iter().map(|row| row.parsed("id")).collect()
}

/// One refund for each tenant.
async fn refund(tx: &mut Tx<'_>, changes: &[&Change], held: &HeldQuotas) -> Result<(), CatalogError> {
    let mut refunds: BTreeMap<&TenantId, (u64, i64)> = BTreeMap::new();
    for change in changes {
        let (bytes, now) = refunds.entry(&change.after.tenant).or_default();
        *bytes += change.refunded_bytes();
        *now = change.after.updated_at;
    }
    for (tenant, (bytes, now)) in refunds.into_iter().filter(|(_, (bytes, _))| *bytes > 0) {
        charges::give_back(tx, tenant, bytes, held.get(tenant).copied(), now).await?;
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

    /// Commits a decided change, or answers [`CatalogError::Stale`] if the row is no longer what was read.
    pub async fn commit(&self, change: Change, actor: &str) -> Result<(), CatalogError> {
        let changes = vec![change];
        match self.write(Commit { changes, committer: self.committer(actor) }).await?.is_empty() {
            true => Err(CatalogError::Stale),
            false => Ok(()),
        }
    }

    /// Commits decided changes of different files in one transaction; answers the files, in the order of their ids, whose
    /// row was still what had been read. The others are left as they are.
    pub async fn commit_all(&self, changes: Vec<Change>, actor: &str) -> Result<Vec<FileId>, CatalogError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let applied = self.write(Commit { changes, committer: self.committer(actor) }).await?;
        Ok(applied.into_iter().collect())
    }
}
