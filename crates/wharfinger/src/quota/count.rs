//! Letting Redis count anew, and leaving it. Both raise the tenant's epoch in the catalog, together with the sum that
//! the new owner counts from: whatever was let in under an older epoch and is not in that sum has to ask again.

use wharfinger_catalog::{CatalogError, MoveQuota, Moved, QuotaOwner, fresh_id};
use wharfinger_engines::redis_quota::{Load, Loaded};
use wharfinger_lifecycle::id::TenantId;

use super::{QuotaContext, RedisQuotaOwner, lock};
use crate::telemetry::metric;

/// Why Redis has to count anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It does not know the tenant, or no longer: new, restarted, flushed, failed over.
    Lost,
    /// It counts under another epoch than the catalog's: nobody has told it of the last one, or the catalog came from
    /// a backup.
    Moved,
    /// The tenant had left it.
    Back,
    /// It may count what is not there.
    Doubt,
    /// It remembers too many refunds.
    Full,
    /// It was asked for, or is the time for it.
    Sync,
}

impl Why {
    pub const ALL: [Why; 6] = [Why::Lost, Why::Moved, Why::Back, Why::Doubt, Why::Full, Why::Sync];

    pub fn as_str(self) -> &'static str {
        match self {
            Why::Lost => "lost",
            Why::Moved => "moved",
            Why::Back => "back",
            Why::Doubt => "doubt",
            Why::Full => "full",
            Why::Sync => "sync",
        }
    }

    /// Whether a Redis that counts soundly, and under the catalog's own epoch, needs nothing.
    fn is_met_by_being_current(self) -> bool {
        match self {
            Why::Lost | Why::Moved => true,
            Why::Back | Why::Doubt | Why::Full | Why::Sync => false,
        }
    }
}

/// How far Redis was off, where it could be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub drift_bytes: i64,
    pub is_loaded: bool,
}

/// Lets Redis count from what the catalog says. `seen` is how often that had happened when its need was found: who
/// waited for another to do it need not do it again. Whether it worked the next call to Redis shows.
pub async fn anew(
    quota_context: &QuotaContext<'_>,
    owner: &RedisQuotaOwner,
    name: &TenantId,
    seen: u64,
    why: Why,
) -> Result<Counted, CatalogError> {
    let tenant = owner.tenant(name);
    let mut counts = tenant.counts.lock().await;
    if *counts != seen {
        return Ok(Counted::default());
    }
    let load = fresh_id(quota_context.clock.now()).to_string();
    let announced = match owner.redis.announce(name, &load).await {
        Ok(announced) => announced,
        Err(error) => {
            owner.lost(&error);
            return Ok(Counted::default());
        }
    };
    // After Redis was asked: within one history of the catalog it cannot be ahead of what is read now.
    let now_at = quota_context.catalog.quota_state(name).await?;
    tenant.learn(&now_at);
    if why != Why::Sync && tenant.is_at_database(quota_context.clock.now()) {
        return Ok(Counted::default());
    }
    let is_current = now_at.owner == QuotaOwner::Redis && announced.sound_epoch == Some(now_at.epoch);
    if is_current && why.is_met_by_being_current() {
        return Ok(Counted::default());
    }
    let moved = move_to(quota_context, name, QuotaOwner::Redis, announced.sound_epoch.unwrap_or(0)).await?;
    let Moved { epoch, used_bytes, limit_bytes, has_own_limit, .. } = moved;
    match owner
        .redis
        .load(name, &announced.name, Load { epoch, used_bytes, limit_bytes, has_own_limit })
        .await
    {
        Ok(Loaded::Yes { used_bytes_before }) => {
            *counts += 1;
            lock(&tenant.known).counts = *counts;
            let before = used_bytes_before.unwrap_or(used_bytes);
            let drift_bytes =
                i64::try_from(before).unwrap_or(i64::MAX) - i64::try_from(used_bytes).unwrap_or(i64::MAX);
            metric::quota_counted_anew(why.as_str());
            tracing::info!(tenant = %name, action = "quota-counted-anew", reason = why.as_str(), epoch,
                used = used_bytes, drift = drift_bytes, "Redis counts from what the catalog says");
            Ok(Counted { drift_bytes, is_loaded: true })
        }
        // Somebody else's load, or the end of the server, came in between: whoever asks next starts over.
        Ok(Loaded::Newer { .. } | Loaded::Unannounced) => Ok(Counted::default()),
        Err(error) => {
            owner.lost(&error);
            Ok(Counted::default())
        }
    }
}

/// From now on the catalog lets this tenant's uploads in, and whatever Redis still says counts no more.
pub async fn leave(
    quota_context: &QuotaContext<'_>,
    owner: Option<&RedisQuotaOwner>,
    name: &TenantId,
) -> Result<(), CatalogError> {
    let held = quota_context.catalog.quota_state(name).await?;
    if held.owner == QuotaOwner::Redis {
        let moved = move_to(quota_context, name, QuotaOwner::Database, held.epoch).await?;
        tracing::warn!(tenant = %name, action = "quota-left-redis", epoch = moved.epoch, used = moved.used_bytes,
            "the database lets this tenant's uploads in");
    }
    if let Some(owner) = owner {
        owner.tenant(name).learn(&quota_context.catalog.quota_state(name).await?);
    }
    Ok(())
}

async fn move_to(
    quota_context: &QuotaContext<'_>,
    name: &TenantId,
    to: QuotaOwner,
    after_epoch: i64,
) -> Result<Moved, CatalogError> {
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
    fn every_reason_is_counted_from_zero() {
        assert_eq!(Why::ALL.map(Why::as_str), metric::COUNT_REASONS);
    }
}
