//! The rules of tenants: permitted types, file sizes and request rates. The settings have the defaults, and operators set
//! rules of single tenants, which are read from the catalog and cached for a few seconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use wharfinger_catalog::CatalogError;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::tenant_policy::{EffectivePolicy, TenantPolicy, TenantPolicyChange, TokenBucket};

use crate::core::audit::AuditedAction;
use crate::core::{Caller, Core};

/// Another process sees a change after at most this time.
pub const POLICY_VALID_MS: i64 = 5_000;
/// How long a request waits for the rules of its tenant's rate. Without an answer, the last known rules apply: events are
/// accepted even while the catalog is down.
const RATE_WAIT: Duration = Duration::from_millis(500);
/// Cached tenants. Beyond it the cache is cleared.
const TENANTS_MAX: usize = 10_000;

pub struct Rules {
    core: Arc<Core>,
    defaults: EffectivePolicy,
    known: Mutex<HashMap<TenantId, KnownPolicy>>,
    /// Raised by each change in this process. A read that began before it is not cached.
    changes: AtomicU64,
    buckets: Mutex<HashMap<TenantId, TokenBucket>>,
}

#[derive(Clone)]
struct KnownPolicy {
    /// None: it was never read.
    policy: Option<Arc<TenantPolicy>>,
    read_at: UnixMs,
    /// When the last read for a request rate began, or failed.
    tried_at: UnixMs,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether something of that time is still valid. After a change of the clock it is not.
fn is_recent(at: UnixMs, now: UnixMs) -> bool {
    (0..POLICY_VALID_MS).contains(&now.saturating_sub(at))
}

impl Rules {
    pub fn new(core: Arc<Core>) -> Rules {
        let settings = &core.settings;
        let defaults = EffectivePolicy {
            allowed_types: settings.upload_allowed_types.clone(),
            file_size_bytes_max: settings.file_size_bytes_max,
            requests_per_second: settings.tenant_requests_per_second,
        };
        Rules {
            core,
            defaults,
            known: Mutex::default(),
            changes: AtomicU64::default(),
            buckets: Mutex::default(),
        }
    }

    pub fn defaults(&self) -> &EffectivePolicy {
        &self.defaults
    }

    /// What applies to the tenant's uploads.
    pub async fn of_tenant(&self, tenant: &TenantId) -> Result<EffectivePolicy, CatalogError> {
        let now = self.core.clock.now();
        let cached = lock(&self.known).get(tenant).filter(|known| is_recent(known.read_at, now)).cloned();
        let policy = match cached.and_then(|known| known.policy) {
            Some(policy) => policy,
            None => self.read(tenant, now).await?,
        };
        Ok(policy.over(&self.defaults))
    }

    /// Changes the stored rules of a tenant. Returns all of them.
    pub async fn change(
        &self,
        caller: &Caller,
        tenant: &TenantId,
        change: TenantPolicyChange,
    ) -> Result<TenantPolicy, CatalogError> {
        let now = self.core.clock.now();
        let action = AuditedAction {
            name: "policy-set",
            tenant: Some(tenant),
            subject: tenant.to_string(),
            detail: json!({
                "allowedTypes": change.allowed_types.as_ref().map(|types| types.as_ref().map(ToString::to_string)),
                "maxFileSizeBytes": change.file_size_bytes_max,
                "requestsPerSecond": change.requests_per_second,
            }),
        };
        let audited = self.core.catalog.audited(action.by(caller, now));
        let changes = self.changes.load(Ordering::SeqCst);
        let changed = audited.set_tenant_policy(tenant, change, now).await;
        let mut known = lock(&self.known);
        let is_alone = self.changes.fetch_add(1, Ordering::SeqCst) == changes;
        let entry = entry(&mut known, tenant);
        match &changed {
            Ok(policy) if is_alone => {
                entry.policy = Some(Arc::new(policy.clone()));
                entry.read_at = now;
            }
            // A concurrent change may be later, and after a lost answer the change may be there or not: it is read again.
            _ => (entry.read_at, entry.tried_at) = (NEVER, NEVER),
        }
        drop(known);
        changed
    }

    /// Takes one request of the tenant's rate. `Err`: it has none left; the client may try again after these seconds.
    pub async fn admit_request(&self, tenant: &TenantId) -> Result<(), u32> {
        let per_second = self.requests_per_second(tenant).await;
        if per_second == 0 {
            return Ok(());
        }
        let now = self.core.clock.now();
        let mut buckets = lock(&self.buckets);
        if buckets.len() >= TENANTS_MAX && !buckets.contains_key(tenant) {
            // A tenant gets a full bucket again. That matters only to those among 10,000 that are at their limit.
            buckets.clear();
        }
        buckets
            .entry(tenant.clone())
            .or_insert_with(|| TokenBucket::full(per_second, now))
            .take(per_second, now)
    }

    /// Never fails, and never waits for longer than RATE_WAIT. While the catalog does not answer, requests of a tenant wait
    /// once in POLICY_VALID_MS.
    async fn requests_per_second(&self, tenant: &TenantId) -> u32 {
        let now = self.core.clock.now();
        let last = {
            let mut known = lock(&self.known);
            let entry = entry(&mut known, tenant);
            let is_known = is_recent(entry.read_at, now) || is_recent(entry.tried_at, now);
            // Other requests use the last known rules meanwhile. Without any, they wait too: the default may be far lower than
            // the tenant's own rate (`a_tenants_first_requests_have_its_own_rate`).
            if !is_known && entry.policy.is_some() {
                entry.tried_at = now;
            }
            (is_known, entry.policy.clone())
        };
        let policy = match last {
            (true, policy) => policy,
            (false, policy) => match tokio::time::timeout(RATE_WAIT, self.read(tenant, now)).await {
                Ok(Ok(policy)) => Some(policy),
                Ok(Err(_)) | Err(_) => {
                    entry(&mut lock(&self.known), tenant).tried_at = now;
                    policy
                }
            },
        };
        let own = policy.and_then(|policy| policy.requests_per_second);
        own.unwrap_or(self.defaults.requests_per_second)
    }

    async fn read(&self, tenant: &TenantId, now: UnixMs) -> Result<Arc<TenantPolicy>, CatalogError> {
        let changes = self.changes.load(Ordering::SeqCst);
        let policy = Arc::new(self.core.catalog.tenant_policy(tenant).await?);
        let mut known = lock(&self.known);
        if self.changes.load(Ordering::SeqCst) == changes {
            let entry = entry(&mut known, tenant);
            entry.policy = Some(policy.clone());
            entry.read_at = now;
        }
        Ok(policy)
    }
}

const NEVER: UnixMs = UnixMs::MIN;

fn entry<'k>(known: &'k mut HashMap<TenantId, KnownPolicy>, tenant: &TenantId) -> &'k mut KnownPolicy {
    if known.len() >= TENANTS_MAX && !known.contains_key(tenant) {
        known.clear();
    }
    known.entry(tenant.clone()).or_insert(KnownPolicy { policy: None, read_at: NEVER, tried_at: NEVER })
}
