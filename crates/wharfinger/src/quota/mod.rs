//! Admission of uploads by quota: by the tenant's row in the database, or by Redis in front of it. Redis may lose data or
//! be restored from a backup at any moment. The catalog decides whether a reservation in Redis is still valid.

mod file_limit;
pub mod rebuild;
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

/// A quota that was moved to the database stays there for at least this long. Otherwise processes that disagree whether
/// Redis answers would move it back and forth.
const AWAY_MS_MIN: i64 = 10_000;
/// A refusal by Redis that the catalog does not confirm causes a rebuild, but not more often than this.
const DOUBT_MS_MIN: i64 = 10_000;
/// Tenants whose state is cached.
const TENANTS_MAX: usize = 10_000;
const TENANTS_PER_PAGE: usize = 500;

pub struct Quota {
    pub core: Arc<Core>,
    /// Redis in front of the tenants' quotas, if it is configured.
    pub redis_owner: Option<RedisQuotaOwner>,
    /// For the limit on files per tenant.
    pub file_counts: FileCounts,
}

impl Quota {
    pub async fn open(core: Arc<Core>, faults: &Faults) -> Result<Quota, OpenError> {
        let redis_owner = RedisQuotaOwner::open(&core.settings, &core.catalog, faults).await?;
        Ok(Quota { redis_owner, ..Quota::without_redis(core) })
    }

    /// The database alone admits uploads.
    pub fn without_redis(core: Arc<Core>) -> Quota {
        Quota { core, redis_owner: None, file_counts: FileCounts::default() }
    }

    pub fn quota_context(&self) -> QuotaContext<'_> {
        let Core { catalog, clock, settings, .. } = &*self.core;
        QuotaContext { catalog, clock, default_limit_bytes: settings.default_quota_bytes }
    }
}

/// Redis as the owner of quotas, and what this process knows of it.
pub struct RedisQuotaOwner {
    pub redis: RedisQuota,
    /// While Redis does not answer, all uploads are refused. Otherwise the database admits them.
    pub fails_closed: bool,
    away: AtomicBool,
    tenants: Mutex<BTreeMap<TenantId, Arc<Tenant>>>,
    /// Reservations whose files are in the catalog. Redis can forget their ids.
    settled: Mutex<BTreeMap<TenantId, Vec<Uuid>>>,
    settle_wakeup: Notify,
    /// Tenants whose counter in Redis may be too high.
    doubtful: Mutex<BTreeSet<TenantId>>,
}

/// What this process knows of a tenant.
#[derive(Default)]
struct Tenant {
    /// The number of rebuilds by this process. Locked during a rebuild.
    rebuilds: tokio::sync::Mutex<u64>,
    state: Mutex<TenantState>,
}

#[derive(Default)]
struct TenantState {
    rebuilds: u64,
    at_database_until: UnixMs,
    doubted_at: Option<UnixMs>,
}

impl RedisQuotaOwner {
    /// If Redis does not answer, the program starts without it, unless `QUOTA_WITHOUT_REDIS=refuse`.
    pub async fn open(
        settings: &Settings,
        catalog: &Catalog,
        faults: &Faults,
    ) -> Result<Option<RedisQuotaOwner>, OpenError> {
        let Some(url) = &settings.quota_redis else { return Ok(None) };
        let catalog_id = catalog.fact("catalog_id").await?.unwrap_or_default();
        let redis = RedisQuota::new(url, catalog_id, faults.clone())
            .map_err(|error| OpenError::Quota(error.to_string()))?
            .with_prefix(&settings.redis_prefix)
            .with_timeout(Duration::from_millis(settings.quota_redis_timeout_ms));
        let owner = RedisQuotaOwner::new(redis, settings.quota_fails_closed);
        match owner.redis.check().await {
            Ok(_) => {}
            Err(error @ QuotaError::Unavailable(_)) if !owner.fails_closed => owner.mark_away(&error),
            Err(error) => return Err(OpenError::Quota(format!("{}: {error}", owner.redis.address()))),
        }
        Ok(Some(owner))
    }

