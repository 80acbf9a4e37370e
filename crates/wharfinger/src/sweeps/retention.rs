//! Fault: old rows that are no longer needed and would accumulate without limit. Removes them in steps. An error stops one kind
//! of rows, and the others continue.

use wharfinger_catalog::{Catalog, CatalogError, Destination};
use wharfinger_lifecycle::UnixMs;

use super::SweepLease;
use crate::core::Core;
use crate::telemetry::metric;

const ROWS_PER_STEP: usize = 500;
/// The poller also finds checks that were not sent to the broker.
const BROKER_LINES_KEPT_MS: i64 = 86_400_000;
/// Lines for an archive that no process reads are removed after this.
const ARCHIVE_LINES_KEPT_MS: i64 = 30 * 86_400_000;
/// How long a revoked or expired service key stays in the list.
const ENDED_KEYS_KEPT_MS: i64 = 90 * 86_400_000;

/// A kind of rows, and the time before which they are too old.
#[derive(Clone, Copy)]
enum Expired {
    Deletions(UnixMs),
    AuditLines(UnixMs),
    QueueTenants,
    ServiceKeys(UnixMs),
    /// Lines of the outbox. They are never sent if they are removed here.
    Lines(Destination, UnixMs),
    ZeroCounters,
}

impl Expired {
    fn table(self) -> &'static str {
        match self {
            Expired::Deletions(_) => "deletion_log",
            Expired::AuditLines(_) => "audit_log",
            Expired::QueueTenants => "queue_tenants",
            Expired::ServiceKeys(_) => "service_keys",
            Expired::Lines(..) => "outbox",
            Expired::ZeroCounters => "file_counts",
        }
    }

    /// Removes at most one step of rows and returns their number.
    async fn remove_some(self, catalog: &Catalog) -> Result<u64, CatalogError> {
        match self {
            Expired::Deletions(before) => catalog.purge_deletion_log(before, ROWS_PER_STEP).await,
            Expired::AuditLines(before) => catalog.purge_audit_log(before, ROWS_PER_STEP).await,
            Expired::QueueTenants => catalog.purge_queue_tenants(ROWS_PER_STEP).await,
            Expired::ServiceKeys(before) => catalog.purge_service_keys(before, ROWS_PER_STEP).await,
            Expired::Lines(destination, before) => {
                catalog.purge_old_outbox_lines(destination, before, ROWS_PER_STEP).await
            }
            Expired::ZeroCounters => catalog.purge_zero_counters(ROWS_PER_STEP).await,
        }
    }

    fn count(self, removed: u64) {
        match self {
            Expired::Lines(destination, _) => metric::outbox_lines_dropped(destination, removed),
            _ => metric::rows_expired(self.table(), removed),
        }
    }

    /// Removes all expired rows and returns their number.
    async fn remove(self, core: &Core, lease: &SweepLease) -> u64 {
        let mut all = 0;
        while lease.should_continue(core) {
            match self.remove_some(&lease.catalog).await {
                Ok(removed) => {
                    self.count(removed);
                    all += removed;
                    if removed < ROWS_PER_STEP as u64 {
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

/// Removes rows that are cheap to find. Called by every run of the upload-window sweep.
pub(super) async fn remove_expired(core: &Core, lease: &SweepLease) {
    let before = |kept_ms: i64| core.clock.now().saturating_sub(kept_ms);
    Expired::Deletions(before(core.settings.sweeps.deletion_log_ms)).remove(core, lease).await;
    Expired::AuditLines(before(core.settings.sweeps.audit_log_ms)).remove(core, lease).await;
    Expired::QueueTenants.remove(core, lease).await;
    Expired::ServiceKeys(before(ENDED_KEYS_KEPT_MS)).remove(core, lease).await;
    Expired::Lines(Destination::Broker, before(BROKER_LINES_KEPT_MS)).remove(core, lease).await;
    let dropped =
        Expired::Lines(Destination::Archive, before(ARCHIVE_LINES_KEPT_MS)).remove(core, lease).await;
    if dropped > 0 {
        tracing::error!(
            lines = dropped,
            action = "dropped",
            "events for the archive were dropped because they were not read in time"
        );
    }
    if let Err(error) = lease.catalog.recheck_unreadable().await {
        tracing::warn!(error = %error, "cannot recheck unreadable rows");
    }
}

/// Removes rows that need a scan of their table. Called by the orphan cleanup.
pub(super) async fn remove_empty(core: &Core, lease: &SweepLease) {
    Expired::ZeroCounters.remove(core, lease).await;
    let before = core.clock.now().saturating_sub(core.settings.tombstone_ms);
    let mut after = None;
    while lease.should_continue(core) {
        match lease.catalog.purge_empty_batches(after, before, ROWS_PER_STEP).await {
            Ok((removed, next)) => {
                metric::rows_expired("upload_batches", removed);
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
