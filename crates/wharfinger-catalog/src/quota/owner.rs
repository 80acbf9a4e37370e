//! The owner of a tenant's quota: its row in the catalog, or Redis in front of it. Where Redis is configured, charges and
//! refunds hold a shared lock until they commit. A move takes the exclusive lock, raises the epoch and sums the charges,
//! all in one transaction.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;

use crate::Catalog;
use crate::database::sql::signed;
use crate::database::sql::{Dialect, Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::outbox::lines;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOwner {
    Database,
    Redis,
}

impl QuotaOwner {
    fn as_str(self) -> &'static str {
        match self {
            QuotaOwner::Database => "database",
            QuotaOwner::Redis => "redis",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaState {
    pub owner: QuotaOwner,
    /// Raised at every move and at every change of what Redis counts from.
    pub epoch: i64,
    /// When the owner last changed.
    pub since: UnixMs,
}

impl QuotaState {
    /// The state of a tenant without a quota row.
    pub(crate) const FIRST: QuotaState = QuotaState { owner: QuotaOwner::Database, epoch: 0, since: 0 };
}

/// Distinguishes these locks from others of this program. Tenants with equal hashes share a lock, which only costs time.
const LOCK_CLASS: i64 = 0x6761_7465;

/// Keeps the owner from changing until this transaction ends. SQLite has one writer and needs no lock. Take this lock
/// before others: a late one may deadlock, and PostgreSQL then aborts one transaction, which is repeated.
pub(crate) async fn lock_shared(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<QuotaState, CatalogError> {
    if tx.dialect() == Dialect::Postgres {
        let sql = "SELECT CAST(pg_advisory_xact_lock_shared(CAST($1 AS INTEGER), hashtext($2)) AS TEXT)";
        tx.rows(sql, args![LOCK_CLASS, tenant.as_str()]).await?;
    }
    read(tx, tenant).await
}

/// Waits until no transaction has the owner locked, and keeps others out.
pub(crate) async fn lock_exclusive(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Postgres {
        let sql = "SELECT CAST(pg_advisory_xact_lock(CAST($1 AS INTEGER), hashtext($2)) AS TEXT)";
        tx.rows(sql, args![LOCK_CLASS, tenant.as_str()]).await?;
    }
    Ok(())
}

/// A separate statement: on PostgreSQL a statement that waited for a lock still reads the rows from before the wait.
async fn read(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<QuotaState, CatalogError> {
    let row =
        tx.row("SELECT owner, epoch, owner_since FROM quotas WHERE tenant_id = $1", args![tenant.as_str()]);
    row.await?.as_ref().map_or(Ok(QuotaState::FIRST), decode)
}

pub(crate) fn decode(row: &Row) -> Result<QuotaState, CatalogError> {
    let owner = match row.text("owner")?.as_str() {
        "database" => QuotaOwner::Database,
        "redis" => QuotaOwner::Redis,
        other => return Err(CatalogError::Corrupt(format!("owner holds {other:?}"))),
    };
    Ok(QuotaState { owner, epoch: row.int("epoch")?, since: row.int("owner_since")? })
}

/// Gives a quota to another owner, or makes its owner count from the files again.
#[derive(Clone, Debug)]
pub struct MoveQuota {
    pub tenant: TenantId,
    pub to: QuotaOwner,
    /// The new epoch is higher than this one.
    pub after_epoch: i64,
    pub default_limit_bytes: u64,
    pub now: UnixMs,
}

/// The values that the new owner counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedQuota {
    pub epoch: i64,
    pub used_bytes: u64,
    /// The tenant's own limit, or the default.
    pub limit_bytes: u64,
    pub has_own_limit: bool,
    /// The error of the catalog's counter; 0 if Redis was counting.
    pub drift_bytes: i64,
}

impl Write for MoveQuota {
    type Answer = MovedQuota;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<MovedQuota>, CatalogError> {
        let tenant = self.tenant.as_str();
        lock_exclusive(tx, &self.tenant).await?;
        tx.run(
            "INSERT INTO quotas (tenant_id, used_bytes) VALUES ($1, 0) ON CONFLICT (tenant_id) DO NOTHING",
            args![tenant],
        )
        .await?;
        // This also locks the row, for charges that do not lock the owner.
        let before = tx
            .row(
                "UPDATE quotas SET used_bytes = used_bytes WHERE tenant_id = $1 \
                 RETURNING limit_bytes, used_bytes, owner, epoch, owner_since",
                args![tenant],
            )
            .await?
            .ok_or_else(|| CatalogError::Corrupt(format!("{tenant} has no quota row")))?;
        let state = decode(&before)?;
        let used_bytes = charged_bytes(tx, &self.tenant).await?;
        let epoch = state.epoch.max(self.after_epoch) + 1;
        tx.run(
            "UPDATE quotas SET owner = $2, epoch = $3, owner_since = $4, used_bytes = $5 WHERE tenant_id = $1",
            args![
                tenant,
                self.to.as_str(),
                epoch,
                if state.owner == self.to { state.since } else { self.now },
                signed(used_bytes),
            ],
        )
        .await?;
        lines::delete_refunds_before(tx, &self.tenant, epoch).await?;
        let own_limit = before.maybe_int("limit_bytes")?;
        let drift_bytes = match state.owner {
            QuotaOwner::Database => before.int("used_bytes")? - signed(used_bytes),
            QuotaOwner::Redis => 0,
        };
        Ok(TxOutcome::Commit(MovedQuota {
            epoch,
            used_bytes,
            limit_bytes: own_limit.map_or(self.default_limit_bytes, |limit| limit.unsigned_abs()),
            has_own_limit: own_limit.is_some(),
            drift_bytes,
        }))
    }
}

/// The truth: the sum of the charges of a tenant's files.
pub(crate) async fn charged_bytes(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<u64, CatalogError> {
    let row = tx
        .row(
            "SELECT CAST(COALESCE(SUM(charged_bytes), 0) AS BIGINT) AS used_bytes FROM files \
             WHERE tenant_id = $1 AND charged_bytes > 0",
            args![tenant.as_str()],
        )
        .await?;
    row.map_or(Ok(0), |row| row.bytes("used_bytes"))
}

impl Catalog {
    pub async fn quota_state(&self, tenant: &TenantId) -> Result<QuotaState, CatalogError> {
        let mut reader = self.reader().await?;
        read(&mut reader.tx(&self.faults), tenant).await
    }

    pub async fn move_quota(&self, wanted: MoveQuota) -> Result<MovedQuota, CatalogError> {
        self.write(wanted).await
    }

    /// Tenants whose uploads Redis admits.
    pub async fn tenants_in_redis(&self, after: &str, limit: usize) -> Result<Vec<TenantId>, CatalogError> {
        let sql = "SELECT tenant_id FROM quotas WHERE owner = 'redis' AND tenant_id > $1 ORDER BY tenant_id LIMIT $2";
        self.tenants_by(sql, after, limit).await
    }
}
