//! Quotas: a limit and two sums per tenant, changed in the same transaction as the files they count.

use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::quota::{Exceeded, Quota};

use super::Catalog;
use super::error::CatalogError;
use super::files::signed;
use super::sql::{Row, Tx, args};
use super::writer::{Verdict, Write};

pub(super) enum Reserved {
    Yes { limit_bytes: u64 },
    No { used_bytes: u64, limit_bytes: u64 },
}

pub(super) async fn reserve(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    size: u64,
    default_limit_bytes: u64,
) -> Result<Reserved, CatalogError> {
    if let Some(limit_bytes) = charge(tx, tenant, size, default_limit_bytes).await? {
        return Ok(Reserved::Yes { limit_bytes });
    }
    tx.run(
        "INSERT INTO quotas (tenant_id, used_bytes, reserved_bytes) VALUES ($1, 0, 0) \
         ON CONFLICT (tenant_id) DO NOTHING",
        args![tenant.as_str()],
    )
    .await?;
    // The row may have been made, or its limit raised, since we asked: only what is read under its lock is a
    // reason to refuse.
    let quota = locked(tx, tenant, default_limit_bytes).await?.unwrap_or(unused(default_limit_bytes));
    if let Err(exceeded) = quota.reserve(size) {
        let Exceeded { used_bytes, limit_bytes, .. } = exceeded;
        return Ok(Reserved::No { used_bytes, limit_bytes });
    }
    let charged = charge(tx, tenant, size, default_limit_bytes).await?;
    let limit_bytes = charged.ok_or_else(|| CatalogError::Corrupt(format!("{tenant} has no quota row")))?;
    Ok(Reserved::Yes { limit_bytes })
}

/// The test is in the `UPDATE` itself: two that race cannot both take the last byte. Answers the limit.
async fn charge(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    size: u64,
    default_limit_bytes: u64,
) -> Result<Option<u64>, CatalogError> {
    let row = tx
        .row(
            "UPDATE quotas SET used_bytes = used_bytes + $2, reserved_bytes = reserved_bytes + $2 \
             WHERE tenant_id = $1 AND used_bytes + $2 <= COALESCE(limit_bytes, $3) \
             RETURNING COALESCE(limit_bytes, $3) AS limit_bytes",
            args![tenant.as_str(), signed(size), signed(default_limit_bytes)],
        )
        .await?;
    row.map(|row| row.bytes("limit_bytes")).transpose()
}

/// A tenant's quota, which nobody else changes before we are done: an update that changes nothing is a lock on
/// both databases.
async fn locked(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    default_limit_bytes: u64,
) -> Result<Option<Quota>, CatalogError> {
    let row = tx
        .row(
            "UPDATE quotas SET used_bytes = used_bytes WHERE tenant_id = $1 \
             RETURNING COALESCE(limit_bytes, $2) AS limit_bytes, used_bytes, reserved_bytes",
            args![tenant.as_str(), signed(default_limit_bytes)],
        )
        .await?;
    row.as_ref().map(decode).transpose()
}

pub(super) async fn adjust(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    used_delta: i64,
    reserved_delta: i64,
) -> Result<(), CatalogError> {
    if used_delta == 0 && reserved_delta == 0 {
        return Ok(());
    }
    let changed = tx
        .run(
            "UPDATE quotas SET used_bytes = used_bytes + $2, reserved_bytes = reserved_bytes + $3 \
             WHERE tenant_id = $1",
            args![tenant.as_str(), used_delta, reserved_delta],
        )
        .await?;
    if changed == 1 {
        Ok(())
    } else {
        Err(CatalogError::Corrupt(format!("tenant {tenant} has files and no quota row")))
    }
}

const SHOW: &str = "SELECT COALESCE(limit_bytes, $2) AS limit_bytes, used_bytes, reserved_bytes \
    FROM quotas WHERE tenant_id = $1";

