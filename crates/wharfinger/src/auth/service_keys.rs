//! Service keys: tokens of programs, with a fixed role. Every process keeps all keys in memory and reads them again every few
//! seconds, so a revoked key soon stops working. While the catalog is away, the last known keys stay valid.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use wharfinger_catalog::{CatalogError, KeyUse, SERVICE_KEYS_MAX, ServiceKey};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::checksum::{from_hex, to_hex};
use wharfinger_lifecycle::id::{TenantId, UserId};

use super::{LeaseScope, Refused, Session};
use crate::core::{Caller, Core, Role};

pub const KEY_PREFIX: &str = "whf_";
/// 6 bytes of time, so that ids sort by their age, and 4 random ones.
const ID_CHARS: usize = 20;
/// 256 random bits. Nobody can try so many, so a fast hash without salt is enough (decision 29).
const SECRET_BYTES: usize = 32;
/// The tenant of a key without one.
const NO_TENANT: &str = "default";

/// Keys older than this are read again before the next request that needs them.
const KEYS_AGE_MS_MAX: i64 = 20_000;
/// After a failed read.
const RETRY_PAUSE_MS: i64 = 5_000;
/// How long a request waits for the catalog. Then it is answered by the last known keys.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const LOOP_TIMEOUT: Duration = Duration::from_secs(15);
/// A key's last use is written no more often than this.
const USE_PAUSE_MS: i64 = 80_000;
/// Unknown ids that may be looked up at once, and then one every second. New keys are found in this way.
const LOOKUPS_MAX: i64 = 10;
const LOOKUP_PAUSE_MS: i64 = 1_000;
const UNKNOWN_IDS_MAX: usize = 1_000;
const UNKNOWN_MS: i64 = 30_000;

/// What a new key may do, and until when.
#[derive(Clone, Debug)]
pub struct KeyRequest {
    pub role: Role,
    pub tenant: Option<TenantId>,
    pub user: Option<UserId>,
    pub name: Option<String>,
    pub expires_at: Option<UnixMs>,
}

/// A field of the request that does not fit its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyProblem {
    pub field: &'static str,
    pub problem: &'static str,
}

/// A new key. The token is shown once and is stored nowhere.
pub struct NewKey {
    pub token: String,
    pub row: ServiceKey,
}

impl KeyRequest {
    /// Which roles need a tenant and a user.
    fn check(&self) -> Result<(), KeyProblem> {
        let problem = |field, problem| Err(KeyProblem { field, problem });
        match (self.role, &self.tenant, &self.user) {
            (Role::User, None, _) => {
                problem("tenant", "is needed: a key of role `user` has the files of one user")
            }
            (Role::User, _, None) => {
                problem("user", "is needed: a key of role `user` has the files of one user")
            }
            (Role::Admin, None, _) => problem("tenant", "is needed: a key of role `admin` is for one tenant"),
            (Role::Ingest, None, _) => {
                problem("tenant", "is needed: the events of a key of role `ingest` belong to one tenant")
            }
            (Role::Metrics, Some(_), _) => problem("tenant", "has no meaning for a key of role `metrics`"),
            (Role::Metrics, _, Some(_)) => problem("user", "has no meaning for a key of role `metrics`"),
            _ => Ok(()),
        }
    }
}

