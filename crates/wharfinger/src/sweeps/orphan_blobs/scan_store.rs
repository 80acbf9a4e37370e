//! Stores the findings of a scan in the catalog.

use wharfinger_catalog::{Catalog, CatalogError, ScanProgress, ScanRange};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::ObjectKey;

use super::JOB;
use super::compare::Findings;
use crate::core::VerbError;

pub(super) const SAMPLES_MAX: usize = 20;
/// Outdated findings that are removed in one transaction.
const PURGE_MAX: usize = 500;

pub(super) struct ScanStore<'c> {
    pub(super) catalog: &'c Catalog,
    pub(super) scan: String,
}

/// Findings of a range that are not stored yet.
#[derive(Default)]
pub(super) struct Checkpoint {
    pub(super) steps: u32,
    pub(super) found: Findings,
}

impl Checkpoint {
    pub(super) fn add(&mut self, page: Findings) {
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
    /// Stores the findings up to a key, and the key as the position of the range.
    pub(super) async fn record(
        &self,
        range: &mut ScanRange,
        to: &str,
        checkpoint: Checkpoint,
        now: UnixMs,
    ) -> Result<(), VerbError> {
        if to == range.at {
            return Ok(());
        }
        if checkpoint.found.foreign > 0 {
            let examples = &checkpoint.found.foreign_samples;
            tracing::warn!(job = JOB, count = checkpoint.found.foreign, examples = ?examples, action = "kept",
                "foreign objects kept");
        }
        let ScanStore { catalog, scan } = self;
        let progress = ScanProgress {
            scan: scan.clone(),
            ordinal: range.ordinal,
            from: range.at.clone(),
            to: to.to_owned(),
            listed: checkpoint.found.listed,
            foreign: checkpoint.found.foreign,
            found: checkpoint.found.orphans,
            missing: checkpoint.found.missing,
            now,
        };
        match catalog.advance_scan(progress).await {
            Ok(new) => report_missing(&new),
            Err(CatalogError::Stale) => return Err(reload_position(catalog, scan, range).await?),
            Err(error) => return Err(error.into()),
        }
        range.at = to.to_owned();
        Ok(())
    }

    /// Marks a range as done.
    pub(super) async fn finish(&self, range: &mut ScanRange) -> Result<(), VerbError> {
        let ScanStore { catalog, scan } = self;
        while !or_taken_over(catalog.finish_range(scan, range.ordinal, PURGE_MAX).await)? {}
        range.is_done = true;
        Ok(())
    }
}

/// Called when the stored position is not the expected one. Either our last write succeeded although its answer was lost: then
/// the scan continues from there. Or another process runs this scan.
async fn reload_position(
    catalog: &Catalog,
    scan: &str,
    range: &mut ScanRange,
) -> Result<VerbError, VerbError> {
    let open = catalog.unfinished_scan().await?.filter(|open| open.id == scan);
    let now = open.and_then(|open| open.ranges.into_iter().find(|now| now.ordinal == range.ordinal));
    match now {
        Some(now) if now.at > range.at && !now.is_done => {
            range.at = now.at;
            Ok(VerbError::Unavailable("the position of the range has changed".into()))
        }
        _ => Ok(VerbError::TakenOver),
    }
}

/// A scan in an unexpected state was taken over by another process.
pub(super) fn or_taken_over<T>(outcome: Result<T, CatalogError>) -> Result<T, VerbError> {
    outcome.map_err(|error| match error {
        CatalogError::Stale => VerbError::TakenOver,
        other => other.into(),
    })
}

/// Logs missing objects when they are found for the first time.
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
            "object of a live file is missing in the store"
        );
    }
    if keys.len() > SAMPLES_MAX {
        tracing::error!(job = JOB, count = keys.len(), "more objects of live files are missing in the store");
    }
}
