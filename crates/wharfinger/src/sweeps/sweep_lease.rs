//! The lease of a sweep. The sweep's row in the catalog holds the time of the next run, a lease and a fencing number.
//! Of many processes one claims it when it is due. After another process has claimed it, the catalog rejects the writes
//! of the first (`tests/it/many/sweeps.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{Catalog, Dialect, Fence};
use wharfinger_lifecycle::id::FileId;

use super::ManualRun;
use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::check::{CheckOutcome, ExpiryRule, check_many, predict, reclaims_without_store_check};

/// How long other processes wait for a sweep whose process died.
pub const LEASE_MS: i64 = 30_000;
const EXTEND_EVERY_MS: i64 = LEASE_MS / 3;
/// A sweep without progress for this long releases its lease.
const HUNG_AFTER_MS: i64 = 1_800_000;
/// How many files are checked together if that needs calls to the store.
pub(super) const STORE_CHECKS: usize = 32;

/// The lease of a sweep, and the catalog to write to while it runs.
pub struct SweepLease {
    /// For the repairs. In a dry run it rejects all writes.
    pub catalog: Catalog,
    /// For the lease, the record of the run, and what a scan has found: a dry run writes these too.
    pub(super) records: Catalog,
    /// When the last item was started, and the number of items so far.
    progress_at: AtomicI64,
    items: Arc<AtomicU64>,
    is_dry_run: bool,
    /// Cancelled when no new item is to be started.
    stop: CancellationToken,
}

/// How many files are changed in one transaction. Fewer on SQLite, because all other writers wait for it.
pub(super) fn page_files(core: &Core) -> usize {
    match core.catalog.dialect() {
        Dialect::Sqlite => 50,
        Dialect::Postgres => 200,
    }
}

impl SweepLease {
    /// Runs without the lease, possibly beside the process that holds it. Only the versions and leases of the changed rows
    /// protect its writes.
    pub fn unleased(core: &Core) -> SweepLease {
        SweepLease {
            catalog: core.catalog.clone(),
            records: core.catalog.clone(),
            progress_at: AtomicI64::new(core.clock.now()),
            items: Arc::default(),
            is_dry_run: false,
            stop: CancellationToken::new(),
        }
    }

    pub fn with_fence(core: &Core, fence: Fence) -> SweepLease {
        let catalog = core.catalog.fenced(fence);
        SweepLease { records: catalog.clone(), catalog, ..SweepLease::unleased(core) }
    }

    /// For a dry run. The catalog rejects all repairs.
    pub fn dry_run(core: &Core) -> SweepLease {
        SweepLease::unleased(core).into_dry_run()
    }

    pub(super) fn into_dry_run(self) -> SweepLease {
        SweepLease { catalog: self.catalog.read_only(), is_dry_run: true, ..self }
    }

    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// The same, ending after the current item when `stop` is cancelled.
    pub fn with_stop(self, stop: &CancellationToken) -> SweepLease {
        SweepLease { stop: stop.clone(), ..self }
    }

    /// The same, with the counter and the stop token of a manual run.
    pub(super) fn for_manual_run(self, manual: &ManualRun) -> SweepLease {
        SweepLease { items: manual.items.clone(), ..self.with_stop(&manual.stop) }
    }

    /// Must be called before each item; false if the sweep should end. Each call counts as progress, so a sweep that hangs at
    /// one item loses its lease.
    pub(super) fn should_continue(&self, core: &Core) -> bool {
        self.progress_at.store(core.clock.now(), Ordering::Relaxed);
        self.items.fetch_add(1, Ordering::Relaxed);
        !self.is_stopped()
    }

    /// Checks files and returns an outcome for each. A dry run only predicts the outcomes.
    pub(super) async fn check_files(
        &self,
        uploads: &Uploads,
        ids: &[FileId],
        actor: &str,
        rule: ExpiryRule,
    ) -> Result<Vec<(FileId, Result<CheckOutcome, VerbError>)>, VerbError> {
        let core = &uploads.core;
        let mut all = Vec::with_capacity(ids.len());
        // If checks need calls to the store, they go in small groups, so that each group counts as progress.
        let together = match (self.is_dry_run, reclaims_without_store_check(core)) {
            (true, _) => 1,
            (false, true) => ids.len().max(1),
            (false, false) => STORE_CHECKS,
        };
        for some in ids.chunks(together) {
            if !self.should_continue(core) {
                break;
            }
            self.items.fetch_add(some.len() as u64 - 1, Ordering::Relaxed);
            match self.is_dry_run {
                false => all.extend(Box::pin(check_many(uploads, &self.catalog, some, actor, rule)).await?),
                true => all.push((some[0], predict(core, some[0], rule).await)),
            }
        }
        Ok(all)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Extends the lease while the sweep makes progress. Returns when the lease is lost or the sweep hangs.
    pub(super) async fn extend_until_lost(&self, core: &Core, name: &'static str) -> VerbError {
        loop {
            let now = core.clock.now();
            core.clock.sleep_until(now.saturating_add(EXTEND_EVERY_MS)).await;
            let now = core.clock.now();
            if now - self.progress_at.load(Ordering::Relaxed) > HUNG_AFTER_MS {
                tracing::error!(job = name, "no progress for 30 min, releasing the lease");
                return VerbError::Unavailable("the sweep made no progress for 30 min".into());
            }
            match self.records.extend_sweep(now.saturating_add(LEASE_MS)).await.map_err(VerbError::from) {
                Ok(()) => {}
                Err(VerbError::TakenOver) => return VerbError::TakenOver,
                // The catalog may answer again before the lease expires. If not, the fence blocks further writes.
                Err(error) => {
                    tracing::warn!(job = name, error = %error.with_cause(), "cannot extend the lease of a sweep, trying again")
                }
            }
        }
    }
}
