//! Letting uploads in: by the tenant's row in the catalog, or by Redis in front of it. Redis may forget, lie low or
//! come back from a backup at any moment; whether what it said still counts is decided by the catalog alone.

pub mod count;
mod file_limit;
pub mod refunds;
mod register;
pub mod sync;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, QuotaOwner, QuotaState};
use wharfinger_engines::redis_quota::{QuotaError, RedisQuota};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;

pub use register::register;

use crate::clock::Clock;
use crate::config::Settings;
use crate::core::{Core, OpenError};
use crate::telemetry::metric;
use file_limit::FileCounts;

/// A tenant that left Redis stays away from it this long: processes that do not agree on whether it answers must
/// not pass the gate to and fro.
const AWAY_MS_MIN: i64 = 10_000;
/// A refusal that the catalog does not bear out lets Redis count anew, but not more often than this.
const DOUBT_MS_MIN: i64 = 10_000;
/// Tenants that are remembered; what is forgotten is found out again.
const TENANTS_MAX: usize = 10_000;
const TENANTS_PER_PAGE: usize = 500;

/// What lets uploads in.
pub struct Quota {
    pub core: Arc<Core>,
    /// Redis in front of the tenants' quotas, where there is one.
    pub redis_owner: Option<RedisQuotaOwner>,
    /// How many files each tenant has, for the limit on that.
    pub file_counts: FileCounts,
}

impl Quota {
    pub async fn open(core: Arc<Core>, faults: &Faults) -> Result<Quota, OpenError> {
        let redis_owner = RedisQuotaOwner::open(&core.settings, &core.catalog, faults).await?;
        Ok(Quota { redis_owner, ..Quota::without_redis(core) })
    }

    /// By the catalog alone.
    pub fn without_redis(core: Arc<Core>) -> Quota {
        Quota { core, redis_owner: None, file_counts: FileCounts::default() }
    }

    /// What it takes to move the gate of a tenant's quota.
    pub fn quota_context(&self) -> QuotaContext<'_> {
        let Core { catalog, clock, settings, .. } = &*self.core;
        QuotaContext { catalog, clock, default_limit_bytes: settings.default_quota_bytes }
    }
}

/// Redis, as this process sees it.
pub struct RedisQuotaOwner {
    pub redis: RedisQuota,
    /// Without Redis nothing is let in, rather than by the catalog.
    pub fails_closed: bool,
    away: AtomicBool,
    tenants: Mutex<BTreeMap<TenantId, Arc<Tenant>>>,
    /// Tries whose files are in the catalog, which Redis need not remember singly.
    settled: Mutex<BTreeMap<TenantId, Vec<Uuid>>>,
    settle_wakeup: Notify,
    /// Tenants of which Redis may count too much.
    doubtful: Mutex<BTreeSet<TenantId>>,
}

/// What this process knows of a tenant.
#[derive(Default)]
struct Tenant {
    /// How often Redis was let count anew from here; held while that happens.
    counts: tokio::sync::Mutex<u64>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    counts: u64,
    at_database_until: UnixMs,
    doubted_at: Option<UnixMs>,
}

impl RedisQuotaOwner {
    /// A Redis that is away when the program starts is no reason not to start, unless nothing may be let in without it.
    pub async fn open(
        settings: &Settings,
        catalog: &Catalog,
        faults: &Faults,
    ) -> Result<Option<RedisQuotaOwner>, OpenError> {
        let Some(url) = &settings.quota_redis else { return Ok(None) };
        let catalog_id = catalog.fact("catalog_id").await?.unwrap_or_default();
        let redis = RedisQuota::new(url, catalog_id, faults.clone())
            .map_err(|error| OpenError::Quota(error.to_string()))?
            .with_patience(Duration::from_millis(settings.quota_redis_timeout_ms));
        let owner = RedisQuotaOwner::new(redis, settings.quota_fails_closed);
        match owner.redis.check().await {
            Ok(_) => {}
            Err(error @ QuotaError::Away(_)) if !owner.fails_closed => owner.lost(&error),
            Err(error) => return Err(OpenError::Quota(format!("{}: {error}", owner.redis.address()))),
        }
        Ok(Some(owner))
    }