fn decode(row: &Row) -> Result<Quota, CatalogError> {
    Ok(Quota {
        limit_bytes: row.bytes("limit_bytes")?,
        used_bytes: row.bytes("used_bytes")?,
        reserved_bytes: row.bytes("reserved_bytes")?,
    })
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

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        tx.run(
            "INSERT INTO quotas (tenant_id, limit_bytes, used_bytes, reserved_bytes) VALUES ($1, $2, 0, 0) \
             ON CONFLICT (tenant_id) DO UPDATE SET limit_bytes = excluded.limit_bytes",
            args![self.tenant.as_str(), signed(self.limit_bytes)],
        )
        .await?;
        Ok(Verdict::Commit(()))
    }
}

/// What a reconciliation found for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// How far the counter was off before it was set right.
    pub drift_bytes: i64,
    pub quota: Quota,
}

/// Recomputes a tenant's counters from its files. The quota row is locked first, so no file of this tenant can
/// change its charge between the sum and the write.
struct Rebuild {
    tenant: TenantId,
    default_limit_bytes: u64,
}

impl Write for Rebuild {
    type Answer = Option<Drift>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Answer>, CatalogError> {
        let tenant = self.tenant.as_str();
        let Some(before) = locked(tx, &self.tenant, self.default_limit_bytes).await? else {
            return Ok(Verdict::Rollback(None));
        };
        let sums = tx
            .row(
                "SELECT CAST(COALESCE(SUM(charged_bytes), 0) AS BIGINT) AS used_bytes, \
                 CAST(COALESCE(SUM(CASE WHEN pipeline_status IN ('registered', 'deleted') \
                 THEN charged_bytes ELSE 0 END), 0) AS BIGINT) AS reserved_bytes \
                 FROM files WHERE tenant_id = $1 AND charged_bytes > 0",
                args![tenant],
            )
            .await?
            .ok_or_else(|| CatalogError::Corrupt("a sum without a row".into()))?;
        let quota = Quota {
            limit_bytes: before.limit_bytes,
            used_bytes: sums.bytes("used_bytes")?,
            reserved_bytes: sums.bytes("reserved_bytes")?,
        };
        if quota == before {
            return Ok(Verdict::Rollback(Some(Drift { drift_bytes: 0, quota })));
        }
        tx.run(
            "UPDATE quotas SET used_bytes = $2, reserved_bytes = $3 WHERE tenant_id = $1",
            args![tenant, signed(quota.used_bytes), signed(quota.reserved_bytes)],
        )
        .await?;
        let drift_bytes = signed(before.used_bytes) - signed(quota.used_bytes);
        Ok(Verdict::Commit(Some(Drift { drift_bytes, quota })))
    }
}

impl Catalog {
    pub async fn quota(&self, tenant: &TenantId, default_limit_bytes: u64) -> Result<Quota, CatalogError> {
        let mut reader = self.reader().await?;
        let row =
            reader.tx(&self.faults).row(SHOW, args![tenant.as_str(), signed(default_limit_bytes)]).await?;
        row.as_ref().map_or(Ok(unused(default_limit_bytes)), decode)
    }

    pub async fn set_limit(&self, tenant: &TenantId, limit_bytes: u64) -> Result<(), CatalogError> {
        self.write(SetLimit { tenant: tenant.clone(), limit_bytes }).await
    }

    /// None: the tenant is not known here.
    pub async fn rebuild_quota(
        &self,
        tenant: &TenantId,
        default_limit_bytes: u64,
    ) -> Result<Option<Drift>, CatalogError> {
        self.write(Rebuild { tenant: tenant.clone(), default_limit_bytes }).await
    }

    pub async fn tenants(&self, after: &str, limit: usize) -> Result<Vec<TenantId>, CatalogError> {
        let mut reader = self.reader().await?;
        let rows = reader
            .tx(&self.faults)
            .rows(
                "SELECT tenant_id FROM quotas WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2",
                args![after, limit as i64],
            )
            .await?;
        rows.iter()
            .map(|row| {
                TenantId::new(&row.text("tenant_id")?)
                    .map_err(|_| CatalogError::Corrupt("tenant_id holds a name that is none".into()))
            })
            .collect()
    }
}
