//! Brings refunds to Redis: lines of the outbox, each applied once however often it is delivered.

use futures::StreamExt as _;
use wharfinger_catalog::{CatalogError, Destination, OutboxPayload, OutboxLine};
use wharfinger_engines::redis_quota::Refunded;
use wharfinger_lifecycle::retry::Backoff;

use super::count::{self, Why};
use super::{RedisQuotaOwner, lock};
use crate::quota::Quota;

const CLAIM_LINES: usize = 200;
const AT_ONCE: usize = 32;
/// Whoever dies with lines in hand holds them up this long.
const HIDDEN_MS: i64 = 30_000;
const LATER: Backoff = Backoff { base_ms: 500, cap_ms: 60_000 };
/// Refunds that Redis remembers of a tenant before it counts anew and forgets them.
const REMEMBERED_MAX: u64 = 50_000;

enum Delivered {
    Yes,
    Not(String),
}

/// Delivers all that is due; answers how many lines arrived.
pub async fn relay(quota: &Quota) -> Result<u64, CatalogError> {
    let core = &quota.core;
    let Some(owner) = &quota.redis_owner else { return Ok(0) };
    settle_doubts(quota, owner).await?;
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
        let outcomes: Vec<(OutboxLine, Delivered)> = futures::stream::iter(lines)
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
                Delivered::Yes => done.push(line.id),
                Delivered::Not(why) => late.push((line, why)),
            }
        }
        arrived += done.len() as u64;
        core.catalog.outbox_delivered(done).await?;
        for (line, why) in late {
            let delay = LATER.delay_ms(line.attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            core.catalog.delay_outbox(vec![line.id], &why, until).await?;
        }
    }
    Ok(arrived)
}

async fn deliver(quota: &Quota, owner: &RedisQuotaOwner, line: &OutboxLine) -> Delivered {
    let OutboxPayload::Refund { bytes, epoch } = line.payload else {
        return Delivered::Not("no refund".into());
    };
    if owner.is_away() {
        return Delivered::Not("Redis is away".into());
    }
    let seen = owner.tenant(&line.tenant).counts();
    let why = match owner.redis.refund(&line.tenant, &line.id, bytes, epoch).await {
        Ok(Refunded::Done { remembered }) if remembered <= REMEMBERED_MAX => return Delivered::Yes,
        Ok(Refunded::Done { .. }) => {
            // What it forgets then is older than what it counts from.
            let _ = count::anew(&quota.quota_context(), owner, &line.tenant, seen, Why::Full).await;
            return Delivered::Yes;
        }
        Ok(Refunded::Later) => {
            // The load may be on its way, or have died with whoever was to bring it.
            if line.attempts > 0 {
                let _ = count::anew(&quota.quota_context(), owner, &line.tenant, seen, Why::Moved).await;
            }
            "Redis counts from an older epoch".to_owned()
        }
        // The sum that it counts from then has this refund in it, and the line goes with the older epoch.
        Ok(Refunded::Reload) => {
            match count::anew(&quota.quota_context(), owner, &line.tenant, seen, Why::Lost).await {
                Ok(_) => "Redis had lost count".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        Err(error) => {
            owner.lost(&error);
            error.to_string()
        }
    };
    Delivered::Not(why)
}

/// Whether a commit happened whose answer was lost, the catalog knows.
async fn settle_doubts(quota: &Quota, owner: &RedisQuotaOwner) -> Result<(), CatalogError> {
    if owner.is_away() {
        return Ok(());
    }
    let doubtful = std::mem::take(&mut *lock(&owner.doubtful));
    let mut outcome = Ok(());
    for name in doubtful {
        let seen = owner.tenant(&name).counts();
        match count::anew(&quota.quota_context(), owner, &name, seen, Why::Doubt).await {
            Ok(counted) if counted.is_loaded => {}
            // One that has left Redis is counted when it comes back.
            Ok(_) if !owner.is_away() => {}
            Ok(_) => owner.doubt(&name),
            Err(error) => {
                owner.doubt(&name);
                outcome = Err(error);
            }
        }
    }
    outcome
}
