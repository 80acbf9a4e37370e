//! Rebuilds a tenant's counter in Redis from the catalog, or moves the tenant's quota to the database. One transaction raises
//! the tenant's epoch and reads the sum that the new owner starts from. A reservation under an older epoch that is not in
//! the sum is no longer valid, and its caller reserves again.

use wharfinger_catalog::{CatalogError, MoveQuota, MovedQuota, QuotaOwner, fresh_id};
use wharfinger_engines::redis_quota::{Load, LoadResult};
use wharfinger_lifecycle::id::TenantId;

use super::{QuotaContext, RedisQuotaOwner, lock};
use crate::telemetry::metric;

/// Why a counter in Redis is rebuilt: a label of `wharfinger_quota_rebuilds_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildReason {
    /// Redis does not have the tenant's counter: it is new, restarted, flushed or failed over.
    Lost,
    /// Redis has another epoch than the catalog: it missed the last change, or the catalog was restored from a backup.
    Moved,
    /// The quota was at the database and returns to Redis.
    Back,
    /// Redis may count files that do not exist.
    Doubt,
    /// Redis remembers too many refunds.
    Full,
    /// A scheduled or manual quota sync.
    Sync,
}

impl RebuildReason {
    pub const ALL: [RebuildReason; 6] = [
        RebuildReason::Lost,
        RebuildReason::Moved,
        RebuildReason::Back,
        RebuildReason::Doubt,
        RebuildReason::Full,
        RebuildReason::Sync,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RebuildReason::Lost => "lost",
            RebuildReason::Moved => "moved",
            RebuildReason::Back => "back",
            RebuildReason::Doubt => "doubt",
            RebuildReason::Full => "full",
            RebuildReason::Sync => "sync",
        }
    }

    /// Whether no rebuild is needed if Redis counts under the catalog's current epoch.
    fn is_solved_by_current_epoch(self) -> bool {
        match self {
            RebuildReason::Lost | RebuildReason::Moved => true,
            RebuildReason::Back | RebuildReason::Doubt | RebuildReason::Full | RebuildReason::Sync => false,
        }
    }
}

/// The drift of the counter in Redis before the rebuild, if it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildResult {
    pub drift_bytes: i64,
    pub is_loaded: bool,
}

/// Rebuilds the counter in Redis from the catalog. `rebuilds_seen` is the number of rebuilds when the caller found the need.
/// If another call rebuilt it since, this does nothing. The next call to Redis shows whether the rebuild worked.
pub async fn rebuild(
    quota_context: &QuotaContext<'_>,
    owner: &RedisQuotaOwner,
    name: &TenantId,
    rebuilds_seen: u64,
    reason: RebuildReason,
) -> Result<RebuildResult, CatalogError> {
    let tenant = owner.tenant(name);
    let mut rebuilds = tenant.rebuilds.lock().await;
    if *rebuilds != rebuilds_seen {
        return Ok(RebuildResult::default());
    }
    let load = fresh_id(quota_context.clock.now()).to_string();
    let announced = match owner.redis.announce(name, &load).await {
        Ok(announced) => announced,
        Err(error) => {
            owner.mark_away(&error);
            return Ok(RebuildResult::default());
        }
    };
    // Read after the call to Redis, so that Redis cannot be ahead of it (except after a restore of the catalog).
    let state = quota_context.catalog.quota_state(name).await?;
    tenant.update(&state);
    if reason != RebuildReason::Sync && tenant.is_at_database(quota_context.clock.now()) {
        return Ok(RebuildResult::default());
    }
    let is_current = state.owner == QuotaOwner::Redis && announced.valid_epoch == Some(state.epoch);
    if is_current && reason.is_solved_by_current_epoch() {
        return Ok(RebuildResult::default());
    }
    let moved = move_to(quota_context, name, QuotaOwner::Redis, announced.valid_epoch.unwrap_or(0)).await?;
    let MovedQuota { epoch, used_bytes, limit_bytes, has_own_limit, .. } = moved;
    match owner
        .redis
        .load(name, &announced.name, Load { epoch, used_bytes, limit_bytes, has_own_limit })
        .await
    {
        Ok(LoadResult::Loaded { used_bytes_before }) => {
            *rebuilds += 1;
            lock(&tenant.state).rebuilds = *rebuilds;
            let before = used_bytes_before.unwrap_or(used_bytes);
            let drift_bytes =
                i64::try_from(before).unwrap_or(i64::MAX) - i64::try_from(used_bytes).unwrap_or(i64::MAX);
            metric::quota_rebuilt(reason.as_str());
            tracing::info!(tenant = %name, action = "quota-rebuilt", reason = reason.as_str(), epoch,
                used = used_bytes, drift = drift_bytes, "rebuilt the quota counter in Redis");
            Ok(RebuildResult { drift_bytes, is_loaded: true })
        }
        // Another load or a restart of Redis came in between. The next call tries again.
        Ok(LoadResult::Newer { .. } | LoadResult::Unannounced) => Ok(RebuildResult::default()),
        Err(error) => {
            owner.mark_away(&error);
            Ok(RebuildResult::default())
        }
    }
}

/// From now on the database admits this tenant's uploads. Reservations in Redis are no longer valid.
pub async fn move_to_database(
    quota_context: &QuotaContext<'_>,
    owner: Option<&RedisQuotaOwner>,
    name: &TenantId,
) -> Result<(), CatalogError> {
    let held = quota_context.catalog.quota_state(name).await?;
    if held.owner == QuotaOwner::Redis {
        let moved = move_to(quota_context, name, QuotaOwner::Database, held.epoch).await?;
        tracing::warn!(tenant = %name, action = "quota-left-redis", epoch = moved.epoch, used = moved.used_bytes,
            "the database admits this tenant's uploads now");
    }
    if let Some(owner) = owner {
        owner.tenant(name).update(&quota_context.catalog.quota_state(name).await?);
    }
    Ok(())
}

async fn move_to(
    quota_context: &QuotaContext<'_>,
    name: &TenantId,
    to: QuotaOwner,
    after_epoch: i64,
) -> Result<MovedQuota, CatalogError> {
    quota_context
        .catalog
        .move_quota(MoveQuota {
            tenant: name.clone(),
            to,
            after_epoch,
            default_limit_bytes: quota_context.default_limit_bytes,
            now: quota_context.clock.now(),
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_a_label_of_the_metric() {
        assert_eq!(RebuildReason::ALL.map(RebuildReason::as_str), metric::REBUILD_REASONS);
    }
}
