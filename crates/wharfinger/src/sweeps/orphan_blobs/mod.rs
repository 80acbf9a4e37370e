//! Fault: an object that no live row answers for, because a PUT came after everything about its file was over, or a
//! hand or a bug put it there; and a row whose object is gone. Compares the whole store with the catalog, orders
//! orphans to be deleted, and reports what is missing. Nothing is deleted where the store may not be this catalog's,
//! or where far more would go than is likely.

mod compare;
mod ranges;
mod scan;
mod scan_store;

use std::sync::{Mutex, PoisonError};

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
use scan_store::{ScanStore, ours};

/// A scan that was cut short is gone on with for so long; after that too much may have changed.
const GOES_ON_MS_MAX: i64 = 86_400_000;
const QUEUED_AT_ONCE: usize = 500;

/// How a scan goes through the store.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub objects_per_page: usize,
    /// Progress is written down after so many.
    pub pages_per_entry: u32,
    /// Into how many ranges `uploads/` and `derived/` are cut, each at most.
    pub ranges_max: usize,
    /// How many of them are scanned side by side.
    pub at_once: usize,
    /// Before a page that could not be read is tried again.
    pub pause: Backoff,
}

impl Default for Pace {
    fn default() -> Self {
        let pause = Backoff { base_ms: 200, cap_ms: 5_000 };
        Pace { objects_per_page: 1_000, pages_per_entry: 10, ranges_max: 8, at_once: 4, pause }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OrphanBlobsResult)]
pub struct Outcome {
    /// Objects, and uploads in parts, that nothing in the catalog answers for.
    #[schema(example = 7)]
    pub total: u64,
    /// Those of them that the store had deleted when the run ended.
    #[schema(example = 7)]
    pub deleted: u64,
    /// Those that it did not delete when asked to, and parts of the store that could not be compared. What another
    /// process is deleting at that moment is in neither.
    #[schema(example = 0)]
    pub errors: u64,
    /// Objects and unfinished uploads of others in our folders: without a row, and of a name that this program does not
    /// make, or older than its marker. They are never deleted.
    #[schema(example = 0)]
    pub foreign: u64,
    /// Why nothing was deleted although something was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "812 of 1000 objects seem to be orphans, more than 10 %")]
    pub stopped: Option<String>,
    /// Of a dry run: some of what would be deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368"]))]
    pub samples: Vec<String>,
    #[serde(skip)]
    pub listed: u64,
    /// Rows of live files whose object was not there.
    #[serde(skip)]
    pub missing: u64,
    /// What looked like an orphan, and was none when it was looked at again.
    #[serde(skip)]
    pub spared: u64,
}

pub async fn run(core: &Core, lease: &SweepLease) -> Result<Outcome, VerbError> {
    run_at(core, lease, Pace::default()).await
}

/// Objects first, then uploads in parts; the one does not wait for the other to go well.
pub async fn run_at(core: &Core, lease: &SweepLease, pace: Pace) -> Result<Outcome, VerbError> {
    let marked_at = check_store(core).await?;
    let scanned = scan(core, lease, pace, marked_at).await;
    let is_over = match &scanned {
        Err(error) => matches!(error, VerbError::TakenOver | VerbError::StoreInDoubt(_)),
        // Where too much would go, nothing goes.
        Ok(outcome) => outcome.stopped.is_some(),
    };
    if is_over || lease.is_cut_short() {
        return scanned;
    }
    let uploads = unfinished_uploads::end_all(core, lease, marked_at).await;
    let mut outcome = scanned?;
    match uploads {
        Ok(uploads) => {
            outcome.foreign += uploads.foreign;
            outcome.total += uploads.found;
            outcome.deleted += uploads.ended;
            outcome.errors += uploads.failed;
        }
        Err(error) => {
            outcome.errors += 1;
            tracing::warn!(job = JOB, error = %error.with_cause(), "unfinished uploads could not be looked at");
        }
    }
    Ok(outcome)
}

/// Whether the store is this catalog's, and as old. Asked before a scan, and before anything follows from it. Answers
/// since when it is ours.
async fn check_store(core: &Core) -> Result<UnixMs, VerbError> {
    let checked = match store::check(&core.catalog, &core.place()).await {
        Ok(StoreState::Ours) => store::marked_at(&core.place()).await.map(Ok),
        other => other.map(Err),
    };
    match checked {
        Ok(Ok(marked_at)) => Ok(marked_at),
        Ok(Err(state)) => Err(VerbError::StoreInDoubt(doubt(state))),
        Err(ClaimError::Catalog(error)) => Err(error.into()),
        Err(ClaimError::Folder(_, error) | ClaimError::Blobs(_, error)) => Err(error.into()),
        Err(error) => Err(VerbError::StoreInDoubt(error.to_string())),
    }
}

fn doubt(state: StoreState) -> String {
    match state {
        StoreState::Restored { catalog, store } => format!(
            "the store counts {store} and the catalog {catalog}: it seems to come from a backup, and objects that it \
             does not know may be alive. If it is right, run `wharfinger doctor --accept-store`"
        ),
        StoreState::New | StoreState::Ours => "the catalog does not know its store yet".into(),
    }
}

