//! Quotas: a limit and a usage counter per tenant. If the database counts, the counter changes in the same transaction
//! as the files.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::quota::{Quota, QuotaExceeded};

use crate::Catalog;
use crate::database::sql::signed;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::outbox::lines::{self, OutboxPayload};
use crate::quota::owner::{self, QuotaOwner, QuotaState};
use crate::unreadable::{Table, next_cursor};

/// The outcome of [`reserve`].
pub(crate) enum Reservation {
    Charged {
        limit_bytes: u64,
    },
    /// Nothing was charged. For each size: whether it exceeds the limit after those before it.
    Exceeded {
        limit_bytes: u64,
        exceeded: Vec<Option<QuotaExceeded>>,
    },
    /// Redis admits this tenant's uploads: nothing was charged.
    OwnedByRedis(QuotaState),
}

/// Charges all of these sizes or none.
pub(crate) async fn reserve(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    sizes: &[u64],
    default_limit_bytes: u64,
) -> Result<Reservation, CatalogError> {
    let sum = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
    // Subtracted from the limit, because the sum of `used_bytes` and a very large size would overflow.
    // The check is in the UPDATE itself: two concurrent charges cannot both take the last byte.
    let charged = tx
        .row(
            "UPDATE quotas SET used_bytes = used_bytes + $2 WHERE tenant_id = $1 AND owner = 'database' \
             AND used_bytes <= COALESCE(limit_bytes, $3) - $2 RETURNING COALESCE(limit_bytes, $3) AS limit_bytes",
            args![tenant.as_str(), signed(sum), signed(default_limit_bytes)],
        )
        .await?;
    if let Some(row) = charged {
        return Ok(Reservation::Charged { limit_bytes: row.bytes("limit_bytes")? });
    }
    tx.run(
        "INSERT INTO quotas (tenant_id, used_bytes) VALUES ($1, 0) ON CONFLICT (tenant_id) DO NOTHING",
        args![tenant.as_str()],
    )
    .await?;
    // Since then the row may have been created, its limit raised, or its owner changed. Only a locked row justifies a
    // refusal.
    let (mut quota, state) = lock_quota(tx, tenant, default_limit_bytes)
        .await?
        .ok_or_else(|| CatalogError::Corrupt(format!("{tenant} has no quota row")))?;
    if state.owner == QuotaOwner::Redis {
        return Ok(Reservation::OwnedByRedis(state));
    }
    let limit_bytes = quota.limit_bytes;
    let exceeded: Vec<Option<QuotaExceeded>> = sizes
        .iter()
        .map(|size| match quota.reserve(*size) {
            Ok(next) => {
                quota = next;
                None
            }
            Err(exceeded) => Some(exceeded),
        })
        .collect();
    if exceeded.iter().any(Option::is_some) {
        return Ok(Reservation::Exceeded { limit_bytes, exceeded });
    }
    let sql = "UPDATE quotas SET used_bytes = used_bytes + $2 WHERE tenant_id = $1";
    tx.run(sql, args![tenant.as_str(), signed(sum)]).await?;
    Ok(Reservation::Charged { limit_bytes })
}

/// A tenant's quota, locked until the end of the transaction. On both databases an UPDATE without a change is a lock.
async fn lock_quota(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    default_limit_bytes: u64,
) -> Result<Option<(Quota, QuotaState)>, CatalogError> {
    let row = tx
        .row(
            "UPDATE quotas SET used_bytes = used_bytes WHERE tenant_id = $1 \
             RETURNING COALESCE(limit_bytes, $2) AS limit_bytes, used_bytes, owner, epoch, owner_since",
            args![tenant.as_str(), signed(default_limit_bytes)],
        )
        .await?;
    row.map(|row| {
        let (limit_bytes, used_bytes) = (row.bytes("limit_bytes")?, row.bytes("used_bytes")?);
        Ok((Quota { limit_bytes, used_bytes, reserved_bytes: 0 }, owner::decode(&row)?))
    })
    .transpose()
}

