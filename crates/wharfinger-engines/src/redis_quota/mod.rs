//! Quotas on Redis: a fast gate in front of the catalog, whose counters can always be loaded anew. Every change is a
//! script, so that none happens by halves; each can be sent twice without harm, and none guesses what is missing.

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
    /// No answer, or none that helps: what was asked may have happened. Later.
    #[error("Redis does not answer: {0}")]
    Away(String),
    /// A person has to do something about it.
    #[error("Redis cannot be used: {0}")]
    Refused(String),
}

impl From<InjectedFault> for QuotaError {
    fn from(injected: InjectedFault) -> Self {
        QuotaError::Away(injected.to_string())
    }
}

/// What Redis says to a file that wants in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// It fits and is counted, under this epoch.
    Counted {
        epoch: i64,
        limit_bytes: u64,
    },
    Full {
        used_bytes: u64,
        limit_bytes: u64,
    },
    /// Redis has lost count.
    Reload,
}

/// What Redis says to a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refunded {
    /// Applied, now or before, or contained in what was loaded. So many are remembered, where it was now.
    Done { remembered: u64 },
    /// Redis counts from an older epoch: a load is on its way.
    Later,
    /// Redis has lost count.
    Reload,
}

/// A load that Redis expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    pub name: String,
    /// What is counted under now, if that is sound.
    pub sound_epoch: Option<i64>,
}

/// What Redis says to a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// What was counted before, where that was sound.
    Yes { used_bytes_before: Option<u64> },
    /// Somebody loaded a later epoch.
    Newer { epoch: i64 },
    /// The server went down, or was flushed, since it was told of this load.
    Unannounced,
}

/// What Redis is to count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub epoch: i64,
    pub used_bytes: u64,
    pub limit_bytes: u64,
    /// Otherwise the limit is the default, which every reservation names.
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

/// A script of ours, as the server gets it: after what all of them begin with.
macro_rules! script {
    ($name:literal) => {
        concat!(include_str!("scripts/state.lua"), "\n", include_str!(concat!("scripts/", $name, ".lua")))
    };
}

/// The text of the script that counts a file, for whoever measures the server by itself.
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

/// A load that has not come by then has to be announced again.
const ANNOUNCED_FOR_S: u32 = 60;

pub struct RedisQuota {
    connector: Connector,
    scripts: Scripts,
    catalog_id: String,
    faults: Faults,
}

impl RedisQuota {
    /// Reads the URL; nothing is connected yet. What another catalog counts on the same server is not taken for ours.
    pub fn new(url: &str, catalog_id: String, faults: Faults) -> Result<RedisQuota, QuotaError> {
        Ok(RedisQuota { connector: Connector::new(url)?, scripts: Scripts::new(), catalog_id, faults })
    }

    /// Waits so long for an answer before the server counts as away.
    pub fn with_patience(self, patience: Duration) -> RedisQuota {
        RedisQuota { connector: self.connector.with_patience(patience), ..self }
    }

    /// The server's address, without secrets.
    pub fn address(&self) -> &str {
        self.connector.address()
    }

    /// Whether the server answers, is one we can use, and lets us do all that the scripts do. Answers its version.
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

    /// Whether the server answers. It writes nothing there, so that strangers may make us ask.
    pub async fn ping(&self) -> Result<(), QuotaError> {
        self.faults.around("redis ping", self.connector.ping()).await
    }

    /// `attempt` names this try alone. One that was released is not tried again: its release may still be under way, and
    /// would take back what the second try counted.
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

    /// What these tries counted is in the catalog, and needs no remembering.
    pub async fn settle(&self, tenant: &TenantId, attempts: &[Uuid]) -> Result<(), QuotaError> {
        let ids: Vec<String> = attempts.iter().map(Uuid::to_string).collect();
        self.ask("redis settle", &self.scripts.settle, tenant, &ids).await.map(|_| ())
    }

    /// Only for a try that, for certain, brought nothing into the catalog.
    pub async fn release(&self, tenant: &TenantId, attempt: Uuid) -> Result<(), QuotaError> {
        self.ask("redis release", &self.scripts.release, tenant, &[attempt.to_string()]).await.map(|_| ())
    }

    pub async fn refund(
        &self,
        tenant: &TenantId,
        line: &str,
        bytes: u64,
        epoch: i64,
    ) -> Result<Refunded, QuotaError> {
        let args = [line.to_owned(), bytes.to_string(), epoch.to_string()];
        let answer = self.ask("redis refund", &self.scripts.refund, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["done"] => Ok(Refunded::Done { remembered: 0 }),
            ["done", remembered] => Ok(Refunded::Done { remembered: number(remembered)? }),
            ["later"] => Ok(Refunded::Later),
            ["reload"] => Ok(Refunded::Reload),
            _ => Err(unexpected(&answer)),
        }
    }

    /// Before the catalog is asked what to count from. `load` is any text that nobody else uses.
    pub async fn announce(&self, tenant: &TenantId, load: &str) -> Result<Announced, QuotaError> {
        let args = [load.to_owned(), ANNOUNCED_FOR_S.to_string()];
        let answer = self.ask("redis announce", &self.scripts.announce, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["announced", name, ""] => Ok(Announced { name: (*name).to_owned(), sound_epoch: None }),
            ["announced", name, epoch] => {
                Ok(Announced { name: (*name).to_owned(), sound_epoch: Some(number(epoch)?) })
            }
            _ => Err(unexpected(&answer)),
        }
    }

    pub async fn load(&self, tenant: &TenantId, name: &str, load: Load) -> Result<Loaded, QuotaError> {
        let args = [
            name.to_owned(),
            load.epoch.to_string(),
            load.used_bytes.to_string(),
            load.limit_bytes.to_string(),
            u8::from(load.has_own_limit).to_string(),
        ];
        let answer = self.ask("redis load", &self.scripts.load, tenant, &args).await?;
        match words(&answer).as_slice() {
            ["loaded", ""] => Ok(Loaded::Yes { used_bytes_before: None }),
            ["loaded", before] => Ok(Loaded::Yes { used_bytes_before: Some(number(before)?) }),
            ["newer", epoch] => Ok(Loaded::Newer { epoch: number(epoch)? }),
            ["unannounced"] => Ok(Loaded::Unannounced),
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
        for key in keys(tenant) {
            call.key(key);
        }
        call.arg(&self.catalog_id);
        for arg in args {
            call.arg(arg);
        }
        self.connector.invoke(&call).await
    }
}

/// The keys of a tenant, in the order that the scripts know. Braces make them share a hash slot; a tenant's own
/// closing brace would end them early.
pub fn keys(tenant: &TenantId) -> [String; 6] {
    let tenant = tenant.as_str().replace('%', "%25").replace('}', "%7D");
    ["used", "limit", "loaded", "inflight", "refunded", "loading"]
        .map(|name| format!("quota:tenant:{{{tenant}}}:{name}"))
}

fn words(answer: &[String]) -> Vec<&str> {
    answer.iter().map(String::as_str).collect()
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, QuotaError> {
    word.parse().map_err(|_| QuotaError::Away(format!("it answered {word:?} where a number belongs")))
}

fn unexpected(answer: &[String]) -> QuotaError {
    QuotaError::Away(format!("it answered {answer:?}"))
}
