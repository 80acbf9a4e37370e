//! Numbers of waiting cleanups. They are read at each scrape of the metrics, so they are counted only up to a bound.

use wharfinger_lifecycle::UnixMs;

use crate::Catalog;
use crate::Scope;
use crate::database::sql::args;
use crate::error::CatalogError;
use crate::figures::dashboard::COUNTED_MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupCounts {
    pub pending: u64,
    pub exhausted: u64,
    pub oldest_created_at: Option<UnixMs>,
}

impl Catalog {
    /// How many cleanups are due and not claimed: ranked and unranked ones, each counted up to [`COUNTED_MAX`].
    pub async fn due_cleanups(&self, now: UnixMs) -> Result<u64, CatalogError> {
        let mut reader = self.reader().await?;
        let sql = "SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM pending_cleanups WHERE storage_type = $2 AND rank IS NULL \
             AND next_attempt_at <= $1 AND lease_until <= $1 LIMIT $3) AS scheduled) + (SELECT COUNT(*) FROM (SELECT 1 \
             FROM pending_cleanups WHERE storage_type = $2 AND rank IS NOT NULL AND next_attempt_at <= $1 \
             AND lease_until <= $1 LIMIT $3) AS ranked) AS due";
        let row =
            reader.tx(&self.faults).row(sql, args![now, self.rows.storage_type, COUNTED_MAX as i64]).await?;
        row.map_or(Ok(0), |row| row.bytes("due"))
    }

    /// How many cleanups wait and are not exhausted, and how many are exhausted. Rows are counted up to
    /// [`COUNTED_MAX`].
    pub async fn cleanup_counts(&self, scope: &Scope) -> Result<CleanupCounts, CatalogError> {
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let row = match scope {
            // ORDER BY makes the database read an index, and the limit keeps it from reading all of it.
            Scope::All => {
                tx.row(
                    "SELECT (SELECT COUNT(*) FROM (SELECT id FROM pending_cleanups ORDER BY id LIMIT $1) AS counted) \
                     AS pending, (SELECT COUNT(*) FROM (SELECT id FROM pending_cleanups WHERE exhausted = 1 \
                     ORDER BY tenant_id, id LIMIT $1) AS refused) AS exhausted, \
                     (SELECT created_at FROM pending_cleanups ORDER BY id LIMIT 1) AS oldest",
                    args![COUNTED_MAX as i64],
                )
                .await?
            }
            Scope::Tenant(tenant) | Scope::User(tenant, _) => {
                tx.row(
                    "SELECT (SELECT COUNT(*) FROM (SELECT id FROM pending_cleanups WHERE tenant_id = $2 ORDER BY id \
                     LIMIT $1) AS counted) AS pending, (SELECT COUNT(*) FROM (SELECT id FROM pending_cleanups \
                     WHERE exhausted = 1 AND tenant_id = $2 ORDER BY id LIMIT $1) AS refused) AS exhausted, \
                     (SELECT created_at FROM pending_cleanups WHERE tenant_id = $2 ORDER BY id LIMIT 1) AS oldest",
                    args![COUNTED_MAX as i64, tenant.as_str()],
                )
                .await?
            }
        };
        row.map_or(Ok(CleanupCounts::default()), |row| {
            let exhausted = row.bytes("exhausted")?;
            Ok(CleanupCounts {
                pending: row.bytes("pending")?.saturating_sub(exhausted),
                exhausted,
                oldest_created_at: row.maybe_int("oldest")?,
            })
        })
    }
}
