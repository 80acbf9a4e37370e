//! Compares the quota counters with the charges of the files and corrects them: those in the database in place, those in
//! Redis by a rebuild.

use wharfinger_catalog::CatalogError;
use wharfinger_lifecycle::id::TenantId;

use super::rebuild::{self, RebuildReason};
use super::{QuotaContext, RedisQuotaOwner, TENANTS_PER_PAGE};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    pub tenants: u64,
    /// The sum of all differences. Redis also counts registrations in progress.
    pub drift_bytes: u64,
    /// Counters rebuilt in Redis.
    pub rebuilt: u64,
    /// Tenants that could not be checked.
    pub failed: u64,
}

/// None if the catalog does not have the tenant.
pub async fn tenant(
    quota_context: &QuotaContext<'_>,
    owner: Option<&RedisQuotaOwner>,
    name: &TenantId,
) -> Result<Option<Synced>, CatalogError> {
    let Some(drift) = quota_context.catalog.rebuild_quota(name, quota_context.default_limit_bytes).await?
    else {
        return Ok(None);
    };
    let mut synced =
        Synced { tenants: 1, drift_bytes: drift.drift_bytes.unsigned_abs(), rebuilt: 0, failed: 0 };
    match owner {
        Some(owner) if drift.in_redis && owner.is_away() => synced.failed = 1,
        Some(owner) if drift.in_redis => {
            let rebuilds_seen = owner.tenant(name).rebuilds();
            let counted =
                rebuild::rebuild(quota_context, owner, name, rebuilds_seen, RebuildReason::Sync).await?;
            synced.drift_bytes = counted.drift_bytes.unsigned_abs();
            synced.rebuilt = u64::from(counted.is_loaded);
        }
        None if drift.in_redis => rebuild::move_to_database(quota_context, None, name).await?,
        _ => {}
    }
    Ok(Some(synced))
}

/// Whether to correct differences or only report them.
#[derive(Clone, Copy)]
pub enum SyncMode<'g> {
    Repair(Option<&'g RedisQuotaOwner>),
    /// Counters in Redis are not compared: they would be rebuilt.
    Compare,
}

/// Asks before each tenant whether to continue.
pub async fn all(
    quota_context: &QuotaContext<'_>,
    mode: SyncMode<'_>,
    may_continue: impl Fn() -> bool,
) -> Result<Synced, CatalogError> {
    let (mut sum, mut after) = (Synced::default(), String::new());
    loop {
        let page = quota_context.catalog.tenants(&after, TENANTS_PER_PAGE).await?;
        let Some(last) = page.last() else { return Ok(sum) };
        after = last.to_string();
        for name in &page {
            if !may_continue() {
                return Ok(sum);
            }
            let outcome = match mode {
                SyncMode::Repair(owner) => tenant(quota_context, owner, name).await,
                SyncMode::Compare => compare(quota_context, name).await,
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(synced)) => {
                    sum.tenants += synced.tenants;
                    sum.drift_bytes += synced.drift_bytes;
                    sum.rebuilt += synced.rebuilt;
                    sum.failed += synced.failed;
                }
                Err(error @ CatalogError::Fenced) => return Err(error),
                Err(error) => {
                    sum.failed += 1;
                    tracing::warn!(job = "quota-sync", tenant = %name, error = %error, "cannot check the quota of a tenant");
                }
            }
        }
    }
}

async fn compare(quota_context: &QuotaContext<'_>, name: &TenantId) -> Result<Option<Synced>, CatalogError> {
    let drift = quota_context.catalog.quota_drift(name).await?;
    Ok(drift.map(|drift| Synced {
        tenants: 1,
        drift_bytes: drift.drift_bytes.unsigned_abs(),
        rebuilt: u64::from(drift.in_redis),
        failed: 0,
    }))
}