impl NewKey {
    pub fn create(request: KeyRequest, now: UnixMs) -> Result<NewKey, KeyProblem> {
        request.check()?;
        let time = u64::try_from(now).unwrap_or(0).to_be_bytes();
        let id = to_hex(&[&time[2..], &rand::random::<[u8; 4]>()].concat());
        let token = format!("{KEY_PREFIX}{id}_{}", to_hex(&rand::random::<[u8; SECRET_BYTES]>()));
        let row = ServiceKey {
            id,
            hash: to_hex(&hash(&token)),
            name: request.name,
            role: request.role.as_str().to_owned(),
            tenant: request.tenant.map(|tenant| tenant.to_string()),
            user: request.user.map(|user| user.to_string()),
            created_at: now,
            expires_at: request.expires_at,
            revoked_at: None,
            last_used_at: None,
        };
        Ok(NewKey { token, row })
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The id in a token, if the text has the form of one.
fn id_of(token: &str) -> Option<&str> {
    let is_hex = |text: &str, chars: usize| {
        text.len() == chars && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let (id, secret) = token.strip_prefix(KEY_PREFIX)?.split_once('_')?;
    (is_hex(id, ID_CHARS) && is_hex(secret, 2 * SECRET_BYTES)).then_some(id)
}

/// The id that a person means who gives an id, or by mistake the whole key.
pub fn key_id_of(text: &str) -> &str {
    id_of(text).unwrap_or_else(|| text.strip_prefix(KEY_PREFIX).unwrap_or(text))
}

/// Why a service key is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    Refused(Refused),
    /// The key is not among the known ones, and the catalog cannot be asked.
    Unavailable,
}

struct Known {
    hash: Vec<u8>,
    caller: Caller,
    lease_scope: LeaseScope,
    expires_at: UnixMs,
    is_revoked: bool,
    /// 0: not used since this process knows it.
    used_at: AtomicI64,
    /// The last use in the catalog; 0: none.
    recorded_at: AtomicI64,
}

impl Known {
    /// None: another version of the program wrote this row.
    fn of(row: &ServiceKey) -> Option<Known> {
        let role = Role::parse(&row.role)?;
        let tenant = row.tenant.as_deref().map(TenantId::new).transpose().ok()?;
        // A worker's tenant is the one whose files it may lease.
        let tenants = tenant.clone().filter(|_| role == Role::Worker).map(|tenant| vec![tenant]);
        let user = row.user.clone().unwrap_or_else(|| format!("key-{}", row.id));
        Some(Known {
            hash: from_hex(&row.hash)?,
            caller: Caller {
                tenant: tenant.map_or_else(|| TenantId::new(NO_TENANT), Ok).ok()?,
                user: UserId::new(&user).ok()?,
                role,
            },
            lease_scope: LeaseScope { stages: None, tenants },
            expires_at: row.expires_at.unwrap_or(i64::MAX),
            is_revoked: row.revoked_at.is_some(),
            used_at: AtomicI64::new(0),
            recorded_at: AtomicI64::new(row.last_used_at.unwrap_or(0)),
        })
    }

    /// Takes over what the process knows about the same key.
    fn after(self, before: Option<&Arc<Known>>) -> Known {
        if let Some(before) = before {
            self.used_at.fetch_max(before.used_at.load(Ordering::Relaxed), Ordering::Relaxed);
            self.recorded_at.fetch_max(before.recorded_at.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self
    }

    fn ended(&self, now: UnixMs) -> Option<&'static str> {
        match () {
            () if self.is_revoked => Some("the service key was revoked"),
            () if self.expires_at <= now => Some("the service key has expired"),
            () => None,
        }
    }
}

struct Times {
    asked_at: UnixMs,
    read_at: UnixMs,
}

pub struct ServiceKeys {
    core: Arc<Core>,
    known: RwLock<HashMap<String, Arc<Known>>>,
    /// Held while all keys are read.
    times: tokio::sync::Mutex<Times>,
    /// The last read failed: an unknown id may be a new key.
    is_failing: AtomicBool,
    lookups: Mutex<Lookups>,
}

impl ServiceKeys {
    pub fn new(core: Arc<Core>) -> ServiceKeys {
        let long_ago = i64::MIN / 2;
        ServiceKeys {
            core,
            known: RwLock::default(),
            times: tokio::sync::Mutex::new(Times { asked_at: long_ago, read_at: long_ago }),
            is_failing: AtomicBool::new(true),
            lookups: Mutex::default(),
        }
    }

    pub async fn verify(&self, token: &str) -> Result<Session, KeyError> {
        let refused = |reason: &str| Err(KeyError::Refused(reason.into()));
        let Some(id) = id_of(token) else {
            return refused("the service key is not complete. It has the form whf_<id>_<secret>");
        };
        let now = self.core.clock.now();
        self.refresh_old(now).await;
        let key = match self.find(id) {
            Some(key) => Some(key),
            None => self.look_up(id, now).await?,
        };
        // Only the owner of the whole key is told more than this.
        let Some(key) = key.filter(|key| bool::from(key.hash.ct_eq(&hash(token)))) else {
            return refused("the service key is unknown");
        };
        if let Some(reason) = key.ended(now) {
            return refused(reason);
        }
        key.used_at.fetch_max(now, Ordering::Relaxed);
        Ok(Session {
            caller: key.caller.clone(),
            expires_at: key.expires_at,
            lease_scope: key.lease_scope.clone(),
            service_key: Some(id.to_owned()),
        })
    }

    /// Whether a key that was accepted before is still valid, for answers that last.
    pub async fn is_valid(&self, id: &str) -> bool {
        let now = self.core.clock.now();
        self.refresh_old(now).await;
        self.find(id).is_some_and(|key| key.ended(now).is_none())
    }

    fn find(&self, id: &str) -> Option<Arc<Known>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Reads the keys if they are old. While another request does that, the old keys are used.
    async fn refresh_old(&self, now: UnixMs) {
        if let Ok(mut times) = self.times.try_lock()
            && now >= times.read_at.saturating_add(KEYS_AGE_MS_MAX)
            && now >= times.asked_at.saturating_add(RETRY_PAUSE_MS)
        {
            self.read_all(&mut times, now, REQUEST_TIMEOUT).await;
        }
    }

    /// For the loop of the process, so that it knows the keys before they are used.
    pub async fn refresh(&self) {
        let mut times = self.times.lock().await;
        self.read_all(&mut times, self.core.clock.now(), LOOP_TIMEOUT).await;
    }

    async fn read_all(&self, times: &mut Times, now: UnixMs, timeout: Duration) {
        times.asked_at = now;
        let reading = self.core.catalog.service_keys(None, SERVICE_KEYS_MAX);
        let Some(rows) = self.answered(tokio::time::timeout(timeout, reading).await) else { return };
        times.read_at = now;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let keys = rows
            .iter()
            .filter_map(|row| Some((row.id.clone(), Arc::new(Known::of(row)?.after(known.get(&row.id))))));
        *known = keys.collect();
    }

    /// The answer of the catalog. None: it is away.
    fn answered<T>(&self, answer: Result<Result<T, CatalogError>, tokio::time::error::Elapsed>) -> Option<T> {
        let answer = answer.map_err(|_| "no answer in time".to_owned());
        let answer = answer.and_then(|answer| answer.map_err(|error| error.to_string()));
        self.is_failing.store(answer.is_err(), Ordering::Relaxed);
        answer
            .map_err(|error| {
                tracing::warn!(error, "cannot read the service keys, the last known ones stay valid");
            })
            .ok()
    }

    /// A key that is not among the known ones: it may be new.
    async fn look_up(&self, id: &str, now: UnixMs) -> Result<Option<Arc<Known>>, KeyError> {
        let lookups = || self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = lookups().take(id, now);
        if !allowed {
            let is_failing = self.is_failing.load(Ordering::Relaxed);
            return if is_failing { Err(KeyError::Unavailable) } else { Ok(None) };
        }
        let reading = self.core.catalog.service_key(id);
        let answer = self.answered(tokio::time::timeout(REQUEST_TIMEOUT, reading).await);
        let Some(row) = answer.ok_or(KeyError::Unavailable)? else {
            lookups().remember(id, now);
            return Ok(None);
        };
        let Some(key) = Known::of(&row).map(Arc::new) else { return Ok(None) };
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(row.id, key.clone());
        Ok(Some(key))
    }

    /// Writes when keys were last used. Called by a loop, never by a request.
    pub async fn record_uses(&self) -> Result<(), CatalogError> {
        let not_after = self.core.clock.now().saturating_sub(USE_PAUSE_MS);
        let used: Vec<(KeyUse, Arc<Known>)> = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let uses = known.iter().filter_map(|(id, key)| {
                let (at, recorded_at) =
                    (key.used_at.load(Ordering::Relaxed), key.recorded_at.load(Ordering::Relaxed));
                let is_due = at > recorded_at && recorded_at <= not_after;
                is_due.then(|| (KeyUse { id: id.clone(), at }, key.clone()))
            });
            uses.collect()
        };
        let uses = used.iter().map(|(key_use, _)| key_use.clone()).collect();
        self.core.catalog.record_key_uses(uses, not_after).await?;
        for (key_use, key) in used {
            key.recorded_at.fetch_max(key_use.at, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Bounds the queries that clients with invented keys can cause.
#[derive(Default)]
struct Lookups {
    spent: i64,
    refilled_at: UnixMs,
    /// Ids that no key has, and when they were looked up.
    unknown: HashMap<String, UnixMs>,
}

impl Lookups {
    /// Whether this id may be looked up now.
    fn take(&mut self, id: &str, now: UnixMs) -> bool {
        let is_fresh = |at: UnixMs| (0..UNKNOWN_MS).contains(&now.saturating_sub(at));
        if self.unknown.get(id).is_some_and(|at| is_fresh(*at)) {
            return false;
        }
        let refill = now.saturating_sub(self.refilled_at) / LOOKUP_PAUSE_MS;
        if refill != 0 {
            self.spent = self.spent.saturating_sub(refill.max(0)).max(0);
            self.refilled_at = now;
        }
        let allowed = self.spent < LOOKUPS_MAX;
        self.spent += i64::from(allowed);
        allowed
    }

    fn remember(&mut self, id: &str, now: UnixMs) {
        if self.unknown.len() >= UNKNOWN_IDS_MAX {
            self.unknown.clear();
        }
        self.unknown.insert(id.to_owned(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_of_unknown_ids_are_bounded() {
        let (mut lookups, now) = (Lookups::default(), 1_750_000_000_000);
        assert!(lookups.take("same", now));
        lookups.remember("same", now);
        assert!((1..100).all(|ms| !lookups.take("same", now + ms)), "an unknown id is not looked up again");
        assert!(lookups.take("same", now + UNKNOWN_MS));
        // Many ids: ten at once, then one every second.
        let mut lookups = Lookups::default();
        let allowed =
            |lookups: &mut Lookups, at: i64| (0..5_000).filter(|n| lookups.take(&n.to_string(), at)).count();
        assert_eq!(allowed(&mut lookups, now), 10);
        assert_eq!(allowed(&mut lookups, now + 999), 0);
        assert_eq!(allowed(&mut lookups, now + 1_000), 1);
        assert_eq!(allowed(&mut lookups, now + 3_500), 2);
        assert_eq!(allowed(&mut lookups, now + 3_600_000), 10);
        // A clock that was set back blocks nothing for long.
        assert!(allowed(&mut lookups, now) <= 1);
        assert_eq!(allowed(&mut lookups, now + 20_000), 10);
        for n in 0..5_000 {
            lookups.remember(&n.to_string(), now);
        }
        assert!(lookups.unknown.len() <= UNKNOWN_IDS_MAX);
    }

    #[test]
    fn a_key_has_256_random_bits_and_only_its_hash_is_kept() {
        let request =
            || KeyRequest { role: Role::Metrics, tenant: None, user: None, name: None, expires_at: None };
        let (one, other) =
            (NewKey::create(request(), 1).expect("a key"), NewKey::create(request(), 2).expect("a key"));
        assert!(one.row.id < other.row.id, "ids sort by age");
        assert_eq!(id_of(&one.token), Some(one.row.id.as_str()));
        assert_eq!((one.token.len(), one.row.hash.len()), (4 + 20 + 1 + 64, 64));
        let secret = one.token.rsplit('_').next().expect("a secret");
        assert!(!format!("{:?}", one.row).contains(secret) && !other.token.ends_with(secret));
        for text in ["", "whf_", &one.token[..88], &one.token.to_uppercase(), &format!("{}0", one.token)] {
            assert_eq!(id_of(text), None, "{text}");
        }
        for text in [one.token.as_str(), &format!("whf_{}", one.row.id), &one.row.id] {
            assert_eq!(key_id_of(text), one.row.id);
        }
    }
}
