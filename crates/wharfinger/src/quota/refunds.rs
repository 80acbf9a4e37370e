//! Sends refunds from the outbox to Redis. Redis applies each refund once, even if it is delivered several times.

use futures::StreamExt as _;
use wharfinger_catalog::{CatalogError, Destination, OutboxLine, OutboxPayload};
use wharfinger_engines::redis_quota::RefundResult;
use wharfinger_lifecycle::retry::Backoff;

use super::rebuild::{self, RebuildReason};
use super::{RedisQuotaOwner, lock};
use crate::quota::Quota;

const CLAIM_LINES: usize = 200;
const AT_ONCE: usize = 32;
/// How long claimed lines are hidden. If the process dies with them, they are sent again after this.
const HIDDEN_MS: i64 = 30_000;
const RETRY: Backoff = Backoff { base_ms: 500, cap_ms: 60_000 };
/// Refunds that Redis remembers per tenant. Beyond it, the counter is rebuilt, which forgets them.
const REMEMBERED_MAX: u64 = 50_000;

/// Delivers all lines that are due. Returns how many arrived.
pub async fn relay(quota: &Quota) -> Result<u64, CatalogError> {
    let core = &quota.core;
    let Some(owner) = &quota.redis_owner else { return Ok(0) };
    rebuild_doubtful(quota, owner).await?;
    let mut arrived = 0;
    while !owner.is_away() {
        let now = core.clock.now();
        let lines = core
            .catalog
            .claim_outbox(Destination::Quota, CLAIM_LINES, now, now.saturating_add(HIDDEN_MS))
            .await?;
        if lines.is_empty() {
            break;
        }
        let outcomes: Vec<(OutboxLine, Result<(), String>)> = futures::stream::iter(lines)
            .map(async |line| {
                let delivered = deliver(quota, owner, &line).await;
                (line, delivered)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let (mut done, mut late) = (Vec::new(), Vec::new());
        for (line, delivered) in outcomes {
            match delivered {
                Ok(()) => done.push(line.id),
                Err(why) => late.push((line, why)),
            }
        }
        arrived += done.len() as u64;
        core.catalog.outbox_delivered(done).await?;
        for (line, why) in late {
            let delay = RETRY.delay_ms(line.attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            core.catalog.delay_outbox(vec![line.id], &why, until).await?;
        }
    }
    Ok(arrived)
}

async fn deliver(quota: &Quota, owner: &RedisQuotaOwner, line: &OutboxLine) -> Result<(), String> {
    let OutboxPayload::Refund { bytes, epoch } = line.payload else {
        return Err("the line is not a refund".into());
    };
    if owner.is_away() {
        return Err("Redis does not answer".into());
    }
    let rebuilds_seen = owner.tenant(&line.tenant).rebuilds();
    let why = match owner.redis.refund(&line.tenant, &line.id, bytes, epoch).await {
        Ok(RefundResult::Done { remembered }) if remembered <= REMEMBERED_MAX => return Ok(()),
        Ok(RefundResult::Done { .. }) => {
            // The rebuild forgets refunds that are already in the new sum.
            let _ = rebuild::rebuild(
                &quota.quota_context(),
                owner,
                &line.tenant,
                rebuilds_seen,
                RebuildReason::Full,
            )
            .await;
            return Ok(());
        }
        Ok(RefundResult::Later) => {
            // The load is still coming, or the process that should send it died.
            if line.attempts > 0 {
                let _ = rebuild::rebuild(
                    &quota.quota_context(),
                    owner,
                    &line.tenant,
                    rebuilds_seen,
                    RebuildReason::Moved,
                )
                .await;
            }
            "Redis has an older epoch".to_owned()
        }
        // The new sum already contains this refund, and Redis drops the line because its epoch is older.
        Ok(RefundResult::Reload) => {
            match rebuild::rebuild(
                &quota.quota_context(),
                owner,
                &line.tenant,
                rebuilds_seen,
                RebuildReason::Lost,
            )
            .await
            {
                Ok(_) => "the counter in Redis was lost".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        Err(error) => {
            owner.mark_away(&error);
            error.to_string()
        }
    };
    Err(why)
}

/// Rebuilds counters that may be wrong, for example because the answer to a commit was lost.
async fn rebuild_doubtful(quota: &Quota, owner: &RedisQuotaOwner) -> Result<(), CatalogError> {
    if owner.is_away() {
        return Ok(());
    }
    let doubtful = std::mem::take(&mut *lock(&owner.doubtful));
    let mut outcome = Ok(());
    for name in doubtful {
        let rebuilds_seen = owner.tenant(&name).rebuilds();
        match rebuild::rebuild(&quota.quota_context(), owner, &name, rebuilds_seen, RebuildReason::Doubt)
            .await
        {
            Ok(counted) if counted.is_loaded => {}
            // The quota is at the database now. Its counter is rebuilt when it returns to Redis.
            Ok(_) if !owner.is_away() => {}
            Ok(_) => owner.mark_doubtful(&name),
            Err(error) => {
                owner.mark_doubtful(&name);
                outcome = Err(error);
            }
        }
    }
    outcome
}
