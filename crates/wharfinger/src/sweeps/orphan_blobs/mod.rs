//! Fault: an object without a live row (a late PUT, a manual change or a bug), and a row whose object is missing. Compares the
//! whole store with the catalog, queues cleanups for orphans, and reports missing objects. Nothing is deleted if the store
//! may belong to another catalog, or if the share of orphans is above a limit. A dry run keeps its findings to be shown. A
//! real scan deletes only what it has found itself.

mod compare;
mod ranges;
mod scan;
mod scan_store;

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::{OrphanScan, ScanRange, ScanTotals, Scope};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::retry::Backoff;

use super::orphan_cleanup::NAME as JOB;
use super::{SweepLease, pending_cleanups, unfinished_uploads};
use crate::core::Core;
use crate::core::VerbError;
use crate::store::{self, ClaimError, StoreState};
use scan::Scan;
use scan_store::{SAMPLES_MAX, ScanStore, or_taken_over};

/// A stopped scan is resumed during this time. After that, too much may have changed.
const RESUME_MS_MAX: i64 = 86_400_000;
const ORPHANS_PER_STEP: usize = 500;

/// How a scan reads the store.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    pub objects_per_page: usize,
    /// Progress is stored after this many pages.
    pub pages_per_checkpoint: u32,
    /// The most ranges for each of `uploads/` and `derived/`.
    pub ranges_per_folder_max: usize,
    /// How many ranges are scanned concurrently.
    pub ranges_at_once: usize,
    /// The pause before a failed page is tried again.
    pub pause: Backoff,
}

