//! Registers files with the owner of the tenant's quota. With Redis: first a reservation there, then the transaction that
//! inserts the files checks that the reservation is still valid. If no file was inserted, the reservation is released.

use std::time::Duration;

use uuid::Uuid;
use wharfinger_catalog::{Admission, CatalogError, QuotaOwner, RegisterOutcome, Registration, fresh_id};
use wharfinger_engines::redis_quota::Reservation;
use wharfinger_lifecycle::retry::Backoff;

use super::rebuild::{self, RebuildReason};
use super::{RedisQuotaOwner, Tenant};
use crate::core::Core;
use crate::core::VerbError;
use crate::quota::Quota;

/// If the quota's owner changes between two steps this often, the database admits the files.
const ROUNDS_MAX: u32 = 8;
const REPEAT_PAUSES_MS: [u64; 4] = [0, 20, 60, 150];
const ROUND_PAUSE: Backoff = Backoff { base_ms: 5, cap_ms: 100 };

pub async fn register(quota: &Quota, wanted: Registration) -> Result<RegisterOutcome, VerbError> {
    let core = &quota.core;
    if let Err(refusal) = quota.file_counts.admit(core, &wanted.tenant, wanted.files.len() as u64).await {
        // A repeated request with the same key gets the first answer again.
        return known_answer(core, &wanted).await?.ok_or(refusal);
    }
    let Some(owner) = quota.redis_owner.as_ref().filter(|_| wanted.needs_quota()) else {
        return register_without_redis(quota, wanted).await;
    };
    if let Some(answer) = known_answer(core, &wanted).await? {
        return Ok(answer);
    }
    let tenant = owner.tenant(&wanted.tenant);
    for round in 1..=ROUNDS_MAX {
        let answer = if owner.is_away() || tenant.is_at_database(core.clock.now()) {
            register_by_database(quota, owner, &tenant, &wanted).await?
        } else {
            register_by_redis(quota, owner, &tenant, &wanted).await?
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
        if round > 2 {
            tokio::time::sleep(Duration::from_millis(ROUND_PAUSE.delay_ms(round, rand::random()))).await;
        }
    }
    if owner.fails_closed {
        return Err(VerbError::Unavailable("Redis quota state is unstable".into()));
    }
    register_without_redis(quota, wanted).await
}

/// The database admits the files, even if Redis owns the quota now.
async fn register_without_redis(quota: &Quota, wanted: Registration) -> Result<RegisterOutcome, VerbError> {
    for _ in 0..ROUNDS_MAX {
        let admission = Admission::Database;
        match quota.core.catalog.register(Registration { admission, ..wanted.clone() }).await? {
            RegisterOutcome::QuotaOwnerChanged(_) => {
                rebuild::move_to_database(&quota.quota_context(), quota.redis_owner.as_ref(), &wanted.tenant)
                    .await?
            }
            answer => return Ok(answer),
        };
    }
    Err(VerbError::Unavailable("the owner of the quota changes too often".into()))
}

/// None: the quota's owner has changed, try again.
async fn register_by_database(
    quota: &Quota,
    owner: &RedisQuotaOwner,
    tenant: &Tenant,
    wanted: &Registration,
) -> Result<Option<RegisterOutcome>, VerbError> {
    if owner.is_away() && owner.fails_closed {
        return Err(VerbError::Unavailable(
            "Redis does not answer, so uploads are refused (QUOTA_WITHOUT_REDIS=refuse)".into(),
        ));
    }
    let admission = Admission::Database;
    match quota.core.catalog.register(Registration { admission, ..wanted.clone() }).await? {
        RegisterOutcome::QuotaOwnerChanged(moved) => {
            tenant.update(&moved);
            if owner.is_away() {
                rebuild::move_to_database(&quota.quota_context(), quota.redis_owner.as_ref(), &wanted.tenant)
                    .await?;
            }
            Ok(None)
        }
        answer => Ok(Some(answer)),
    }
}

/// None: the quota's owner or the state of Redis has changed, try again.
async fn register_by_redis(
    quota: &Quota,
    owner: &RedisQuotaOwner,
    tenant: &Tenant,
    wanted: &Registration,
) -> Result<Option<RegisterOutcome>, VerbError> {
    let core = &quota.core;
    let name = &wanted.tenant;
    let rebuilds_seen = tenant.rebuilds();
    let attempt = fresh_id(core.clock.now());
    match owner.redis.reserve(name, attempt, wanted.bytes(), wanted.default_limit_bytes).await {
        Err(error) => {
            owner.mark_away(&error);
            Ok(None)
        }
        Ok(Reservation::Reload) => {
            rebuild::rebuild(&quota.quota_context(), owner, name, rebuilds_seen, RebuildReason::Lost).await?;
            Ok(None)
        }
        Ok(Reservation::Full { used_bytes, limit_bytes }) => {
            if is_doubtful(core, tenant, wanted, limit_bytes).await? {
                rebuild::rebuild(&quota.quota_context(), owner, name, rebuilds_seen, RebuildReason::Doubt)
                    .await?;
                return Ok(None);
            }
            // The same request, sent twice at once, may have taken the quota.
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
                    tenant.update(&moved);
                    if moved.owner == QuotaOwner::Redis {
                        rebuild::rebuild(
                            &quota.quota_context(),
                            owner,
                            name,
                            rebuilds_seen,
                            RebuildReason::Moved,
                        )
                        .await?;
                    } else if !tenant.is_at_database(core.clock.now()) {
                        rebuild::rebuild(
                            &quota.quota_context(),
                            owner,
                            name,
                            rebuilds_seen,
                            RebuildReason::Back,
                        )
                        .await?;
                    }
                    Ok(None)
                }
                Ok(answer) => {
                    release(owner, wanted, attempt).await;
                    Ok(Some(answer))
                }
                // The files may be in the catalog, so the reservation stays. The next rebuild decides.
                Err(error @ CatalogError::Unknown(_)) => {
                    owner.mark_doubtful(name);
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

/// The answer to an earlier request with the same Idempotency-Key.
async fn known_answer(core: &Core, wanted: &Registration) -> Result<Option<RegisterOutcome>, VerbError> {
    let Some(idempotency_key) = &wanted.idempotency_key else { return Ok(None) };
    let owner = (&wanted.tenant, &wanted.user);
    Ok(core.catalog.key_answer(owner, idempotency_key, wanted.now).await?)
}

/// Tries a few times: the same request may be in progress and have its answer in a moment.
async fn key_answer(core: &Core, wanted: &Registration) -> Result<Option<RegisterOutcome>, VerbError> {
    if wanted.idempotency_key.is_none() {
        return Ok(None);
    }
    for pause_ms in REPEAT_PAUSES_MS {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        if let Some(answer) = known_answer(core, wanted).await? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// Releases the reservation of files that are certainly not in the catalog.
async fn release(owner: &RedisQuotaOwner, wanted: &Registration, attempt: Uuid) {
    if let Err(error) = owner.redis.release(&wanted.tenant, attempt).await {
        owner.mark_doubtful(&wanted.tenant);
        owner.mark_away(&error);
    }
}

/// Redis may still count reservations of processes that died. If the catalog has enough quota, a rebuild is needed.
async fn is_doubtful(
    core: &Core,
    tenant: &Tenant,
    wanted: &Registration,
    limit_bytes: u64,
) -> Result<bool, VerbError> {
    let quota = core.catalog.quota(&wanted.tenant, wanted.default_limit_bytes).await?;
    let fits = quota.used_bytes.saturating_add(wanted.bytes()) <= quota.limit_bytes;
    // The limit was changed, and Redis has the old one.
    let is_outdated = quota.limit_bytes != limit_bytes;
    Ok(is_outdated || (fits && tenant.may_rebuild_for_doubt(core.clock.now())))
}
