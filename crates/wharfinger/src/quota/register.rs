//! Registers files with whoever lets their tenant's uploads in. Redis counts first and the catalog says, in the
//! transaction that makes the files, whether that count still holds; what did not come to be is taken back.

use std::time::Duration;

use uuid::Uuid;
use wharfinger_catalog::{Admission, CatalogError, QuotaOwner, RegisterOutcome, Registration, fresh_id};
use wharfinger_engines::redis_quota::Reservation;
use wharfinger_lifecycle::retry::Backoff;

use super::count::{self, Why};
use super::{RedisQuotaOwner, Tenant};
use crate::core::Core;
use crate::core::VerbError;
use crate::quota::Quota;

/// After so many rounds in which the gate moved between two steps, the catalog lets in by itself.
const ROUNDS_MAX: u32 = 8;
const TWIN_PAUSES_MS: [u64; 4] = [0, 20, 60, 150];
const ROUND_PAUSE: Backoff = Backoff { base_ms: 5, cap_ms: 100 };

pub async fn register(quota: &Quota, wanted: Registration) -> Result<RegisterOutcome, VerbError> {
    let core = &quota.core;
    if let Err(refusal) = quota.file_counts.admit(core, &wanted.tenant, wanted.files.len() as u64).await {
        // Who asks again for what was made before is answered as before.
        return known_answer(core, &wanted).await?.ok_or(refusal);
    }
    let Some(owner) = quota.redis_owner.as_ref().filter(|_| wanted.needs_quota()) else {
        return without_redis(quota, wanted).await;
    };
    if let Some(answer) = known_answer(core, &wanted).await? {
        return Ok(answer);
    }
    let tenant = owner.tenant(&wanted.tenant);
    for round in 1..=ROUNDS_MAX {
        let answer = if owner.is_away() || tenant.is_at_database(core.clock.now()) {
            by_database(quota, owner, &tenant, &wanted).await?
        } else {
            by_redis(quota, owner, &tenant, &wanted).await?
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
        if round > 2 {
            tokio::time::sleep(Duration::from_millis(ROUND_PAUSE.delay_ms(round, rand::random()))).await;
        }
    }
    if owner.fails_closed {
        return Err(VerbError::Unavailable("Redis loses count as fast as it is told".into()));
    }
    without_redis(quota, wanted).await
}

/// By the catalog, wherever the gate is.
async fn without_redis(quota: &Quota, wanted: Registration) -> Result<RegisterOutcome, VerbError> {
    for _ in 0..ROUNDS_MAX {
        let admission = Admission::Database;
        match quota.core.catalog.register(Registration { admission, ..wanted.clone() }).await? {
            RegisterOutcome::QuotaOwnerChanged(_) => {
                count::leave(&quota.quota_context(), quota.redis_owner.as_ref(), &wanted.tenant).await?
            }
            answer => return Ok(answer),
        };
    }
    Err(VerbError::Unavailable("the owner of the quota changes too often, try again".into()))
}

/// None: look again where the gate is.
async fn by_database(
    quota: &Quota,
    owner: &RedisQuotaOwner,
    tenant: &Tenant,
    wanted: &Registration,
) -> Result<Option<RegisterOutcome>, VerbError> {
    if owner.is_away() && owner.fails_closed {
        return Err(VerbError::Unavailable("Redis, which lets uploads in, is away".into()));
    }
    let admission = Admission::Database;
    match quota.core.catalog.register(Registration { admission, ..wanted.clone() }).await? {
        RegisterOutcome::QuotaOwnerChanged(moved) => {
            tenant.learn(&moved);
            if owner.is_away() {
                count::leave(&quota.quota_context(), quota.redis_owner.as_ref(), &wanted.tenant).await?;
            }
            Ok(None)
        }
        answer => Ok(Some(answer)),
    }
}

async fn by_redis(
    quota: &Quota,
    owner: &RedisQuotaOwner,
    tenant: &Tenant,
    wanted: &Registration,
) -> Result<Option<RegisterOutcome>, VerbError> {
    let core = &quota.core;
    let name = &wanted.tenant;
    let seen = tenant.counts();
    let attempt = fresh_id(core.clock.now());
    match owner.redis.reserve(name, attempt, wanted.bytes(), wanted.default_limit_bytes).await {
        Err(error) => {
            owner.lost(&error);
            Ok(None)
        }
        Ok(Reservation::Reload) => {
            count::anew(&quota.quota_context(), owner, name, seen, Why::Lost).await?;
            Ok(None)
        }
        Ok(Reservation::Full { used_bytes, limit_bytes }) => {
            if is_doubtful(core, tenant, wanted, limit_bytes).await? {
                count::anew(&quota.quota_context(), owner, name, seen, Why::Doubt).await?;
                return Ok(None);
            }
            // What took the room may be this very request, sent twice.
            match key_answer(core, wanted).await? {
                None => Ok(Some(RegisterOutcome::QuotaExceeded { used_bytes, limit_bytes })),
                answer => Ok(answer),
            }
        }
        Ok(Reservation::Counted { epoch, limit_bytes }) => {
            let admission = Admission::Redis { epoch, limit_bytes };
            match core.catalog.register(Registration { admission, ..wanted.clone() }).await {
                Ok(RegisterOutcome::Created) => {
                    owner.settle(name, attempt);
                    Ok(Some(RegisterOutcome::Created))
                }
                Ok(RegisterOutcome::QuotaOwnerChanged(moved)) => {
                    release(owner, wanted, attempt).await;
                    tenant.learn(&moved);
                    if moved.owner == QuotaOwner::Redis {
                        count::anew(&quota.quota_context(), owner, name, seen, Why::Moved).await?;
                    } else if !tenant.is_at_database(core.clock.now()) {
                        count::anew(&quota.quota_context(), owner, name, seen, Why::Back).await?;
                    }
                    Ok(None)
                }
                Ok(answer) => {
                    release(owner, wanted, attempt).await;
                    Ok(Some(answer))
                }
                // It may be in the catalog, so it stays counted; whether it is shows when Redis counts anew.
                Err(error @ CatalogError::Unknown(_)) => {
                    owner.doubt(name);
                    Err(error.into())
                }
                Err(error) => {
                    release(owner, wanted, attempt).await;
                    Err(error.into())
                }
            }
        }
    }
}

/// What its key has made already.
async fn known_answer(core: &Core, wanted: &Registration) -> Result<Option<RegisterOutcome>, VerbError> {
    let Some(idempotency_key) = &wanted.idempotency_key else { return Ok(None) };
    let owner = (&wanted.tenant, &wanted.user);
    Ok(core.catalog.key_answer(owner, idempotency_key, wanted.now).await?)
}

/// Asks a few times: a twin that is under way has its answer in a moment.
async fn key_answer(core: &Core, wanted: &Registration) -> Result<Option<RegisterOutcome>, VerbError> {
    if wanted.idempotency_key.is_none() {
        return Ok(None);
    }
    for pause_ms in TWIN_PAUSES_MS {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        if let Some(answer) = known_answer(core, wanted).await? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// What was counted for files that are surely not in the catalog.
async fn release(owner: &RedisQuotaOwner, wanted: &Registration, attempt: Uuid) {
    if let Err(error) = owner.redis.release(&wanted.tenant, attempt).await {
        owner.doubt(&wanted.tenant);
        owner.lost(&error);
    }
}

/// Redis may count reservations of those who died with them. What the catalog knows of decides whether to count anew.
async fn is_doubtful(
    core: &Core,
    tenant: &Tenant,
    wanted: &Registration,
    limit_bytes: u64,
) -> Result<bool, VerbError> {
    let quota = core.catalog.quota(&wanted.tenant, wanted.default_limit_bytes).await?;
    let fits = quota.used_bytes.saturating_add(wanted.bytes()) <= quota.limit_bytes;
    // The limit was set anew, and Redis has not heard of it.
    let is_outdated = quota.limit_bytes != limit_bytes;
    Ok(is_outdated || (fits && tenant.may_doubt(core.clock.now())))
}
