//! Compares counters with what the files are charged and sets them right: the row's in place, those of Redis by letting
//! it count anew.

use wharfinger_catalog::CatalogError;
use wharfinger_lifecycle::id::TenantId;

use super::count::{self, Why};
use super::{QuotaContext, RedisQuotaOwner, TENANTS_PER_PAGE};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    pub tenants: u64,
    /// By how much counters were off, one way or the other. Redis also counts what is being registered.
    pub drift_bytes: u64,
    /// Counters that Redis began anew.
    pub rebuilt: u64,
    /// Tenants that could not be outcome at.
    pub failed: u64,
}

/// None: the tenant is not known here.
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
            let seen = owner.tenant(name).counts();
            let counted = count::anew(quota_context, owner, name, seen, Why::Sync).await?;
            synced.drift_bytes = counted.drift_bytes.unsigned_abs();
            synced.rebuilt = u64::from(counted.is_loaded);
        }
        None if drift.in_redis => count::leave(quota_context, None, name).await?,
        _ => {}
    }
    Ok(Some(synced))
}

/// Sets right what is off, or only finds it.
#[derive(Clone, Copy)]
pub enum SyncMode<'g> {
    Repair(Option<&'g RedisQuotaOwner>),
    /// What Redis counts is set right by counting anew, so it is not compared here.
    Compare,
}

/// Asks before each tenant whether to go on.
pub async fn all(
    quota_context: &QuotaContext<'_>,
    mode: SyncMode<'_>,
    goes_on: impl Fn() -> bool,
) -> Result<Synced, CatalogError> {
    let (mut sum, mut after) = (Synced::default(), String::new());
    loop {
        let page = quota_context.catalog.tenants(&after, TENANTS_PER_PAGE).await?;
        let Some(last) = page.last() else { return Ok(sum) };
        after = last.to_string();
        for name in &page {
            if !goes_on() {
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
                    tracing::warn!(job = "quota-sync", tenant = %name, error = %error, "a tenant was passed over");
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
