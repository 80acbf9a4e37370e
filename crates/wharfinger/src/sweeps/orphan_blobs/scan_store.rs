//! Where a scan keeps what it finds: in the catalog, or for a dry run in memory, where only numbers and a few names
//! stay.

use std::sync::{Mutex, PoisonError};

use wharfinger_catalog::{Catalog, CatalogError, ScanProgress, ScanRange, ScanTotals};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;

use super::JOB;
use super::compare::Differences;
use crate::core::VerbError;

pub(super) const SAMPLES_MAX: usize = 20;
/// Outdated findings that are forgotten in one transaction.
const FORGET_MAX: usize = 500;

pub(super) enum ScanStore<'c> {
    Catalog { catalog: &'c Catalog, scan: String },
    Memory(Mutex<(ScanTotals, Vec<String>)>),
}

/// What was found in a range since it was last written down.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) steps: u32,
    pub(super) found: Differences,
}

impl Entry {
    pub(super) fn add(&mut self, page: Differences) {
        self.steps += 1;
        self.found.listed += page.listed;
        self.found.orphans.extend(page.orphans);
        self.found.foreign += page.foreign;
        let left = SAMPLES_MAX.saturating_sub(self.found.foreign_samples.len());
        self.found.foreign_samples.extend(page.foreign_samples.into_iter().take(left));
        self.found.missing.extend(page.missing);
    }
}

impl ScanStore<'_> {
    /// Moves a range on to a key, with all that was found on the way.
    pub(super) async fn record(
        &self,
        range: &mut ScanRange,
        to: &str,
        entry: Entry,
        now: UnixMs,
    ) -> Result<(), VerbError> {
        if to == range.at {
            return Ok(());
        }
        if entry.found.foreign > 0 {
            let examples = &entry.found.foreign_samples;
            tracing::warn!(job = JOB, count = entry.found.foreign, examples = ?examples, action = "kept",
                "foreign objects kept");
        }
        match self {
            ScanStore::Memory(totals) => {
                let (totals, samples) = &mut *totals.lock().unwrap_or_else(PoisonError::into_inner);
                *totals += ScanTotals {
                    listed: entry.found.listed,
                    found: entry.found.orphans.len() as u64,
                    foreign: entry.found.foreign,
                    missing: entry.found.missing.len() as u64,
                };
                let left = SAMPLES_MAX.saturating_sub(samples.len());
                samples.extend(entry.found.orphans.into_iter().take(left).map(|orphan| orphan.key));
            }
            ScanStore::Catalog { catalog, scan } => {
                let progress = ScanProgress {
                    scan: scan.clone(),
                    ordinal: range.ordinal,
                    from: range.at.clone(),
                    to: to.to_owned(),
                    listed: entry.found.listed,
                    foreign: entry.found.foreign,
                    found: entry.found.orphans,
                    missing: entry.found.missing,
                    now,
                };
                match catalog.advance_scan(progress).await {
                    Ok(new) => report_missing(&new),
                    Err(CatalogError::Stale) => return Err(moved_on(catalog, scan, range).await?),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        range.at = to.to_owned();
        Ok(())
    }

    /// Says that a range has been compared to its end.
    pub(super) async fn finish(&self, range: &mut ScanRange) -> Result<(), VerbError> {
        if let ScanStore::Catalog { catalog, scan } = self {
            while !ours(catalog.finish_range(scan, range.ordinal, FORGET_MAX).await)? {}
        }
        range.is_done = true;
        Ok(())
    }
}

/// A range that is not where we left it: an entry of ours was made whose answer was lost, or somebody else is at it
/// too. From where it is now there is more to compare.
async fn moved_on(catalog: &Catalog, scan: &str, range: &mut ScanRange) -> Result<VerbError, VerbError> {
    let open = catalog.unfinished_scan().await?.filter(|open| open.id == scan);
    let now = open.and_then(|open| open.ranges.into_iter().find(|now| now.ordinal == range.ordinal));
    match now {
        Some(now) if now.at > range.at && !now.is_done => {
            range.at = now.at;
            Ok(VerbError::Unavailable("the range was moved on meanwhile".into()))
        }
        _ => Ok(VerbError::TakenOver),
    }
}

/// A scan that is not where we left it is another's by now.
pub(super) fn ours<T>(outcome: Result<T, CatalogError>) -> Result<T, VerbError> {
    outcome.map_err(|error| match error {
        CatalogError::Stale => VerbError::TakenOver,
        other => other.into(),
    })
}

/// Each once, when it is found for the first time.
fn report_missing(keys: &[String]) {
    for key in keys.iter().take(SAMPLES_MAX) {
        let key = ObjectKey::parse(key).ok();
        let file = key.as_ref().and_then(ObjectKey::file).map(|id| id.to_string());
        let tenant = key.as_ref().and_then(ObjectKey::owner).map(|(tenant, _)| tenant.to_string());
        tracing::error!(
            job = JOB,
            fileId = file,
            tenant,
            action = "reported",
            "an object of a live file is not in the store: somebody else has removed it"
        );
    }
    if keys.len() > SAMPLES_MAX {
        tracing::error!(job = JOB, count = keys.len(), "so many objects of live files are not in the store");
    }
}
