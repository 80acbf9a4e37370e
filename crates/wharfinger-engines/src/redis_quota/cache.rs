//! A cache on the same Redis for all processes. Readers decide whether a value is still valid.

use std::time::Duration;

use redis::Script;

use super::QuotaError;
use super::connect::Connector;
use wharfinger_calls::faults::Faults;

pub struct RedisCache {
    connector: Connector,
    catalog_id: String,
    prefix: String,
    faults: Faults,
    read: Script,
    store: Script,
}

impl RedisCache {
    /// Parses the URL. Connects at the first call.
    pub fn new(url: &str, catalog_id: String, faults: Faults) -> Result<RedisCache, QuotaError> {
        Ok(RedisCache {
            connector: Connector::new(url)?,
            catalog_id,
            prefix: String::new(),
            faults,
            read: Script::new("return redis.call('GET', KEYS[1])"),
            store: Script::new("redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1"),
        })
    }

    /// Sets how long to wait for an answer before the server counts as unavailable.
    pub fn with_timeout(self, timeout: Duration) -> RedisCache {
        RedisCache { connector: self.connector.with_timeout(timeout), ..self }
    }

    /// Sets what all keys start with.
    pub fn with_prefix(self, prefix: &str) -> RedisCache {
        RedisCache { prefix: prefix.to_owned(), ..self }
    }

    fn key(&self, name: &str) -> String {
        format!("{}wharfinger:cache:{}:{name}", self.prefix, self.catalog_id)
    }

    pub async fn read(&self, name: &str) -> Result<Option<String>, QuotaError> {
        let mut call = self.read.prepare_invoke();
        call.key(self.key(name));
        self.faults.around("redis cache read", self.connector.invoke(&call)).await
    }

    pub async fn store(&self, name: &str, value: &str, ms: i64) -> Result<(), QuotaError> {
        let mut call = self.store.prepare_invoke();
        call.key(self.key(name)).arg(value).arg(ms.max(1));
        let _: i64 = self.faults.around("redis cache store", self.connector.invoke(&call)).await?;
        Ok(())
    }
}
