//! Answers that are kept for DASHBOARD_CACHE_TTL, one per scope: by Redis for all processes where there is one, here
//! otherwise. Whoever writes sees what they wrote: an answer holds under the marks of its scope that it was worked out
//! under, and a write raises the marks of its writer.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wharfinger_backends::catalog::Scope;
use wharfinger_backends::quota::{QuotaError, RedisCache};
use wharfinger_lifecycle::UnixMs;

use crate::uploads::{Caller, Role};

/// More scopes than this are not kept here.
const ENTRIES_MAX: usize = 10_000;
/// A Redis that did not answer is not asked again for so long: what is not kept is worked out.
const AWAY_PAUSE: Duration = Duration::from_secs(5);
/// The longest an answer may wait for a cache.
const PATIENCE: Duration = Duration::from_millis(250);

pub struct Cache {
    ttl_ms: i64,
    keeper: Keeper,
}

enum Keeper {
    Nobody,
    Here {
        kept: Mutex<Here>,
        /// Others may write for the same users where we do not see it: what concerns one user is not kept.
        has_others: bool,
    },
    Redis {
        cache: Box<RedisCache>,
        away_until: Mutex<Option<Instant>>,
    },
}

#[derive(Default)]
struct Here {
    entries: HashMap<String, Entry>,
    marks: HashMap<String, u64>,
    /// Counts every mark that was ever raised: one that was forgotten never comes back as it was.
    raised: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    kept_at: UnixMs,
    marks: Vec<String>,
    answer: String,
}

/// What an answer that is worked out now will hold under.
pub struct Place {
    entry: String,
    marks: Vec<String>,
}

pub enum Found {
    Answer(String),
    /// Nothing that holds: work it out, and keep it here.
    Nothing(Option<Place>),
}

/// The marks a scope's answer holds under: writes by its user, by admins of its tenant, by operators.
fn marks(scope: &Scope) -> Vec<String> {
    let mut marks = vec!["all".to_owned()];
    match scope {
        Scope::All => {}
        Scope::Tenant(tenant) => marks.push(format!("tenant:{tenant}")),
        Scope::User(tenant, user) => {
            marks.push(format!("tenant:{tenant}"));
            marks.push(format!("user:{tenant}\u{0}{user}"));
        }
    }
    marks
}

/// The name of a scope's answer is the narrowest of its marks.
fn entry_of(marks: &[String]) -> String {
    marks.last().cloned().unwrap_or_default()
}

impl Cache {
    pub fn none() -> Cache {
        Cache { ttl_ms: 0, keeper: Keeper::Nobody }
    }

    pub fn here(ttl_ms: i64, has_others: bool) -> Cache {
        match ttl_ms {
            0 => Cache::none(),
            _ => Cache { ttl_ms, keeper: Keeper::Here { kept: Mutex::default(), has_others } },
        }
    }

    pub fn redis(ttl_ms: i64, cache: RedisCache) -> Cache {
        match ttl_ms {
            0 => Cache::none(),
            _ => Cache {
                ttl_ms,
                keeper: Keeper::Redis { cache: Box::new(cache), away_until: Mutex::new(None) },
            },
        }
    }

    pub async fn find(&self, scope: &Scope, now: UnixMs) -> Found {
        let marks = marks(scope);
        let entry = entry_of(&marks);
        let holds = |kept: &Entry, marks: &[String]| {
            kept.marks == marks && (0..self.ttl_ms).contains(&(now - kept.kept_at))
        };
        match &self.keeper {
            Keeper::Nobody => Found::Nothing(None),
            Keeper::Here { has_others: true, .. } if matches!(scope, Scope::User(..)) => Found::Nothing(None),
            Keeper::Here { kept, .. } => {
                let here = lock(kept);
                let marks: Vec<String> =
                    marks.iter().map(|mark| here.marks.get(mark).copied().unwrap_or(0).to_string()).collect();
                match here.entries.get(&entry).filter(|kept| holds(kept, &marks)) {
                    Some(kept) => Found::Answer(kept.answer.clone()),
                    None => Found::Nothing(Some(Place { entry, marks })),
                }
            }
            Keeper::Redis { cache, .. } => {
                let Some(kept) = self.asked(cache.read(&entry, &marks)).await else {
                    return Found::Nothing(None);
                };
                let found: Option<Entry> = kept.entry.and_then(|text| serde_json::from_str(&text).ok());
                match found.filter(|found| holds(found, &kept.marks)) {
                    Some(found) => Found::Answer(found.answer),
                    None => Found::Nothing(Some(Place { entry, marks: kept.marks })),
                }
            }
        }
    }

