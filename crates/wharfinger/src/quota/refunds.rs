//! Brings refunds to Redis: lines of the outbox, each applied once however often it is delivered.

use futures::StreamExt as _;
use wharfinger_catalog::{CatalogError, Destination, Outbound, OutboxLine};
use wharfinger_engines::redis_quota::Refunded;
use wharfinger_lifecycle::retry::Backoff;

use super::count::{self, Why};
use super::{RedisGate, lock};
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
    let Some(gate) = &quota.redis_gate else { return Ok(0) };
    settle_doubts(quota, gate).await?;
    let mut arrived = 0;
    while !gate.is_away() {
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
                let delivered = deliver(quota, gate, &line).await;
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
        core.catalog.outbox_arrived(done).await?;
        for (line, why) in late {
            let delay = LATER.delay_ms(line.attempts + 1, rand::random());
            let until = core.clock.now().saturating_add(i64::try_from(delay).unwrap_or(i64::MAX / 4));
            core.catalog.put_off_outbox(vec![line.id], &why, until).await?;
        }
    }
    Ok(arrived)
}

async fn deliver(quota: &Quota, gate: &RedisGate, line: &OutboxLine) -> Delivered {
    let Outbound::Refund { bytes, epoch } = line.what else {
        return Delivered::Not("no refund".into());
    };
    if gate.is_away() {
        return Delivered::Not("Redis is away".into());
    }
    let seen = gate.tenant(&line.tenant).counts();
    let why = match gate.redis.refund(&line.tenant, &line.id, bytes, epoch).await {
        Ok(Refunded::Done { remembered }) if remembered <= REMEMBERED_MAX => return Delivered::Yes,
        Ok(Refunded::Done { .. }) => {
            // What it forgets then is older than what it counts from.
            let _ = count::anew(&quota.ledger(), gate, &line.tenant, seen, Why::Full).await;
            return Delivered::Yes;
        }
        Ok(Refunded::Later) => {
            // The load may be on its way, or have died with whoever was to bring it.
            if line.attempts > 0 {
                let _ = count::anew(&quota.ledger(), gate, &line.tenant, seen, Why::Moved).await;
            }
            "Redis counts from an older epoch".to_owned()
        }
        // The sum that it counts from then has this refund in it, and the line goes with the older epoch.
        Ok(Refunded::Reload) => match count::anew(&quota.ledger(), gate, &line.tenant, seen, Why::Lost).await
        {
            Ok(_) => "Redis had lost count".to_owned(),
            Err(error) => error.to_string(),
        },
        Err(error) => {
            gate.lost(&error);
            error.to_string()
        }
    };
    Delivered::Not(why)
}

/// Whether a commit happened whose answer was lost, the catalog knows.
async fn settle_doubts(quota: &Quota, gate: &RedisGate) -> Result<(), CatalogError> {
    if gate.is_away() {
        return Ok(());
    }
    let doubtful = std::mem::take(&mut *lock(&gate.doubtful));
    let mut outcome = Ok(());
    for name in doubtful {
        let seen = gate.tenant(&name).counts();
        match count::anew(&quota.ledger(), gate, &name, seen, Why::Doubt).await {
            Ok(counted) if counted.is_loaded => {}
            // One that has left Redis is counted when it comes back.
            Ok(_) if !gate.is_away() => {}
            Ok(_) => gate.doubt(&name),
            Err(error) => {
                gate.doubt(&name);
                outcome = Err(error);
            }
        }
    }
    outcome
}
