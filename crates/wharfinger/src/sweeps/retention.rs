//! Fault: rows that nobody needs any more and that would grow for ever. Removes them in steps; an error ends one kind, and
//! the others go on.

use wharfinger_catalog::{Catalog, CatalogError, Destination};
use wharfinger_lifecycle::UnixMs;

use super::SweepLease;
use crate::core::Core;
use crate::telemetry::metric;

const ROWS_PER_STEP: usize = 500;
/// Checks that the broker did not take are found by the poller as well.
const BROKER_LINES_KEPT_MS: i64 = 86_400_000;
/// An archive that is switched off, or whose process is gone, keeps nothing waiting for longer.
const ARCHIVE_LINES_KEPT_MS: i64 = 30 * 86_400_000;

/// Rows of one kind, and before which time they are too old.
#[derive(Clone, Copy)]
enum Expired {
    Deletions(UnixMs),
    QueueTenants,
    /// Lines of the outbox: what they should have told is lost, where nothing else tells it.
    Lines(Destination, UnixMs),
    ZeroCounters,
}

impl Expired {
    fn table(self) -> &'static str {
        match self {
            Expired::Deletions(_) => "deletion_log",
            Expired::QueueTenants => "queue_tenants",
            Expired::Lines(..) => "outbox",
            Expired::ZeroCounters => "file_counts",
        }
    }

    /// Removes at most a step; answers how many went.
    async fn remove_some(self, catalog: &Catalog) -> Result<u64, CatalogError> {
        match self {
            Expired::Deletions(before) => catalog.purge_deletion_log(before, ROWS_PER_STEP).await,
            Expired::QueueTenants => catalog.purge_queue_tenants(ROWS_PER_STEP).await,
            Expired::Lines(destination, before) => {
                catalog.purge_old_lines(destination, before, ROWS_PER_STEP).await
            }
            Expired::ZeroCounters => catalog.purge_zero_counters(ROWS_PER_STEP).await,
        }
    }

    fn count(self, gone: u64) {
        match self {
            Expired::Lines(destination, _) => metric::outbox_lines_dropped(destination, gone),
            _ => metric::rows_expired(self.table(), gone),
        }
    }

    /// Removes all; answers how many went.
    async fn remove(self, core: &Core, lease: &SweepLease) -> u64 {
        let mut all = 0;
        while lease.goes_on(core) {
            match self.remove_some(&lease.catalog).await {
                Ok(gone) => {
                    self.count(gone);
                    all += gone;
                    if gone < ROWS_PER_STEP as u64 {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(table = self.table(), error = %error, "cannot remove expired rows");
                    break;
                }
            }
        }
        all
    }
}

/// What is cheap to find, with every run of the sweep that calls it.
pub(super) async fn remove_expired(core: &Core, lease: &SweepLease) {
    let before = |kept_ms: i64| core.clock.now().saturating_sub(kept_ms);
    Expired::Deletions(before(core.settings.sweeps.deletion_log_ms)).remove(core, lease).await;
    Expired::QueueTenants.remove(core, lease).await;
    Expired::Lines(Destination::Broker, before(BROKER_LINES_KEPT_MS)).remove(core, lease).await;
    let dropped =
        Expired::Lines(Destination::Archive, before(ARCHIVE_LINES_KEPT_MS)).remove(core, lease).await;
    if dropped > 0 {
        tracing::error!(
            lines = dropped,
            action = "dropped",
            "events for the archive were not fetched in time"
        );
    }
    if let Err(error) = lease.catalog.recheck_unreadable().await {
        tracing::warn!(error = %error, "cannot look at unreadable rows again");
    }
}

/// What has to be looked for among rows that stay, once a day.
pub(super) async fn remove_empty(core: &Core, lease: &SweepLease) {
    Expired::ZeroCounters.remove(core, lease).await;
    let before = core.clock.now().saturating_sub(core.settings.tombstone_ms);
    let mut after = None;
    while lease.goes_on(core) {
        match lease.catalog.purge_empty_batches(after, before, ROWS_PER_STEP).await {
            Ok((gone, next)) => {
                metric::rows_expired("upload_batches", gone);
                after = match next {
                    Some(next) => Some(next),
                    None => return,
                };
            }
            Err(error) => {
                tracing::warn!(error = %error, "cannot remove empty batches");
                return;
            }
        }
    }
}
