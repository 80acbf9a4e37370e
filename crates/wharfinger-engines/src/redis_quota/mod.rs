//! Quotas on Redis: fast counters in front of the catalog, which can reload them at any time. Every change is one
//! atomic script. Each script may be sent twice, and none guesses a missing value.

mod cache;
mod connect;

use std::time::Duration;

use redis::{FromRedisValue, Script};
use uuid::Uuid;
use wharfinger_lifecycle::id::TenantId;

use connect::Connector;
use wharfinger_calls::faults::{Faults, InjectedFault};

pub use cache::RedisCache;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// No usable answer. The call may have had its effect. Try again later.
    #[error("Redis is unavailable: {0}")]
    Unavailable(String),
    /// Stays until an operator fixes it.
    #[error("Redis cannot be used: {0}")]
    Refused(String),
}

impl From<InjectedFault> for QuotaError {
    fn from(injected: InjectedFault) -> Self {
        QuotaError::Unavailable(injected.to_string())
    }
}

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The file fits and is counted under this epoch.
    Counted {
        epoch: i64,
        limit_bytes: u64,
    },
    Full {
        used_bytes: u64,
        limit_bytes: u64,
    },
    /// The counters are missing or invalid: load them.
    Reload,
}

/// The answer to a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundResult {
    /// Applied now or earlier, or already part of the loaded counter. `remembered` is the number of refund ids in
    /// Redis, or 0 if the refund was not applied by this call.
    Done { remembered: u64 },
    /// The counters have an older epoch: a load will follow.
    Later,
    /// The counters are missing or invalid: load them.
    Reload,
}

/// An announced load. Redis accepts it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedLoad {
    pub name: String,
    /// The epoch of the current counters, if they are valid.
    pub valid_epoch: Option<i64>,
}

/// The answer to a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadResult {
    /// Loaded. `used_bytes_before` is the previous counter, if it was valid.
    Loaded { used_bytes_before: Option<u64> },
    /// Another process loaded a later epoch.
    Newer { epoch: i64 },
    /// The server does not know this load: it restarted or was flushed, or the load was used already.
    Unannounced,
}

/// The counters to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub epoch: i64,
    pub used_bytes: u64,
    pub limit_bytes: u64,
    /// If false, the limit is the default, which every reservation passes.
    pub has_own_limit: bool,
}

struct Scripts {
    reserve: Script,
    settle: Script,
    release: Script,
    refund: Script,
    announce: Script,
    load: Script,
    probe: Script,
}

/// The text of a script, with the common prefix `state.lua`.
macro_rules! script {
    ($name:literal) => {
        concat!(include_str!("scripts/state.lua"), "\n", include_str!(concat!("scripts/", $name, ".lua")))
    };
}

/// The text of the reserve script, for benchmarks of the server alone.
pub const RESERVE_SCRIPT: &str = script!("reserve");

impl Scripts {
    fn new() -> Scripts {
        Scripts {
            reserve: Script::new(RESERVE_SCRIPT),
            settle: Script::new(script!("settle")),
            release: Script::new(script!("release")),
            refund: Script::new(script!("refund")),
            announce: Script::new(script!("announce")),
            load: Script::new(script!("load")),
            probe: Script::new(script!("probe")),
        }
    }
}

/// An announcement is valid for this long.
const ANNOUNCEMENT_S: u32 = 60;

pub struct RedisQuota {
    connector: Connector,
    scripts: Scripts,
    catalog_id: String,
    prefix: String,
    faults: Faults,
}

impl RedisQuota {
    /// Parses the URL. Connects at the first call. Counters of other catalogs on the same server are not used.
    pub fn new(url: &str, catalog_id: String, faults: Faults) -> Result<RedisQuota, QuotaError> {
        let (connector, scripts) = (Connector::new(url)?, Scripts::new());
        Ok(RedisQuota { connector, scripts, catalog_id, prefix: String::new(), faults })
    }

    /// Sets how long to wait for an answer before the server counts as unavailable.
    pub fn with_timeout(self, timeout: Duration) -> RedisQuota {
        RedisQuota { connector: self.connector.with_timeout(timeout), ..self }
    }

    /// Sets what all keys start with. It must not contain braces (see [`keys`]).
    pub fn with_prefix(self, prefix: &str) -> RedisQuota {
        RedisQuota { prefix: prefix.to_owned(), ..self }
    }

    /// The server's address, without secrets.
    pub fn address(&self) -> &str {
        self.connector.address()
    }

    /// Checks that the server answers, has a supported version and permits everything that the scripts do. Returns its
    /// version.
    pub async fn check(&self) -> Result<String, QuotaError> {
        let tenant = TenantId::new("wharfinger/check").map_err(|bad| QuotaError::Refused(bad.to_string()))?;
        self.faults
            .around("redis check", async {
                let version = self.connector.version().await?;
                let answer: Vec<String> = self.call(&self.scripts.probe, &tenant, &[]).await?;
                match words(&answer).as_slice() {
                    ["usable"] => Ok(version),
                    _ => Err(unexpected(&answer)),
                }
            })
            .await
    }

    /// Checks whether the server answers. It writes nothing, so requests without authentication may trigger it.
    pub async fn ping(&self) -> Result<(), QuotaError> {
        self.faults.around("redis ping", self.connector.ping()).await
    }