    fn new(redis: RedisQuota, fails_closed: bool) -> RedisQuotaOwner {
        // A gauge that is not there says nothing to an alert.
        metric::redis_away(false);
        RedisQuotaOwner {
            redis,
            fails_closed,
            away: AtomicBool::new(false),
            tenants: Mutex::default(),
            settled: Mutex::default(),
            settle_wakeup: Notify::new(),
            doubtful: Mutex::default(),
        }
    }

    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::SeqCst)
    }

    /// Until it answers again nobody waits for it.
    pub fn lost(&self, error: &QuotaError) {
        if !self.away.swap(true, Ordering::SeqCst) {
            metric::redis_away(true);
            let instead = match self.fails_closed {
                true => "no upload is let in until it answers",
                false => "uploads go through the database until it answers",
            };
            tracing::error!(backend = "quota", address = %self.redis.address(), error = %error, "{instead}");
        }
    }

    /// Asks a Redis that was away whether it is back.
    pub async fn look_after(&self) {
        if self.is_away() && self.redis.check().await.is_ok() {
            self.away.store(false, Ordering::SeqCst);
            metric::redis_away(false);
            tracing::info!(backend = "quota", address = %self.redis.address(), "Redis answers again");
        }
    }

    fn tenant(&self, tenant: &TenantId) -> Arc<Tenant> {
        let mut tenants = lock(&self.tenants);
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            // Whoever is in the middle of something keeps its own.
            tenants.retain(|_, tenant| Arc::strong_count(tenant) > 1);
        }
        tenants.entry(tenant.clone()).or_default().clone()
    }

    fn settle(&self, tenant: &TenantId, attempt: Uuid) {
        lock(&self.settled).entry(tenant.clone()).or_default().push(attempt);
        self.settle_wakeup.notify_one();
    }

    /// Tells Redis of the tries that came to their end, some at a time. What it does not hear of it remembers until
    /// it counts anew: memory, nothing else.
    pub async fn settle_gathered(&self) {
        self.settle_wakeup.notified().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gathered = std::mem::take(&mut *lock(&self.settled));
        for (tenant, attempts) in gathered {
            if self.is_away() {
                return;
            }
            if let Err(error) = self.redis.settle(&tenant, &attempts).await {
                self.lost(&error);
            }
        }
    }

    fn doubt(&self, tenant: &TenantId) {
        lock(&self.doubtful).insert(tenant.clone());
    }
}

impl Tenant {
    fn is_at_database(&self, now: UnixMs) -> bool {
        lock(&self.known).at_database_until > now
    }

    /// The catalog has said where the gate is.
    fn learn(&self, state: &QuotaState) {
        lock(&self.known).at_database_until = match state.owner {
            QuotaOwner::Database if state.epoch > 0 => state.since.saturating_add(AWAY_MS_MIN),
            QuotaOwner::Database | QuotaOwner::Redis => 0,
        };
    }

    /// Whether a doubt about what Redis counts may be followed up now.
    fn may_doubt(&self, now: UnixMs) -> bool {
        let mut known = lock(&self.known);
        let may = known.doubted_at.is_none_or(|at| now >= at.saturating_add(DOUBT_MS_MIN));
        if may {
            known.doubted_at = Some(now);
        }
        may
    }

    fn counts(&self) -> u64 {
        lock(&self.known).counts
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What it takes to move a gate.
#[derive(Clone, Copy)]
pub struct QuotaContext<'l> {
    pub catalog: &'l Catalog,
    pub clock: &'l Clock,
    pub default_limit_bytes: u64,
}

/// A process that knows no Redis takes back what was given to it.
pub async fn take_back_from_redis(quota_context: &QuotaContext<'_>) -> Result<(), CatalogError> {
    let mut after = String::new();
    loop {
        let tenants = quota_context.catalog.tenants_in_redis(&after, TENANTS_PER_PAGE).await?;
        let Some(last) = tenants.last() else { return Ok(()) };
        after = last.to_string();
        for tenant in &tenants {
            count::leave(quota_context, None, tenant).await?;
        }
    }
}