    pub async fn keep(&self, place: Place, answer: String, now: UnixMs) {
        let entry = Entry { kept_at: now, marks: place.marks, answer };
        match &self.keeper {
            Keeper::Nobody => {}
            Keeper::Here { kept, .. } => {
                let mut here = lock(kept);
                if here.entries.len() >= ENTRIES_MAX {
                    here.entries.retain(|_, kept| now - kept.kept_at < self.ttl_ms);
                }
                if here.entries.len() < ENTRIES_MAX {
                    here.entries.insert(place.entry, entry);
                }
            }
            Keeper::Redis { cache, .. } => {
                if let Ok(text) = serde_json::to_string(&entry) {
                    let _ = self.asked(cache.keep(&place.entry, &text, self.ttl_ms)).await;
                }
            }
        }
    }

    /// The caller has written, or may have.
    pub async fn touch(&self, caller: &Caller) {
        let own = marks(&caller.own_scope());
        let mark = match caller.role {
            Role::User | Role::Worker => own.last(),
            Role::Admin => own.get(1),
            Role::Operator => own.first(),
        };
        let Some(mark) = mark.cloned() else { return };
        match &self.keeper {
            Keeper::Nobody => {}
            Keeper::Here { kept, .. } => {
                let mut here = lock(kept);
                if here.marks.len() >= ENTRIES_MAX {
                    // What is kept under a mark goes with it.
                    *here = Here { raised: here.raised, ..Here::default() };
                }
                here.raised += 1;
                let raised = here.raised;
                here.marks.insert(mark, raised);
            }
            Keeper::Redis { cache, .. } => {
                let _ = self.asked(cache.touch(&[mark], 2 * self.ttl_ms + 60_000)).await;
            }
        }
    }

    /// What Redis answers, unless it takes long or did not answer a moment ago.
    async fn asked<T>(&self, question: impl Future<Output = Result<T, QuotaError>>) -> Option<T> {
        let Keeper::Redis { away_until, .. } = &self.keeper else { return None };
        if lock(away_until).is_some_and(|until| Instant::now() < until) {
            return None;
        }
        match tokio::time::timeout(PATIENCE, question).await {
            Ok(Ok(answer)) => {
                *lock(away_until) = None;
                Some(answer)
            }
            Ok(Err(_)) | Err(_) => {
                *lock(away_until) = Some(Instant::now() + AWAY_PAUSE);
                None
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use wharfinger_lifecycle::id::{TenantId, UserId};

    use super::*;

    fn caller(user: &str, role: Role) -> Caller {
        let tenant = TenantId::new("t").expect("a fixed name");
        Caller { tenant, user: UserId::new(user).expect("a fixed name"), role }
    }

    async fn kept(cache: &Cache, scope: &Scope, now: UnixMs) -> Option<String> {
        match cache.find(scope, now).await {
            Found::Answer(answer) => Some(answer),
            Found::Nothing(_) => None,
        }
    }

    async fn keep(cache: &Cache, scope: &Scope, answer: &str, now: UnixMs) {
        match cache.find(scope, now).await {
            Found::Nothing(Some(place)) => cache.keep(place, answer.to_owned(), now).await,
            _ => panic!("there was a place for it"),
        }
    }

    #[tokio::test]
    async fn an_answer_holds_for_its_time_and_until_its_user_writes() {
        let cache = Cache::here(1_000, false);
        let (ann, ben) = (caller("ann", Role::User), caller("ben", Role::User));
        keep(&cache, &ann.scope(), "one", 10).await;
        assert_eq!(kept(&cache, &ann.scope(), 1_009).await.as_deref(), Some("one"));
        assert_eq!(kept(&cache, &ann.scope(), 1_010).await, None, "its time is over");
        assert_eq!(kept(&cache, &ann.scope(), 9).await, None, "the clock was set back");
        cache.touch(&ben).await;
        assert_eq!(kept(&cache, &ann.scope(), 11).await.as_deref(), Some("one"), "another user's write");
        cache.touch(&ann).await;
        assert_eq!(kept(&cache, &ann.scope(), 11).await, None);
        for above in [caller("eve", Role::Admin), caller("op", Role::Operator)] {
            keep(&cache, &ann.scope(), "two", 20).await;
            cache.touch(&above).await;
            assert_eq!(kept(&cache, &ann.scope(), 21).await, None, "they write to her files");
        }
    }

    #[tokio::test]
    async fn what_is_worked_out_while_somebody_writes_does_not_hold() {
        let cache = Cache::here(1_000, false);
        let ann = caller("ann", Role::User);
        let Found::Nothing(Some(place)) = cache.find(&ann.scope(), 10).await else {
            panic!("nothing is kept")
        };
        cache.touch(&ann).await;
        cache.keep(place, "old".into(), 11).await;
        assert_eq!(kept(&cache, &ann.scope(), 12).await, None);
    }

    #[tokio::test]
    async fn beside_other_processes_a_users_answer_is_not_kept_here() {
        let cache = Cache::here(1_000, true);
        let ann = caller("ann", Role::User);
        assert!(matches!(cache.find(&ann.scope(), 10).await, Found::Nothing(None)));
        keep(&cache, &Scope::All, "all", 10).await;
        assert_eq!(kept(&cache, &Scope::All, 11).await.as_deref(), Some("all"));
    }
}
