//! Quotas: a limit and a sum per tenant, changed in the same transaction as the files they count.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::quota::{QuotaExceeded, Quota};

use crate::Catalog;
use crate::database::sql::signed;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::outbox::lines::{self, OutboxPayload};
use crate::quota::owner::{self, QuotaOwner, QuotaState};
use crate::unreadable::{Table, behind};

pub(crate) enum Reserved {
    All {
        limit_bytes: u64,
    },
    /// Nothing was charged: which of them do not fit, in their order.
    NotAll {
        limit_bytes: u64,
        exceeded: Vec<Option<QuotaExceeded>>,
    },
    /// Redis admits this tenant's uploads.
    NotHere(QuotaState),
}

/// Charges all of these sizes or none.
pub(crate) async fn reserve(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    sizes: &[u64],
    default_limit_bytes: u64,
) -> Result<Reserved, CatalogError> {
    let sum = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
    // The test is in the UPDATE itself: two that race cannot both take the last byte.
    let charged = tx
        .row(
            "UPDATE quotas SET used_bytes = used_bytes + $2 WHERE tenant_id = $1 AND owner = 'database' \
             AND used_bytes + $2 <= COALESCE(limit_bytes, $3) RETURNING COALESCE(limit_bytes, $3) AS limit_bytes",
            args![tenant.as_str(), signed(sum), signed(default_limit_bytes)],
        )
        .await?;
    if let Some(row) = charged {
        return Ok(Reserved::All { limit_bytes: row.bytes("limit_bytes")? });
    }
    tx.run(
        "INSERT INTO quotas (tenant_id, used_bytes) VALUES ($1, 0) ON CONFLICT (tenant_id) DO NOTHING",
        args![tenant.as_str()],
    )
    .await?;
    // The row may have been made, its limit raised, or its gate moved since we asked: only what is read under its
    // lock is a reason to refuse.
    let (mut quota, state) = locked(tx, tenant, default_limit_bytes)
        .await?
        .ok_or_else(|| CatalogError::Corrupt(format!("{tenant} has no quota row")))?;
    if state.owner == QuotaOwner::Redis {
        return Ok(Reserved::NotHere(state));
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
        return Ok(Reserved::NotAll { limit_bytes, exceeded });
    }
    let sql = "UPDATE quotas SET used_bytes = used_bytes + $2 WHERE tenant_id = $1";
    tx.run(sql, args![tenant.as_str(), signed(sum)]).await?;
    Ok(Reserved::All { limit_bytes })
}

/// A tenant's quota, which nobody else changes before we are done: an update that changes nothing is a lock on
/// both databases.
async fn locked(
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

/// Takes bytes off the tenant's charge: in its row, or by a line to whoever counts instead. `held` is the gate where
/// the caller holds it already.
pub(crate) async fn give_back(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    bytes: u64,
    held: Option<QuotaState>,
    now: UnixMs,
) -> Result<(), CatalogError> {
    let in_redis = |state: &QuotaState| state.owner == QuotaOwner::Redis;
    let state = match held {
        Some(state) if in_redis(&state) => state,
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
            let state = owner::hold(tx, tenant).await?;
            if !in_redis(&state) {
                // It came back between the two, or there is no row at all.
                return match (held, state.epoch) {
                    (None, 1..) => Err(CatalogError::Repeat(format!("the quota of {tenant} moved"))),
                    _ => Err(CatalogError::Corrupt(format!("tenant {tenant} has files and no quota row"))),
                };
            }
            state
        }
    };
    lines::insert(tx, tenant, &OutboxPayload::Refund { bytes, epoch: state.epoch }, now).await
}

/// What Redis counts has its truth in the files, of which `file_counts` keeps the sums.
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

const SHOW: &str = select_quotas!("WHERE tenant_id = $1");
const SHOW_ALL: &str = select_quotas!("WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $3");

fn decode(row: &Row) -> Result<Quota, CatalogError> {
    Ok(Quota {
        limit_bytes: row.bytes("limit_bytes")?,
        used_bytes: row.bytes("used_bytes")?,
        reserved_bytes: row.bytes("reserved_bytes")?,
    })
}

pub(crate) fn tenant_of(row: &Row) -> Result<TenantId, CatalogError> {
    TenantId::new(&row.text("tenant_id")?)
        .map_err(|_| CatalogError::Corrupt("tenant_id holds a name that is none".into()))
}

fn unused(limit_bytes: u64) -> Quota {
    Quota { limit_bytes, used_bytes: 0, reserved_bytes: 0 }
}

struct SetLimit {
    tenant: TenantId,
    limit_bytes: u64,
}

impl Write for SetLimit {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        // Redis counts against the old limit: whoever it lets in from now on must ask again.
        owner::lock(tx, &self.tenant).await?;
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

/// What a reconciliation found for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaDrift {
    /// How far the counter was off before it was set right.
    pub drift_bytes: i64,
    /// Its counter is not ours to mend: Redis has to count anew.
    pub in_redis: bool,
}

/// Recomputes a tenant's counter from its files. The quota row is locked first, so no file of this tenant can
/// change its charge between the sum and the write.
struct Rebuild {
    tenant: TenantId,
    default_limit_bytes: u64,
}

impl Write for Rebuild {
    type Answer = Option<QuotaDrift>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let Some((before, state)) = locked(tx, &self.tenant, self.default_limit_bytes).await? else {
            return Ok(TxOutcome::Rollback(None));
        };
        if state.owner == QuotaOwner::Redis {
            return Ok(TxOutcome::Rollback(Some(QuotaDrift { drift_bytes: 0, in_redis: true })));
        }
        let used_bytes = owner::charged(tx, &self.tenant).await?;
        let drift = QuotaDrift { drift_bytes: signed(before.used_bytes) - signed(used_bytes), in_redis: false };
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
        let row =
            reader.tx(&self.faults).row(SHOW, args![tenant.as_str(), signed(default_limit_bytes)]).await?;
        row.as_ref().map_or(Ok(unused(default_limit_bytes)), decode)
    }

    /// Those of all tenants behind one, by name.
    pub async fn quotas(
        &self,
        after: &str,
        limit: usize,
        default_limit_bytes: u64,
    ) -> Result<Vec<(TenantId, Quota)>, CatalogError> {
        let args = args![after, signed(default_limit_bytes), limit as i64];
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows(SHOW_ALL, args).await?;
        let decode = |row: &Row| Ok((tenant_of(row)?, decode(row)?));
        Ok(self.readable(Table::Quotas, "tenant_id", &rows, decode).await)
    }

    pub async fn set_limit(&self, tenant: &TenantId, limit_bytes: u64) -> Result<(), CatalogError> {
        self.write(SetLimit { tenant: tenant.clone(), limit_bytes }).await
    }

    /// None: the tenant is not known here.
    pub async fn rebuild_quota(
        &self,
        tenant: &TenantId,
        default_limit_bytes: u64,
    ) -> Result<Option<QuotaDrift>, CatalogError> {
        self.write(Rebuild { tenant: tenant.clone(), default_limit_bytes }).await
    }

    /// What reconciling a tenant would find, without doing it. None: the tenant is not known here.
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
            match behind(&page, &rows, limit, |row| row.text("tenant_id")) {
                Some(next) => after = next,
                None => return Ok(page),
            }
        }
    }
}