    /// `attempt` is unique for this call. A released attempt must not be reserved again: a release that is still on its way
    /// would remove the second reservation.
    pub async fn reserve(
        &self,
        tenant: &TenantId,
        attempt: Uuid,
        size: u64,
        default_limit_bytes: u64,
    ) -> Result<Reservation, QuotaError> {
        let args = [attempt.to_string(), size.to_string(), default_limit_bytes.to_string()];
        let answer = self.ask("redis reserve", &self.scripts.reserve, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["counted", epoch, limit] => {
                Ok(Reservation::Counted { epoch: number(epoch)?, limit_bytes: number(limit)? })
            }
            ["full", used, limit] => {
                Ok(Reservation::Full { used_bytes: number(used)?, limit_bytes: number(limit)? })
            }
            ["reload"] => Ok(Reservation::Reload),
            _ => Err(unexpected(&answer)),
        }
    }

    /// Removes attempts from the list of attempts in flight, because their files are in the catalog. They stay counted.
    pub async fn settle(&self, tenant: &TenantId, attempts: &[Uuid]) -> Result<(), QuotaError> {
        let ids: Vec<String> = attempts.iter().map(Uuid::to_string).collect();
        self.ask("redis settle", &self.scripts.settle, tenant, &ids).await.map(|_| ())
    }

    /// Removes a reservation. Only for an attempt that certainly wrote nothing to the catalog.
    pub async fn release(&self, tenant: &TenantId, attempt: Uuid) -> Result<(), QuotaError> {
        self.ask("redis release", &self.scripts.release, tenant, &[attempt.to_string()]).await.map(|_| ())
    }

    pub async fn refund(
        &self,
        tenant: &TenantId,
        line: &str,
        bytes: u64,
        epoch: i64,
    ) -> Result<RefundResult, QuotaError> {
        let args = [line.to_owned(), bytes.to_string(), epoch.to_string()];
        let answer = self.ask("redis refund", &self.scripts.refund, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["done"] => Ok(RefundResult::Done { remembered: 0 }),
            ["done", remembered] => Ok(RefundResult::Done { remembered: number(remembered)? }),
            ["later"] => Ok(RefundResult::Later),
            ["reload"] => Ok(RefundResult::Reload),
            _ => Err(unexpected(&answer)),
        }
    }

    /// Announces a load. Call it before reading the counters from the catalog. `load` is any unique text.
    pub async fn announce(&self, tenant: &TenantId, load: &str) -> Result<AnnouncedLoad, QuotaError> {
        let args = [load.to_owned(), ANNOUNCEMENT_S.to_string()];
        let answer = self.ask("redis announce", &self.scripts.announce, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["announced", name, ""] => Ok(AnnouncedLoad { name: (*name).to_owned(), valid_epoch: None }),
            ["announced", name, epoch] => {
                Ok(AnnouncedLoad { name: (*name).to_owned(), valid_epoch: Some(number(epoch)?) })
            }
            _ => Err(unexpected(&answer)),
        }
    }

    pub async fn load(&self, tenant: &TenantId, name: &str, load: Load) -> Result<LoadResult, QuotaError> {
        let args = [
            name.to_owned(),
            load.epoch.to_string(),
            load.used_bytes.to_string(),
            load.limit_bytes.to_string(),
            u8::from(load.has_own_limit).to_string(),
        ];
        let answer = self.ask("redis load", &self.scripts.load, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["loaded", ""] => Ok(LoadResult::Loaded { used_bytes_before: None }),
            ["loaded", before] => Ok(LoadResult::Loaded { used_bytes_before: Some(number(before)?) }),
            ["newer", epoch] => Ok(LoadResult::Newer { epoch: number(epoch)? }),
            ["unannounced"] => Ok(LoadResult::Unannounced),
            _ => Err(unexpected(&answer)),
        }
    }

    async fn ask(
        &self,
        what: &'static str,
        script: &Script,
        tenant: &TenantId,
        args: &[String],
    ) -> Result<Vec<String>, QuotaError> {
        self.faults.around(what, self.call(script, tenant, args)).await
    }

    async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        tenant: &TenantId,
        args: &[String],
    ) -> Result<T, QuotaError> {
        let mut call = script.prepare_invoke();
        for key in keys(&self.prefix, tenant) {
            call.key(key);
        }
        call.arg(&self.catalog_id);
        for arg in args {
            call.arg(arg);
        }
        self.connector.invoke(&call).await
    }
}

/// The keys of a tenant, in the order that the scripts expect. The braces put them into one hash slot. A closing brace
/// in the tenant is encoded, because it would end the hash tag. A brace in the prefix would begin another one.
pub fn keys(prefix: &str, tenant: &TenantId) -> [String; 6] {
    let tenant = tenant.as_str().replace('%', "%25").replace('}', "%7D");
    ["used", "limit", "loaded", "inflight", "refunded", "loading"]
        .map(|name| format!("{prefix}quota:tenant:{{{tenant}}}:{name}"))
}

fn words(answer: &[String]) -> Vec<&str> {
    answer.iter().map(String::as_str).collect()
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, QuotaError> {
    word.parse().map_err(|_| QuotaError::Unavailable(format!("it answered `{word}` instead of a number")))
}

fn unexpected(answer: &[String]) -> QuotaError {
    QuotaError::Unavailable(format!("unexpected answer: {}", answer.join(" ")))
}
