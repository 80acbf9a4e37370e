//! The right to run a scheduled sweep. Its row in the catalog holds the next time, a lease and a fence: of many
//! processes one claims it when it is due, and whoever loses the lease writes nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{Catalog, Dialect, Fence};
use wharfinger_lifecycle::id::FileId;

use super::ByHand;
use crate::core::Core;
use crate::core::VerbError;
use crate::uploads::Uploads;
use crate::uploads::check::{CheckOutcome, ExpiryRule, check_many, foresee, may_only_reclaim};

/// How long a process that died keeps the others from its sweep.
pub const LEASE_MS: i64 = 30_000;
const EXTEND_EVERY_MS: i64 = LEASE_MS / 3;
/// At one item for so long, a sweep is taken to hang.
const HUNG_AFTER_MS: i64 = 1_800_000;

/// The lease of a sweep, and the catalog to write to while it runs.
pub struct SweepLease {
    pub catalog: Catalog,
    /// When it last got something done, and how much so far.
    progress_at: AtomicI64,
    items: Arc<AtomicU64>,
    is_dry_run: bool,
    /// Cancelled when nothing new is to be begun.
    stop: CancellationToken,
}

/// How many files are ended in one transaction. On SQLite all who write wait for it: fewer of them, more often.
pub(super) fn page_files(core: &Core) -> usize {
    match core.catalog.dialect() {
        Dialect::Sqlite => 50,
        Dialect::Postgres => 200,
    }
}

impl SweepLease {
    /// Outside the schedule and beside the process that holds the lease: for what is fenced row by row, or asked for by a person.
    pub fn by_hand(core: &Core) -> SweepLease {
        SweepLease {
            catalog: core.catalog.clone(),
            progress_at: AtomicI64::new(core.clock.now()),
            items: Arc::default(),
            is_dry_run: false,
            stop: CancellationToken::new(),
        }
    }

    pub fn under(core: &Core, fence: Fence) -> SweepLease {
        SweepLease { catalog: core.catalog.fenced(fence), ..SweepLease::by_hand(core) }
    }

    /// To find everything and change nothing: what would write is refused.
    pub fn dry(core: &Core) -> SweepLease {
        SweepLease { catalog: core.catalog.read_only(), is_dry_run: true, ..SweepLease::by_hand(core) }
    }

    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// The same, ending after the item that is under way.
    pub fn until(self, stop: &CancellationToken) -> SweepLease {
        SweepLease { stop: stop.clone(), ..self }
    }

    /// The same, as a person wants it to be watched and ended.
    pub(super) fn of(self, by_hand: &ByHand) -> SweepLease {
        SweepLease { items: by_hand.items.clone(), ..self.until(&by_hand.stop) }
    }

    /// Asked before each item: false if the sweep is to end here. One that hangs at an item does not come to ask, and
    /// does not keep its lease for ever.
    pub(super) fn goes_on(&self, core: &Core) -> bool {
        self.progress_at.store(core.clock.now(), Ordering::Relaxed);
        self.items.fetch_add(1, Ordering::Relaxed);
        !self.is_cut_short()
    }

    /// Checks files whose time has come, each with its own outcome; a dry run only foresees it.
    pub(super) async fn check_files(
        &self,
        uploads: &Uploads,
        ids: &[FileId],
        actor: &str,
        rule: ExpiryRule,
    ) -> Result<Vec<(FileId, Result<CheckOutcome, VerbError>)>, VerbError> {
        let core = &uploads.core;
        let mut all = Vec::with_capacity(ids.len());
        // What takes questions to the store is done one by one, and progress is shown after each.
        let together = if !self.is_dry_run && may_only_reclaim(core) { ids.len().max(1) } else { 1 };
        for some in ids.chunks(together) {
            if !self.goes_on(core) {
                break;
            }
            self.items.fetch_add(some.len() as u64 - 1, Ordering::Relaxed);
            match self.is_dry_run {
                false => all.extend(Box::pin(check_many(uploads, &self.catalog, some, actor, rule)).await?),
                true => all.push((some[0], foresee(core, some[0], rule).await)),
            }
        }
        Ok(all)
    }

    pub(super) fn is_cut_short(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Extends the lease while the sweep gets on; ends when it is lost or the sweep hangs.
    pub(super) async fn keep(&self, core: &Core, name: &'static str) -> VerbError {
        loop {
            let now = core.clock.now();
            core.clock.sleep_until(now.saturating_add(EXTEND_EVERY_MS)).await;
            let now = core.clock.now();
            if now - self.progress_at.load(Ordering::Relaxed) > HUNG_AFTER_MS {
                tracing::error!(job = name, "no progress for 30 min, releasing the lease");
                return VerbError::Unavailable("the sweep hung at one item".into());
            }
            match self.catalog.extend_sweep(now.saturating_add(LEASE_MS)).await.map_err(VerbError::from) {
                Ok(()) => {}
                Err(VerbError::TakenOver) => return VerbError::TakenOver,
                // The catalog may be back before the lease is over; if not, the fence holds.
                Err(error) => {
                    tracing::warn!(job = name, error = ?error, "a sweep's lease could not be extended")
                }
            }
        }
    }
}
