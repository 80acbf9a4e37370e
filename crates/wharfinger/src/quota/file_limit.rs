//! The limit on files per tenant, tombstones included. A tombstone (the row of a deleted file) is kept for a while
//! without a charge, so without this limit uploads that are deleted at once could fill the catalog. Files are counted
//! every few seconds, outside of the transaction: uploads to several processes may exceed the limit until the next
//! count. The limit on bytes is checked for each upload.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use wharfinger_catalog::{CatalogError, Scope};
use wharfinger_lifecycle::id::TenantId;

use crate::core::Core;
use crate::core::VerbError;

/// A count is reused for at least this long.
const COUNT_VALID_FOR: Duration = Duration::from_secs(10);
/// The same for a tenant at its limit, which may have deleted files.
const COUNT_VALID_FOR_AT_LIMIT: Duration = Duration::from_secs(1);
/// In one process, counting a tenant takes at most this share of the time: one hundredth.
const SHARE_OF_TIME: u32 = 100;
/// Cached counts. Beyond it the cache is cleared.
const TENANTS_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct FileCounts(Mutex<HashMap<TenantId, FileCount>>);

#[derive(Clone, Copy, Debug)]
struct FileCount {
    at: Instant,
    took: Duration,
    /// Including the files admitted since the count.
    files: u64,
    tombstones: u64,
}

impl FileCount {
    /// The limit for files, and twice that for files and tombstones together.
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
        let valid_for = if is_at_limit { COUNT_VALID_FOR_AT_LIMIT } else { COUNT_VALID_FOR };
        self.at.elapsed() >= valid_for.max(self.took * SHARE_OF_TIME)
    }
}

impl FileCounts {
    fn known(&self) -> MutexGuard<'_, HashMap<TenantId, FileCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Approximately how many files a tenant has.
    pub async fn files(&self, core: &Core, tenant: &TenantId) -> Result<u64, CatalogError> {
        let known = self.known().get(tenant).copied();
        match known {
            Some(counted) if !counted.is_old(false) => Ok(counted.files),
            _ => Ok(self.count(core, tenant).await?.files),
        }
    }

    /// Admits `more` files of a tenant, or returns the exceeded limit.
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

    async fn count(&self, core: &Core, tenant: &TenantId) -> Result<FileCount, CatalogError> {
        let at = Instant::now();
        let counts = core.catalog.status_counts(&Scope::Tenant(tenant.clone())).await?;
        let files = counts.by_status.iter().map(|(_, files)| files).sum();
        let tombstones = core.catalog.tombstone_count(tenant).await?;
        let counted = FileCount { at, took: at.elapsed(), files, tombstones };
        let mut known = self.known();
        if known.len() >= TENANTS_MAX {
            known.clear();
        }
        known.insert(tenant.clone(), counted);
        Ok(counted)
    }
}
