//! Answers that are kept for DASHBOARD_CACHE_TTL, one per scope: by Redis for all processes where there is one, here
//! otherwise. Each says how far its scope had changed when it was worked out, and holds only while that is so: whoever
//! writes sees what they wrote, whichever process took it.

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

/// More scopes than this are not kept here.
const ENTRIES_MAX: usize = 10_000;
/// A Redis that did not answer is not asked again for so long: what is not kept is worked out.
const AWAY_PAUSE: Duration = Duration::from_secs(5);

pub struct Cache {
    ttl_ms: i64,
    owner: CacheBackend,
}

enum CacheBackend {
    Off,
    Memory(Mutex<HashMap<String, Entry>>),
    Redis { cache: Box<RedisCache>, away_until: Mutex<Option<Instant>> },
}

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    kept_at: UnixMs,
    /// What [`changes`](wharfinger_catalog::Catalog::changes) said before it was worked out.
    changes: i64,
    answer: String,
}

/// No name of a user or a tenant holds a control character.
fn name(scope: &Scope) -> String {
    match scope {
        Scope::All => "all".to_owned(),
        Scope::Tenant(tenant) => format!("tenant:{tenant}"),
        Scope::User(tenant, user) => format!("user:{tenant}\u{0}{user}"),
    }
}

impl Cache {
    pub async fn open(settings: &Settings, catalog: &Catalog, faults: &Faults) -> Result<Cache, OpenError> {
        let Some(url) = &settings.quota_redis else {
            return Ok(Cache::here(settings.dashboard_cache_ms));
        };
        let catalog_id = catalog.fact("catalog_id").await?.unwrap_or_default();
        let cache = RedisCache::new(url, catalog_id, faults.clone())
            .map_err(|error| OpenError::Quota(error.to_string()))?
            .with_patience(Duration::from_millis(settings.quota_redis_timeout_ms));
        Ok(Cache::redis(settings.dashboard_cache_ms, cache))
    }

    fn here(ttl_ms: i64) -> Cache {
        Cache { ttl_ms, owner: if ttl_ms == 0 { CacheBackend::Off } else { CacheBackend::Memory(Mutex::default()) } }
    }

    fn redis(ttl_ms: i64, cache: RedisCache) -> Cache {
        match ttl_ms {
            0 => Cache::here(0),
            _ => Cache {
                ttl_ms,
                owner: CacheBackend::Redis { cache: Box::new(cache), away_until: Mutex::default() },
            },
        }
    }

    pub fn keeps(&self) -> bool {
        !matches!(self.owner, CacheBackend::Off)
    }

    /// What was worked out under the same `changes`, and not too long ago.
    pub async fn find(&self, scope: &Scope, changes: i64, now: UnixMs) -> Option<String> {
        let found = match &self.owner {
            CacheBackend::Off => None,
            CacheBackend::Memory(kept) => lock(kept).get(&name(scope)).cloned(),
            CacheBackend::Redis { cache, .. } => {
                let text = self.asked(cache.read(&name(scope))).await.flatten()?;
                serde_json::from_str::<Entry>(&text).ok()
            }
        };
        let holds =
            |kept: &Entry| kept.changes == changes && (0..self.ttl_ms).contains(&(now - kept.kept_at));
        found.filter(holds).map(|kept| kept.answer)
    }

    pub async fn keep(&self, scope: &Scope, changes: i64, answer: String, now: UnixMs) {
        let entry = Entry { kept_at: now, changes, answer };
        match &self.owner {
            CacheBackend::Off => {}
            CacheBackend::Memory(kept) => {
                let mut kept = lock(kept);
                if kept.len() >= ENTRIES_MAX {
                    kept.retain(|_, kept| now - kept.kept_at < self.ttl_ms);
                }
                if kept.len() < ENTRIES_MAX {
                    kept.insert(name(scope), entry);
                }
            }
            CacheBackend::Redis { cache, .. } => {
                if let Ok(text) = serde_json::to_string(&entry) {
                    self.asked(cache.keep(&name(scope), &text, self.ttl_ms)).await;
                }
            }
        }
    }

    /// What Redis answers, unless it did not answer a moment ago.
    async fn asked<T>(&self, question: impl Future<Output = Result<T, QuotaError>>) -> Option<T> {
        let CacheBackend::Redis { away_until, .. } = &self.owner else { return None };
        if lock(away_until).is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let answered = question.await;
        *lock(away_until) = answered.is_err().then(|| Instant::now() + AWAY_PAUSE);
        answered.ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use wharfinger_lifecycle::id::{TenantId, UserId};

    use super::*;

    fn of(tenant: &str, user: &str) -> Scope {
        Scope::User(TenantId::new(tenant).expect("a name"), UserId::new(user).expect("a name"))
    }

    #[tokio::test]
    async fn an_answer_holds_for_its_time_and_until_its_scope_changes() {
        let cache = Cache::here(1_000);
        let ann = of("t", "ann");
        cache.keep(&ann, 7, "one".into(), 10).await;
        assert_eq!(cache.find(&ann, 7, 1_009).await.as_deref(), Some("one"));
        assert_eq!(cache.find(&ann, 8, 11).await, None, "something has changed");
        assert_eq!(cache.find(&ann, 7, 1_010).await, None, "its time is over");
        assert_eq!(cache.find(&ann, 7, 9).await, None, "the clock was set back");
        let others =
            [of("t", "ben"), of("s", "ann"), Scope::Tenant(TenantId::new("t").expect("a name")), Scope::All];
        for other in others {
            assert_eq!(cache.find(&other, 7, 11).await, None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_for_no_time() {
        let cache = Cache::here(0);
        cache.keep(&Scope::All, 7, "one".into(), 10).await;
        assert!(!cache.keeps() && cache.find(&Scope::All, 7, 10).await.is_none());
    }
}