impl Default for ScanOptions {
    fn default() -> Self {
        let pause = Backoff { base_ms: 200, cap_ms: 5_000 };
        ScanOptions {
            objects_per_page: 1_000,
            pages_per_checkpoint: 10,
            ranges_per_folder_max: 8,
            ranges_at_once: 4,
            pause,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OrphanBlobsResult)]
pub struct Outcome {
    /// Objects and unfinished multipart uploads without a live file in the catalog.
    #[schema(example = 7)]
    pub total: u64,
    /// Orphans that were deleted when the run ended.
    #[schema(example = 7)]
    pub deleted: u64,
    /// Orphans whose delete failed, and parts of the store that could not be compared. Orphans that another process is
    /// deleting are not counted here or in `deleted`.
    #[schema(example = 0)]
    pub errors: u64,
    /// Objects and unfinished uploads of other programs in our folders. They have no row, and their key does not have
    /// our format or they are older than our marker. Sweeps do not delete them.
    #[schema(example = 0)]
    pub foreign: u64,
    /// Why nothing was deleted although something was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "812 of 1000 objects seem to be orphans, more than 10 %")]
    pub stopped: Option<String>,
    /// In a dry run: some of the keys that would be deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368"]))]
    pub samples: Vec<String>,
    #[serde(skip)]
    pub listed: u64,
    /// Live files whose object is missing.
    #[serde(skip)]
    pub missing: u64,
    /// Objects that looked like orphans but had a row when they were checked again.
    #[serde(skip)]
    pub skipped: u64,
}

pub async fn run(core: &Core, lease: &SweepLease) -> Result<Outcome, VerbError> {
    run_with(core, lease, ScanOptions::default()).await
}

/// Objects first, then unfinished multipart uploads. An error in the first does not prevent the second.
pub async fn run_with(core: &Core, lease: &SweepLease, options: ScanOptions) -> Result<Outcome, VerbError> {
    let marked_at = check_store(core).await?;
    let scanned = scan(core, lease, options, marked_at).await;
    let is_over = match &scanned {
        Err(error) => matches!(error, VerbError::TakenOver | VerbError::StoreInDoubt(_)),
        // Above the limit nothing is deleted.
        Ok(outcome) => outcome.stopped.is_some(),
    };
    if is_over || lease.is_stopped() {
        return scanned;
    }
    let uploads = unfinished_uploads::abort_all(core, lease, marked_at).await;
    let mut outcome = scanned?;
    match uploads {
        Ok(uploads) => {
            outcome.foreign += uploads.foreign;
            outcome.total += uploads.found;
            outcome.deleted += uploads.aborted;
            outcome.errors += uploads.failed;
        }
        Err(error) => {
            outcome.errors += 1;
            tracing::warn!(job = JOB, error = %error.with_cause(), "cannot check unfinished uploads");
        }
    }
    Ok(outcome)
}

/// Checks that the store belongs to this catalog and is not ahead of it. Called before a scan and again before deletes.
/// Returns the time of our marker.
async fn check_store(core: &Core) -> Result<UnixMs, VerbError> {
    let checked = match store::check(&core.catalog, &core.store_ref()).await {
        Ok(StoreState::Ours) => store::marked_at(&core.store_ref()).await.map(Ok),
        other => other.map(Err),
    };
    match checked {
        Ok(Ok(marked_at)) => Ok(marked_at),
        Ok(Err(state)) => Err(VerbError::StoreInDoubt(store_problem(state))),
        Err(ClaimError::Catalog(error)) => Err(error.into()),
        Err(ClaimError::Folder(_, error) | ClaimError::Blobs(_, error)) => Err(error.into()),
        Err(error) => Err(VerbError::StoreInDoubt(error.to_string())),
    }
}

fn store_problem(state: StoreState) -> String {
    match state {
        StoreState::Restored { catalog, store } => format!(
            "The store's counter is {store}, the catalog's is {catalog}. The catalog seems to be restored from a backup, so \
             it may not know live objects. If the catalog is right, run `wharfinger doctor --accept-store`."
        ),
        StoreState::New | StoreState::Ours => "The store has no marker of this catalog yet.".into(),
    }
}

async fn scan(
    core: &Core,
    lease: &SweepLease,
    options: ScanOptions,
    marked_at: UnixMs,
) -> Result<Outcome, VerbError> {
    let started = resume_or_start(core, lease, options, marked_at).await?;
    let store = ScanStore { catalog: &lease.records, scan: started.id.clone() };
    let ranges = started.ranges.len() as u64;
    let failed_ranges = Scan { core, lease, options, marked_at, store }.run(started.ranges).await?;
    if failed_ranges == ranges {
        return Err(VerbError::Unavailable("no part of the store could be compared; see the log".into()));
    }
    let Some(scanned) = lease.records.unfinished_scan().await?.filter(|open| open.id == started.id) else {
        return Err(VerbError::TakenOver);
    };
    let mut totals = ScanTotals::default();
    scanned.ranges.iter().for_each(|range| totals += range.totals);
    let mut outcome = Outcome {
        total: totals.found,
        errors: failed_ranges,
        foreign: totals.foreign,
        listed: totals.listed,
        missing: totals.missing,
        ..Outcome::default()
    };
    if lease.is_stopped() {
        return Ok(outcome);
    }
    if lease.is_dry_run() {
        outcome.stopped = too_many(core, totals);
        outcome.samples = lease.records.found_keys(&scanned.id, SAMPLES_MAX).await?;
        or_taken_over(lease.records.end_scan(&scanned.id, None, core.clock.now()).await)?;
        return Ok(outcome);
    }
    if let Some(why) = too_many(core, totals) {
        tracing::error!(
            job = JOB,
            listed = totals.listed,
            found = totals.found,
            action = "stopped",
            error = why,
            "too many orphans, nothing is deleted"
        );
        or_taken_over(lease.catalog.end_scan(&scanned.id, Some(why.clone()), core.clock.now()).await)?;
        core.wakeups.notification.notify_one();
        outcome.stopped = Some(why);
        return Ok(outcome);
    }
    delete_found(core, lease, &scanned.id, &mut outcome, totals).await?;
    tracing::info!(
        job = JOB,
        listed = totals.listed,
        orphans = outcome.total,
        missing = totals.missing,
        foreign = totals.foreign,
        deleted = outcome.deleted,
        errors = outcome.errors,
        "store compared with the catalog"
    );
    Ok(outcome)
}

/// Resumes a stopped scan if it has the same store and settings, or starts a new one. A dry run and a real run never
/// continue each other, and a dry run always starts a new one.
async fn resume_or_start(
    core: &Core,
    lease: &SweepLease,
    options: ScanOptions,
    marked_at: UnixMs,
) -> Result<OrphanScan, VerbError> {
    let now = core.clock.now();
    let store = core.catalog.fact("store").await?.unwrap_or_default();
    let grace_ms = core.settings.sweeps.orphan_grace_ms;
    let premise = format!("{store} {} since {marked_at} grace {grace_ms}", core.settings.blobs);
    if !lease.is_dry_run()
        && let Some(open) = lease.records.unfinished_scan().await?
        && !open.is_dry_run
        && open.premise == premise
        && now.saturating_sub(open.started_at) < RESUME_MS_MAX
    {
        return Ok(open);
    }
    let ranges = cut(core, options).await?;
    Ok(lease.records.begin_scan(&premise, lease.is_dry_run(), ranges, now).await?)
}

async fn cut(core: &Core, options: ScanOptions) -> Result<Vec<ScanRange>, VerbError> {
    let ranges_per_folder_max =
        if core.blobs.can_start_listing_at_key() { options.ranges_per_folder_max } else { 1 };
    let sample = core.catalog.sample_keys().await?;
    Ok(ranges::cut(&sample, ranges_per_folder_max, options.objects_per_page))
}

/// Whether the share of orphans is above the limit. Parts of the store that failed count neither as listed nor as orphans.
fn too_many(core: &Core, totals: ScanTotals) -> Option<String> {
    let percent = core.settings.sweeps.orphan_limit_percent?;
    let is_over = u128::from(totals.found) * 100 > u128::from(totals.listed) * u128::from(percent);
    is_over.then(|| {
        format!(
            "{} of {} objects seem to be orphans, more than {percent} % (ORPHAN_DELETE_LIMIT_PERCENT). Nothing was \
             deleted. Is this the right catalog? GET /api/v2/uploads/orphans shows some of them. If they can be deleted, \
             run the sweep once with a higher limit, or 0 for no limit",
            totals.found, totals.listed
        )
    })
}

/// Queues cleanups for all orphans, ends the scan, and runs the cleanups.
async fn delete_found(
    core: &Core,
    lease: &SweepLease,
    scan: &str,
    outcome: &mut Outcome,
    totals: ScanTotals,
) -> Result<(), VerbError> {
    if totals.found > 0 {
        check_store(core).await?;
    }
    let mut after = String::new();
    loop {
        if !lease.should_continue(core) {
            return Ok(());
        }
        let now = core.clock.now();
        let batch = lease.catalog.queue_orphans(scan, &after, ORPHANS_PER_STEP, JOB, now).await?;
        outcome.skipped += batch.skipped;
        if batch.skipped > 0 {
            tracing::info!(
                job = JOB,
                kept = batch.skipped,
                action = "kept",
                "objects that looked like orphans have rows now"
            );
        }
        match batch.last {
            Some(last) => after = last,
            None => break,
        }
    }
    or_taken_over(lease.catalog.end_scan(scan, None, core.clock.now()).await)?;
    let queued = lease.catalog.orphan_cleanup_counts(scan).await?.queued;
    if queued > 0 {
        core.wakeups.cleanup.notify_one();
        core.wakeups.other_processes.notify_one();
        if let Err(error) = pending_cleanups::run(core, lease, &Scope::All).await {
            if error == VerbError::TakenOver {
                return Err(error);
            }
            tracing::warn!(job = JOB, error = %error.with_cause(), "cannot delete orphans now, the cleanup sweep will do it");
        }
    }
    let cleanups = lease.catalog.orphan_cleanup_counts(scan).await?;
    outcome.total = cleanups.queued;
    outcome.deleted = cleanups.deleted;
    outcome.errors += cleanups.failed;
    Ok(())
}
