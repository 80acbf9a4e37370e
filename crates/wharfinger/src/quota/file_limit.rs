//! How many files a tenant may have, and how many tombstones beside them: the row of an ended file, with its history and
//! metadata, is kept for a while and charged to nobody, so that uploads which are deleted at once would fill the catalog. They are counted every few seconds and not in the transaction that makes one, so
//! that uploads at the same moment may go beyond the limit by a few; the limit on bytes never gives way.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use wharfinger_catalog::{CatalogError, Scope};
use wharfinger_lifecycle::id::TenantId;

use crate::core::Core;
use crate::core::VerbError;

/// How long a count is believed, at least.
const COUNTED_FOR: Duration = Duration::from_secs(10);
/// A tenant at its limit is counted again after this: it may have deleted something.
const COUNTED_FOR_AT_LIMIT: Duration = Duration::from_secs(1);
/// Counting takes at most a hundredth of the time.
const SHARE_OF_TIME: u32 = 100;
/// Counts that are kept; beyond it all are counted again.
const TENANTS_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct FileCounts(Mutex<HashMap<TenantId, Counted>>);

#[derive(Clone, Copy, Debug)]
struct Counted {
    at: Instant,
    took: Duration,
    /// With those that were let in since.
    files: u64,
    tombstones: u64,
}

impl Counted {
    /// As many tombstones as files, and so many of both together.
    fn refusal(&self, more: u64, max: u64) -> Option<VerbError> {
        let (rows, rows_max) = (self.files + self.tombstones, max.saturating_mul(2));
        if self.files + more > max {
            Some(VerbError::FileLimit { files: self.files, limit: max })
        } else if rows + more > rows_max {
            Some(VerbError::FileLimit { files: rows, limit: rows_max })
        } else {
            None
        }
    }

    fn is_old(&self, is_at_limit: bool) -> bool {
        let believed = if is_at_limit { COUNTED_FOR_AT_LIMIT } else { COUNTED_FOR };
        self.at.elapsed() >= believed.max(self.took * SHARE_OF_TIME)
    }
}

impl FileCounts {
    fn known(&self) -> MutexGuard<'_, HashMap<TenantId, Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// About how many files a tenant has.
    pub async fn files(&self, core: &Core, tenant: &TenantId) -> Result<u64, CatalogError> {
        let known = self.known().get(tenant).copied();
        match known {
            Some(counted) if !counted.is_old(false) => Ok(counted.files),
            _ => Ok(self.count(core, tenant).await?.files),
        }
    }

    /// Lets so many more files of a tenant in, or says how many it may have.
    pub async fn admit(&self, core: &Core, tenant: &TenantId, more: u64) -> Result<(), VerbError> {
        let max = core.settings.tenant_files_max;
        let known = self.known().get(tenant).copied();
        let counted = match known {
            Some(counted) if !counted.is_old(counted.refusal(more, max).is_some()) => counted,
            _ => self.count(core, tenant).await?,
        };
        if let Some(refusal) = counted.refusal(more, max) {
            return Err(refusal);
        }
        if let Some(counted) = self.known().get_mut(tenant) {
            counted.files += more;
        }
        Ok(())
    }

    async fn count(&self, core: &Core, tenant: &TenantId) -> Result<Counted, CatalogError> {
        let at = Instant::now();
        let counts = core.catalog.status_counts(&Scope::Tenant(tenant.clone())).await?;
        let files = counts.by_status.iter().map(|(_, files)| files).sum();
        let tombstones = core.catalog.tombstone_count(tenant).await?;
        let counted = Counted { at, took: at.elapsed(), files, tombstones };
        let mut known = self.known();
        if known.len() >= TENANTS_MAX {
            known.clear();
        }
        known.insert(tenant.clone(), counted);
        Ok(counted)
    }
}
