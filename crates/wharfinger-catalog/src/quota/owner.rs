//! Who counts a tenant's quota: its row in the catalog, or Redis in front of it. Every charge and refund keeps the owner from
//! changing until it has committed. A move waits for them, raises the epoch, and reads what the files are charged, all in
//! one transaction.

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
    /// Raised at every move, and whenever Redis is to count from something else.
    pub epoch: i64,
    /// When the owner last changed.
    pub since: UnixMs,
}

impl QuotaState {
    /// Of a tenant that is not known yet.
    pub(crate) const FIRST: QuotaState = QuotaState { owner: QuotaOwner::Database, epoch: 0, since: 0 };
}

/// Distinguishes these locks from others of this program. Tenants whose names hash alike only wait for each other.
const LOCK_CLASS: i64 = 0x6761_7465;

/// The owner does not change until this transaction has ended. SQLite has one writer, and that is us. Whoever holds other
/// locks already may wait for one who waits for them: this one is taken first.
pub(crate) async fn hold(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<QuotaState, CatalogError> {
    if tx.dialect() == Dialect::Postgres {
        let sql = "SELECT CAST(pg_advisory_xact_lock_shared(CAST($1 AS INTEGER), hashtext($2)) AS TEXT)";
        tx.rows(sql, args![LOCK_CLASS, tenant.as_str()]).await?;
    }
    read(tx, tenant).await
}

/// Waits until no transaction holds the owner.
pub(crate) async fn lock(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<(), CatalogError> {
    if tx.dialect() == Dialect::Postgres {
        let sql = "SELECT CAST(pg_advisory_xact_lock(CAST($1 AS INTEGER), hashtext($2)) AS TEXT)";
        tx.rows(sql, args![LOCK_CLASS, tenant.as_str()]).await?;
    }
    Ok(())
}

/// A statement of its own: on PostgreSQL one that waits for a lock reads what was there before it waited.
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

/// Gives a quota to another owner, or lets its owner count again.
#[derive(Clone, Debug)]
pub struct MoveQuota {
    pub tenant: TenantId,
    pub to: QuotaOwner,
    /// The new epoch is later than this one, which somebody has seen.
    pub after_epoch: i64,
    pub default_limit_bytes: u64,
    pub now: UnixMs,
}

/// What the new owner counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedQuota {
    pub epoch: i64,
    pub used_bytes: u64,
    /// The tenant's own limit, or the default.
    pub limit_bytes: u64,
    pub has_own_limit: bool,
    /// How far the catalog's own counter was off, where it was the one in use.
    pub drift_bytes: i64,
}

impl Write for MoveQuota {
    type Answer = MovedQuota;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<MovedQuota>, CatalogError> {
        let tenant = self.tenant.as_str();
        lock(tx, &self.tenant).await?;
        tx.run(
            "INSERT INTO quotas (tenant_id, used_bytes) VALUES ($1, 0) ON CONFLICT (tenant_id) DO NOTHING",
            args![tenant],
        )
        .await?;
        // Also the lock of the row, for those who charge it without holding the gate.
        let before = tx
            .row(
                "UPDATE quotas SET used_bytes = used_bytes WHERE tenant_id = $1 \
                 RETURNING limit_bytes, used_bytes, owner, epoch, owner_since",
                args![tenant],
            )
            .await?
            .ok_or_else(|| CatalogError::Corrupt(format!("{tenant} has no quota row")))?;
        let state = decode(&before)?;
        let used_bytes = charged(tx, &self.tenant).await?;
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
        lines::forget_refunds_before(tx, &self.tenant, epoch).await?;
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

/// The truth: what a tenant's files are charged.
pub(crate) async fn charged(tx: &mut Tx<'_>, tenant: &TenantId) -> Result<u64, CatalogError> {
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

    /// Tenants whose uploads Redis lets in.
    pub async fn tenants_in_redis(&self, after: &str, limit: usize) -> Result<Vec<TenantId>, CatalogError> {
        let sql = "SELECT tenant_id FROM quotas WHERE owner = 'redis' AND tenant_id > $1 ORDER BY tenant_id LIMIT $2";
        self.tenants_by(sql, after, limit).await
    }
}