    fn new(redis: RedisQuota, fails_closed: bool) -> RedisQuotaOwner {
        // Alerts need the gauge before the first outage.
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

    /// Until Redis answers again, no new call waits for it.
    pub fn mark_away(&self, error: &QuotaError) {
        if !self.away.swap(true, Ordering::SeqCst) {
            metric::redis_away(true);
            let effect = match self.fails_closed {
                true => "Redis does not answer, all uploads are refused",
                false => "Redis does not answer, the database admits uploads",
            };
            tracing::error!(backend = "quota", address = %self.redis.address(), error = %error, "{effect}");
        }
    }

    /// If Redis did not answer before, checks whether it answers again.
    pub async fn check_if_back(&self) {
        if self.is_away() && self.redis.check().await.is_ok() {
            self.away.store(false, Ordering::SeqCst);
            metric::redis_away(false);
            tracing::info!(backend = "quota", address = %self.redis.address(), "Redis answers again");
        }
    }

    fn tenant(&self, tenant: &TenantId) -> Arc<Tenant> {
        let mut tenants = lock(&self.tenants);
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            // Entries in use stay.
            tenants.retain(|_, tenant| Arc::strong_count(tenant) > 1);
        }
        tenants.entry(tenant.clone()).or_default().clone()
    }

    fn settle(&self, tenant: &TenantId, attempt: Uuid) {
        lock(&self.settled).entry(tenant.clone()).or_default().push(attempt);
        self.settle_wakeup.notify_one();
    }

    /// Tells Redis in batches which reservations it can forget. A lost message only costs memory, until the next rebuild.
    pub async fn settle_gathered(&self) {
        self.settle_wakeup.notified().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gathered = std::mem::take(&mut *lock(&self.settled));
        for (tenant, attempts) in gathered {
            if self.is_away() {
                return;
            }
            if let Err(error) = self.redis.settle(&tenant, &attempts).await {
                self.mark_away(&error);
            }
        }
    }

    fn mark_doubtful(&self, tenant: &TenantId) {
        lock(&self.doubtful).insert(tenant.clone());
    }
}

impl Tenant {
    fn is_at_database(&self, now: UnixMs) -> bool {
        lock(&self.state).at_database_until > now
    }

    /// Takes over the quota's owner from the catalog.
    fn update(&self, state: &QuotaState) {
        lock(&self.state).at_database_until = match state.owner {
            QuotaOwner::Database if state.epoch > 0 => state.since.saturating_add(AWAY_MS_MIN),
            QuotaOwner::Database | QuotaOwner::Redis => 0,
        };
    }

    /// Whether a doubtful refusal may cause a rebuild now.
    fn may_rebuild_for_doubt(&self, now: UnixMs) -> bool {
        let mut state = lock(&self.state);
        let may = state.doubted_at.is_none_or(|at| now >= at.saturating_add(DOUBT_MS_MIN));
        if may {
            state.doubted_at = Some(now);
        }
        may
    }

    fn rebuilds(&self) -> u64 {
        lock(&self.state).rebuilds
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a change of a quota's owner needs.
#[derive(Clone, Copy)]
pub struct QuotaContext<'l> {
    pub catalog: &'l Catalog,
    pub clock: &'l Clock,
    pub default_limit_bytes: u64,
}

/// Moves all quotas from Redis to the database, for a process without Redis.
pub async fn move_all_to_database(quota_context: &QuotaContext<'_>) -> Result<(), CatalogError> {
    let mut after = String::new();
    loop {
        let tenants = quota_context.catalog.tenants_in_redis(&after, TENANTS_PER_PAGE).await?;
        let Some(last) = tenants.last() else { return Ok(()) };
        after = last.to_string();
        for tenant in &tenants {
            rebuild::move_to_database(quota_context, None, tenant).await?;
        }
    }
}