/// Takes bytes off the tenant's charge: in its row, or by an outbox line to Redis. `locked` is the quota state if the
/// caller has already locked the owner.
pub(crate) async fn refund(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    bytes: u64,
    locked: Option<QuotaState>,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let is_in_redis = |state: &QuotaState| state.owner == QuotaOwner::Redis;
    let state = match locked {
        Some(state) if is_in_redis(&state) => state,
        _ => {
            let changed = tx
                .run(
                    "UPDATE quotas SET used_bytes = used_bytes - $2 WHERE tenant_id = $1 AND owner = 'database'",
                    args![tenant.as_str(), signed(bytes)],
                )
                .await?;
            if changed == 1 {
                return Ok(());
            }
            let state = owner::lock_shared(tx, tenant).await?;
            if !is_in_redis(&state) {
                // The owner changed back since the UPDATE, or there is no row.
                return match (locked, state.epoch) {
                    (None, 1..) => Err(CatalogError::Repeat(format!(
                        "the quota of {tenant} moved between the database and Redis during this write"
                    ))),
                    _ => Err(CatalogError::Corrupt(format!("tenant {tenant} has files and no quota row"))),
                };
            }
            state
        }
    };
    lines::insert(tx, tenant, &OutboxPayload::Refund { bytes, epoch: state.epoch }, now).await
}

/// While Redis counts, `used_bytes` of the row is outdated. `file_counts` has the sums of the files.
macro_rules! select_quotas {
    ($rest:literal) => {
        concat!(
            "SELECT tenant_id, COALESCE(limit_bytes, $2) AS limit_bytes, \
             CASE WHEN owner = 'database' THEN used_bytes ELSE (SELECT CAST(COALESCE(SUM(c.charged_bytes), 0) AS BIGINT) \
             FROM file_counts c WHERE c.tenant_id = quotas.tenant_id) END AS used_bytes, \
             (SELECT CAST(COALESCE(SUM(c.charged_bytes), 0) AS BIGINT) FROM file_counts c \
             WHERE c.tenant_id = quotas.tenant_id AND c.status IN ('registered', 'deleted')) AS reserved_bytes \
             FROM quotas ",
            $rest
        )
    };
}

const SELECT_ONE: &str = select_quotas!("WHERE tenant_id = $1");
const SELECT_PAGE: &str = select_quotas!("WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $3");

fn decode(row: &Row) -> Result<Quota, CatalogError> {
    Ok(Quota {
        limit_bytes: row.bytes("limit_bytes")?,
        used_bytes: row.bytes("used_bytes")?,
        reserved_bytes: row.bytes("reserved_bytes")?,
    })
}

pub(crate) fn tenant_of(row: &Row) -> Result<TenantId, CatalogError> {
    TenantId::new(&row.text("tenant_id")?)
        .map_err(|_| CatalogError::Corrupt("tenant_id holds an invalid name".into()))
}

fn empty_quota(limit_bytes: u64) -> Quota {
    Quota { limit_bytes, used_bytes: 0, reserved_bytes: 0 }
}

struct SetLimit {
    tenant: TenantId,
    limit_bytes: u64,
}

impl Write for SetLimit {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        // Redis counts with the old limit. The new epoch makes its later admissions invalid.
        owner::lock_exclusive(tx, &self.tenant).await?;
        tx.run(
            "INSERT INTO quotas (tenant_id, limit_bytes, used_bytes) VALUES ($1, $2, 0) \
             ON CONFLICT (tenant_id) DO UPDATE SET limit_bytes = excluded.limit_bytes, \
             epoch = quotas.epoch + CASE WHEN quotas.owner = 'redis' THEN 1 ELSE 0 END",
            args![self.tenant.as_str(), signed(self.limit_bytes)],
        )
        .await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// The result of a reconciliation of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaDrift {
    /// Counter minus truth, before the correction.
    pub drift_bytes: i64,
    /// Redis counts this tenant and has to be reloaded; the row was not checked.
    pub in_redis: bool,
}

/// Recomputes a tenant's counter from its files. The quota row is locked first, so no charge of this tenant can change
/// between the sum and the write.
struct RebuildQuota {
    tenant: TenantId,
    default_limit_bytes: u64,
}

