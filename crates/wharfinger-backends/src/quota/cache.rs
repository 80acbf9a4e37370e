//! What was worked out lately, kept by the same Redis for all processes. An entry holds under the marks it was worked out
//! under: whoever changes something raises a mark, and what somebody is still working out by then will not hold.

use redis::Script;

use super::QuotaError;
use super::connect::Connector;
use crate::faults::Faults;

pub struct RedisCache {
    connector: Connector,
    catalog_id: String,
    faults: Faults,
    read: Script,
    keep: Script,
    touch: Script,
}

/// An entry and its marks, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub entry: Option<String>,
    pub marks: Vec<String>,
}

impl RedisCache {
    /// Reads the URL; nothing is connected yet.
    pub fn new(url: &str, catalog_id: String, faults: Faults) -> Result<RedisCache, QuotaError> {
        Ok(RedisCache {
            connector: Connector::new(url)?,
            catalog_id,
            faults,
            read: Script::new(include_str!("scripts/cache_read.lua")),
            keep: Script::new(include_str!("scripts/cache_keep.lua")),
            touch: Script::new(include_str!("scripts/cache_touch.lua")),
        })
    }

    /// All in one hash slot, so that one script can read them.
    fn key(&self, kind: &str, name: &str) -> String {
        format!("{{wharfinger-cache:{}}}:{kind}:{name}", self.catalog_id)
    }

    pub async fn read(&self, entry: &str, marks: &[String]) -> Result<Kept, QuotaError> {
        let mut call = self.read.prepare_invoke();
        call.key(self.key("entry", entry));
        for mark in marks {
            call.key(self.key("mark", mark));
        }
        let values: Vec<Option<String>> =
            self.faults.around("redis cache read", self.connector.invoke(&call)).await?;
        let mut values = values.into_iter();
        let entry = values.next().flatten();
        Ok(Kept { entry, marks: values.map(|mark| mark.unwrap_or_else(|| "0".to_owned())).collect() })
    }

    pub async fn keep(&self, entry: &str, value: &str, ms: i64) -> Result<(), QuotaError> {
        let mut call = self.keep.prepare_invoke();
        call.key(self.key("entry", entry)).arg(value).arg(ms.max(1));
        let _: i64 = self.faults.around("redis cache keep", self.connector.invoke(&call)).await?;
        Ok(())
    }

    /// Raises marks, which are kept for so long.
    pub async fn touch(&self, marks: &[String], ms: i64) -> Result<(), QuotaError> {
        let mut call = self.touch.prepare_invoke();
        for mark in marks {
            call.key(self.key("mark", mark));
        }
        call.arg(ms.max(1));
        let _: i64 = self.faults.around("redis cache touch", self.connector.invoke(&call)).await?;
        Ok(())
    }
}