async fn scan(core: &Core, lease: &SweepLease, pace: Pace, marked_at: UnixMs) -> Result<Outcome, VerbError> {
    if lease.is_dry_run() {
        return scan_dry(core, lease, pace, marked_at).await;
    }
    let begun = go_on_or_begin(core, lease, pace, marked_at).await?;
    let store = ScanStore::Catalog { catalog: &lease.catalog, scan: begun.id.clone() };
    let ranges = begun.ranges.len() as u64;
    let failed_ranges = Scan { core, lease, pace, marked_at, store }.run(begun.ranges).await?;
    if failed_ranges == ranges {
        return Err(VerbError::Unavailable(
            "no part of the store could be compared, the log says why".into(),
        ));
    }
    let Some(scanned) = lease.catalog.unfinished_scan().await?.filter(|open| open.id == begun.id) else {
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
    if lease.is_cut_short() {
        return Ok(outcome);
    }
    if let Some(why) = too_many(core, totals) {
        tracing::error!(job = JOB, listed = totals.listed, found = totals.found, action = "stopped", "{why}");
        ours(lease.catalog.end_scan(&scanned.id, Some(why.clone()), core.clock.now()).await)?;
        core.wakeups.notice.notify_one();
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
        "the store was compared with the catalog"
    );
    Ok(outcome)
}

/// Takes up the scan that was cut short, if it looked at the same store in the same way.
async fn go_on_or_begin(
    core: &Core,
    lease: &SweepLease,
    pace: Pace,
    marked_at: UnixMs,
) -> Result<OrphanScan, VerbError> {
    let now = core.clock.now();
    let store = core.catalog.fact("store").await?.unwrap_or_default();
    let grace_ms = core.settings.sweeps.orphan_grace_ms;
    let premise = format!("{store} {} since {marked_at} grace {grace_ms}", core.settings.blobs);
    if let Some(open) = lease.catalog.unfinished_scan().await?
        && open.premise == premise
        && now.saturating_sub(open.started_at) < GOES_ON_MS_MAX
    {
        return Ok(open);
    }
    let ranges = cut(core, pace).await?;
    Ok(lease.catalog.begin_scan(&premise, ranges, now).await?)
}

async fn cut(core: &Core, pace: Pace) -> Result<Vec<ScanRange>, VerbError> {
    let ranges_max = if core.blobs.can_start_listing_at_key() { pace.ranges_max } else { 1 };
    let sample = core.catalog.sample_keys().await?;
    Ok(ranges::cut(&sample, ranges_max, pace.objects_per_page))
}

/// A scan of which a part failed is judged by what it listed: what it found there is as true as if it were whole.
fn too_many(core: &Core, totals: ScanTotals) -> Option<String> {
    let percent = core.settings.sweeps.orphan_limit_percent?;
    let is_over = u128::from(totals.found) * 100 > u128::from(totals.listed) * u128::from(percent);
    is_over.then(|| {
        format!(
            "{} of {} objects seem to be orphans, more than {percent} % (ORPHAN_DELETE_LIMIT_PERCENT): none was \
             deleted. Is this the right catalog? GET /api/v2/uploads/orphans shows some of them; if they may go, run \
             the sweep once with a higher limit, or 0",
            totals.found, totals.listed
        )
    })
}

/// Writes cleanups for everything that was found, ends the scan, and sees to the deleting.
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
        if !lease.goes_on(core) {
            return Ok(());
        }
        let batch = lease.catalog.queue_orphans(scan, &after, QUEUED_AT_ONCE, core.clock.now()).await?;
        outcome.spared += batch.skipped;
        if batch.skipped > 0 {
            tracing::info!(
                job = JOB,
                kept = batch.skipped,
                action = "kept",
                "what looked like orphans has rows by now"
            );
        }
        match batch.last {
            Some(last) => after = last,
            None => break,
        }
    }
    ours(lease.catalog.end_scan(scan, None, core.clock.now()).await)?;
    let queued = lease.catalog.orphan_cleanups(scan).await?.queued;
    if queued > 0 {
        core.wakeups.cleanup.notify_one();
        core.wakeups.other_processes.notify_one();
        if let Err(error) = pending_cleanups::run(core, lease, &Scope::All).await {
            if error == VerbError::TakenOver {
                return Err(error);
            }
            tracing::warn!(job = JOB, error = %error.with_cause(), "orphans are left to the reaper");
        }
    }
    let ordered = lease.catalog.orphan_cleanups(scan).await?;
    outcome.total = ordered.queued;
    outcome.deleted = ordered.deleted;
    outcome.errors += ordered.failed;
    Ok(())
}

async fn scan_dry(
    core: &Core,
    lease: &SweepLease,
    pace: Pace,
    marked_at: UnixMs,
) -> Result<Outcome, VerbError> {
    let scan = Scan { core, lease, pace, marked_at, store: ScanStore::Memory(Mutex::default()) };
    let failed_ranges = scan.run(cut(core, pace).await?).await?;
    let (totals, samples) = match scan.store {
        ScanStore::Memory(totals) => totals.into_inner().unwrap_or_else(PoisonError::into_inner),
        ScanStore::Catalog { .. } => Default::default(),
    };
    Ok(Outcome {
        total: totals.found,
        deleted: 0,
        errors: failed_ranges,
        foreign: totals.foreign,
        stopped: too_many(core, totals),
        samples,
        listed: totals.listed,
        missing: totals.missing,
        spared: 0,
    })
}