impl Write for RebuildQuota {
    type Answer = Option<QuotaDrift>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let Some((before, state)) = lock_quota(tx, &self.tenant, self.default_limit_bytes).await? else {
            return Ok(TxOutcome::Rollback(None));
        };
        if state.owner == QuotaOwner::Redis {
            return Ok(TxOutcome::Rollback(Some(QuotaDrift { drift_bytes: 0, in_redis: true })));
        }
        let used_bytes = owner::charged_bytes(tx, &self.tenant).await?;
        let drift =
            QuotaDrift { drift_bytes: signed(before.used_bytes) - signed(used_bytes), in_redis: false };
        if drift.drift_bytes == 0 {
            return Ok(TxOutcome::Rollback(Some(drift)));
        }
        tx.run(
            "UPDATE quotas SET used_bytes = $2 WHERE tenant_id = $1",
            args![self.tenant.as_str(), signed(used_bytes)],
        )
        .await?;
        Ok(TxOutcome::Commit(Some(drift)))
    }
}

impl Catalog {
    pub async fn quota(&self, tenant: &TenantId, default_limit_bytes: u64) -> Result<Quota, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row(SELECT_ONE, args![tenant.as_str(), signed(default_limit_bytes)])
            .await?;
        row.as_ref().map_or(Ok(empty_quota(default_limit_bytes)), decode)
    }

    /// A page of quotas, by tenant name, after one.
    pub async fn quotas(
        &self,
        after: &str,
        limit: usize,
        default_limit_bytes: u64,
    ) -> Result<Vec<(TenantId, Quota)>, CatalogError> {
        let args = args![after, signed(default_limit_bytes), limit as i64];
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows(SELECT_PAGE, args).await?;
        let decode = |row: &Row| Ok((tenant_of(row)?, decode(row)?));
        Ok(self.readable(Table::Quotas, "tenant_id", &rows, decode).await)
    }

    pub async fn set_limit(&self, tenant: &TenantId, limit_bytes: u64) -> Result<(), CatalogError> {
        self.write(SetLimit { tenant: tenant.clone(), limit_bytes }).await
    }

    /// None: the tenant has no quota row.
    pub async fn rebuild_quota(
        &self,
        tenant: &TenantId,
        default_limit_bytes: u64,
    ) -> Result<Option<QuotaDrift>, CatalogError> {
        self.write(RebuildQuota { tenant: tenant.clone(), default_limit_bytes }).await
    }

    /// What reconciling a tenant would find. Changes nothing. None: the tenant has no quota row.
    pub async fn quota_drift(&self, tenant: &TenantId) -> Result<Option<QuotaDrift>, CatalogError> {
        let sql = "SELECT used_bytes, owner, CAST(COALESCE((SELECT SUM(charged_bytes) FROM files \
                   WHERE files.tenant_id = quotas.tenant_id AND charged_bytes > 0), 0) AS BIGINT) AS charged_bytes \
                   FROM quotas WHERE tenant_id = $1";
        let mut reader = self.reader().await?;
        let row = reader.tx(&self.faults).row(sql, args![tenant.as_str()]).await?;
        row.map(|row| {
            let in_redis = row.text("owner")? == "redis";
            let off = row.int("used_bytes")? - row.int("charged_bytes")?;
            Ok(QuotaDrift { drift_bytes: if in_redis { 0 } else { off }, in_redis })
        })
        .transpose()
    }

    pub async fn tenants(&self, after: &str, limit: usize) -> Result<Vec<TenantId>, CatalogError> {
        let sql = "SELECT tenant_id FROM quotas WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2";
        self.tenants_by(sql, after, limit).await
    }

    pub(crate) async fn tenants_by(
        &self,
        sql: &'static str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<TenantId>, CatalogError> {
        let mut after = after.to_owned();
        loop {
            let mut reader = self.reader().await?;
            let rows = reader.tx(&self.faults).rows(sql, args![after.as_str(), limit as i64]).await?;
            drop(reader);
            let page = self.readable(Table::Quotas, "tenant_id", &rows, tenant_of).await;
            match next_cursor(&page, &rows, limit, |row| row.text("tenant_id")) {
                Some(next) => after = next,
                None => return Ok(page),
            }
        }
    }
}
