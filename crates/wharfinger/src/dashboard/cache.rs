//! Caches the dashboard's answer of each scope for DASHBOARD_CACHE_TTL: in Redis for all processes if there is one, in
//! memory otherwise. An entry has the change counter of its scope and is valid only while the counter stays the same.
//! So users see their own writes at once, also if another process took the write.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, Scope};
use wharfinger_engines::redis_quota::{QuotaError, RedisCache};
use wharfinger_lifecycle::UnixMs;

use crate::config::Settings;
use crate::core::OpenError;

/// Limit of the cache in memory, in scopes.
const ENTRIES_MAX: usize = 10_000;
/// Redis is not asked again for this long after it did not answer. Answers are computed instead.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

pub struct Cache {
    ttl_ms: i64,
    backend: CacheBackend,
}

enum CacheBackend {
    Off,
    Memory(Mutex<HashMap<String, Entry>>),
    Redis { cache: Box<RedisCache>, retry_at: Mutex<Option<Instant>> },
}

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    kept_at: UnixMs,
    /// [`files_revision`](wharfinger_catalog::Catalog::files_revision) of the scope before the answer was computed.
    changes: i64,
    answer: String,
}

/// The parts cannot run together: names of users and tenants contain no control characters.
fn key(scope: &Scope) -> String {
    match scope {
        Scope::All => "all".to_owned(),
        Scope::Tenant(tenant) => format!("tenant:{tenant}"),
        Scope::User(tenant, user) => format!("user:{tenant}\u{0}{user}"),
    }
}

impl Cache {
    pub async fn open(settings: &Settings, catalog: &Catalog, faults: &Faults) -> Result<Cache, OpenError> {
        let Some(url) = &settings.quota_redis else {
            return Ok(Cache::in_memory(settings.dashboard_cache_ms));
        };
        let catalog_id = catalog.fact("catalog_id").await?.unwrap_or_default();
        let cache = RedisCache::new(url, catalog_id, faults.clone())
            .map_err(|error| OpenError::Quota(error.to_string()))?
            .with_prefix(&settings.redis_prefix)
            .with_timeout(Duration::from_millis(settings.quota_redis_timeout_ms));
        Ok(Cache::in_redis(settings.dashboard_cache_ms, cache))
    }

    fn in_memory(ttl_ms: i64) -> Cache {
        Cache {
            ttl_ms,
            backend: if ttl_ms == 0 { CacheBackend::Off } else { CacheBackend::Memory(Mutex::default()) },
        }
    }

    fn in_redis(ttl_ms: i64, cache: RedisCache) -> Cache {
        match ttl_ms {
            0 => Cache::in_memory(0),
            _ => Cache {
                ttl_ms,
                backend: CacheBackend::Redis { cache: Box::new(cache), retry_at: Mutex::default() },
            },
        }
    }

    pub fn is_enabled(&self) -> bool {
        !matches!(self.backend, CacheBackend::Off)
    }

    /// The stored answer, if `changes` is still the same and the entry has not expired.
    pub async fn get(&self, scope: &Scope, changes: i64, now: UnixMs) -> Option<String> {
        let found = match &self.backend {
            CacheBackend::Off => None,
            CacheBackend::Memory(entries) => lock(entries).get(&key(scope)).cloned(),
            CacheBackend::Redis { cache, .. } => {
                let text = self.unless_down(cache.read(&key(scope))).await.flatten()?;
                serde_json::from_str::<Entry>(&text).ok()
            }
        };
        let is_valid =
            |entry: &Entry| entry.changes == changes && (0..self.ttl_ms).contains(&(now - entry.kept_at));
        found.filter(is_valid).map(|entry| entry.answer)
    }

    pub async fn store(&self, scope: &Scope, changes: i64, answer: String, now: UnixMs) {
        let entry = Entry { kept_at: now, changes, answer };
        match &self.backend {
            CacheBackend::Off => {}
            CacheBackend::Memory(entries) => {
                let mut entries = lock(entries);
                if entries.len() >= ENTRIES_MAX {
                    entries.retain(|_, entry| now - entry.kept_at < self.ttl_ms);
                }
                if entries.len() < ENTRIES_MAX {
                    entries.insert(key(scope), entry);
                }
            }
            CacheBackend::Redis { cache, .. } => {
                if let Ok(text) = serde_json::to_string(&entry) {
                    self.unless_down(cache.store(&key(scope), &text, self.ttl_ms)).await;
                }
            }
        }
    }

    /// Calls Redis, unless its last call failed less than RETRY_PAUSE ago. None: no answer.
    async fn unless_down<T>(&self, call: impl Future<Output = Result<T, QuotaError>>) -> Option<T> {
        let CacheBackend::Redis { retry_at, .. } = &self.backend else { return None };
        if lock(retry_at).is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let answer = call.await;
        *lock(retry_at) = answer.is_err().then(|| Instant::now() + RETRY_PAUSE);
        answer.ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use wharfinger_lifecycle::id::{TenantId, UserId};

    use super::*;

    fn user_scope(tenant: &str, user: &str) -> Scope {
        Scope::User(TenantId::new(tenant).expect("a name"), UserId::new(user).expect("a name"))
    }

    #[tokio::test]
    async fn an_answer_is_valid_until_it_expires_or_its_scope_changes() {
        let cache = Cache::in_memory(1_000);
        let ann = user_scope("t", "ann");
        cache.store(&ann, 7, "one".into(), 10).await;
        assert_eq!(cache.get(&ann, 7, 1_009).await.as_deref(), Some("one"));
        assert_eq!(cache.get(&ann, 8, 11).await, None, "something has changed");
        assert_eq!(cache.get(&ann, 7, 1_010).await, None, "expired");
        assert_eq!(cache.get(&ann, 7, 9).await, None, "the clock was set back");
        let tenant = Scope::Tenant(TenantId::new("t").expect("a name"));
        let others = [user_scope("t", "ben"), user_scope("s", "ann"), tenant, Scope::All];
        for other in others {
            assert_eq!(cache.get(&other, 7, 11).await, None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_ttl_of_zero_disables_the_cache() {
        let cache = Cache::in_memory(0);
        cache.store(&Scope::All, 7, "one".into(), 10).await;
        assert!(!cache.is_enabled() && cache.get(&Scope::All, 7, 10).await.is_none());
    }
}
