//! Goes through all ranges, some of them side by side. A page that cannot be read is tried again; then its range is
//! left for the next run, and the others go on.

use std::time::Duration;

use futures::StreamExt as _;
use wharfinger_catalog::ScanRange;
use wharfinger_lifecycle::UnixMs;

use super::compare::{Listing, Page, compare};
use super::scan_store::{Entry, ScanStore};
use super::{JOB, Pace};
use crate::core::{Core, VerbError};
use crate::sweeps::SweepLease;

const TRIES_MAX: u32 = 4;
/// Findings that are held before they are written down.
const FINDINGS_MAX: usize = 1_000;

pub(super) struct Scan<'s> {
    pub(super) core: &'s Core,
    pub(super) lease: &'s SweepLease,
    pub(super) pace: Pace,
    /// Objects without a row that are older are not ours.
    pub(super) marked_at: UnixMs,
    pub(super) store: ScanStore<'s>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeEnd {
    Done,
    CutShort,
    Failed,
}

impl Scan<'_> {
    /// Answers how many ranges could not be gone through.
    pub(super) async fn run(&self, ranges: Vec<ScanRange>) -> Result<u64, VerbError> {
        let open = ranges.into_iter().filter(|range| !range.is_done);
        let mut ends =
            futures::stream::iter(open).map(|range| self.range(range)).buffer_unordered(self.pace.at_once);
        let mut failed = 0;
        while let Some(end) = ends.next().await {
            failed += u64::from(end? == RangeEnd::Failed);
        }
        Ok(failed)
    }

    async fn range(&self, mut range: ScanRange) -> Result<RangeEnd, VerbError> {
        let mut attempt = 1;
        loop {
            let was_at = range.at.clone();
            let error = match self.go_on(&mut range).await {
                Ok(end) => return Ok(end),
                Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
                Err(error) => error,
            };
            if range.at != was_at {
                attempt = 1;
            }
            if attempt >= TRIES_MAX {
                tracing::warn!(job = JOB, error = ?error, after = %range.at, upto = %range.upto, action = "left",
                    "a part of the store could not be compared, and is left for the next run");
                return Ok(RangeEnd::Failed);
            }
            let pause = self.pace.pause.delay_ms(attempt, rand::random());
            tokio::time::sleep(Duration::from_millis(pause)).await;
            attempt += 1;
        }
    }

    async fn go_on(&self, range: &mut ScanRange) -> Result<RangeEnd, VerbError> {
        let core = self.core;
        let mut listing = Listing::new(core.blobs.list(&range.folder, Some(&range.at)), &range.upto);
        let mut entry = Entry::default();
        let mut at = range.at.clone();
        let mut page: Option<Page> = None;
        loop {
            if !self.lease.goes_on(core) {
                self.store.record(range, &at, entry, core.clock.now()).await?;
                return Ok(RangeEnd::CutShort);
            }
            let compared = async {
                let page = match &mut page {
                    Some(page) => page,
                    None => page.insert(listing.page(self.pace.objects_per_page).await?),
                };
                Ok((compare(core, page, &at, self.marked_at).await?, page.is_last))
            };
            let (step, is_last_page) = match compared.await {
                Ok(compared) => compared,
                Err(error) => {
                    // What was compared before it counts.
                    self.store.record(range, &at, entry, core.clock.now()).await?;
                    return Err(error);
                }
            };
            let is_last = is_last_page && step.is_page_done;
            entry.add(step.found);
            at = step.upto;
            if step.is_page_done {
                page = None;
            }
            let findings = entry.found.orphans.len() + entry.found.missing.len();
            if is_last || entry.steps >= self.pace.pages_per_entry || findings >= FINDINGS_MAX {
                self.store.record(range, &at, std::mem::take(&mut entry), core.clock.now()).await?;
            }
            if is_last {
                self.store.finish(range).await?;
                return Ok(RangeEnd::Done);
            }
        }
    }
}
