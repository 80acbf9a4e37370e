//! Scans all ranges, some of them concurrently. A page that cannot be read is tried again. If that fails, its range is left
//! for the next run and the other ranges continue.

use std::time::Duration;

use futures::StreamExt as _;
use wharfinger_catalog::ScanRange;
use wharfinger_lifecycle::UnixMs;

use super::compare::{Listing, Page, compare};
use super::scan_store::{Checkpoint, ScanStore};
use super::{JOB, ScanOptions};
use crate::core::{Core, VerbError};
use crate::sweeps::SweepLease;

const TRIES_MAX: u32 = 4;
/// Findings in memory before they are stored.
const FINDINGS_MAX: usize = 1_000;

pub(super) struct Scan<'s> {
    pub(super) core: &'s Core,
    pub(super) lease: &'s SweepLease,
    pub(super) options: ScanOptions,
    /// Objects without a row that are older than this are foreign.
    pub(super) marked_at: UnixMs,
    pub(super) store: ScanStore<'s>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeEnd {
    Done,
    Stopped,
    Failed,
}

impl Scan<'_> {
    /// Returns the number of ranges that failed.
    pub(super) async fn run(&self, ranges: Vec<ScanRange>) -> Result<u64, VerbError> {
        let open = ranges.into_iter().filter(|range| !range.is_done);
        let mut ends = futures::stream::iter(open)
            .map(|range| self.range(range))
            .buffer_unordered(self.options.ranges_at_once);
        let mut failed = 0;
        while let Some(end) = ends.next().await {
            failed += u64::from(end? == RangeEnd::Failed);
        }
        Ok(failed)
    }

    async fn range(&self, mut range: ScanRange) -> Result<RangeEnd, VerbError> {
        let mut attempt = 1;
        loop {
            let started_at = range.at.clone();
            let error = match self.resume(&mut range).await {
                Ok(end) => return Ok(end),
                Err(VerbError::TakenOver) => return Err(VerbError::TakenOver),
                Err(error) => error,
            };
            if range.at != started_at {
                attempt = 1;
            }
            if attempt >= TRIES_MAX {
                tracing::warn!(job = JOB, error = %error.with_cause(), after = %range.at, upto = %range.upto, action = "left",
                    "cannot compare a part of the store, left for the next run");
                return Ok(RangeEnd::Failed);
            }
            let pause = self.options.pause.delay_ms(attempt, rand::random());
            tokio::time::sleep(Duration::from_millis(pause)).await;
            attempt += 1;
        }
    }

    async fn resume(&self, range: &mut ScanRange) -> Result<RangeEnd, VerbError> {
        let core = self.core;
        let mut listing = Listing::new(core.blobs.list(&range.folder, Some(&range.at)), &range.upto);
        let mut checkpoint = Checkpoint::default();
        let mut at = range.at.clone();
        let mut page: Option<Page> = None;
        loop {
            if !self.lease.should_continue(core) {
                self.store.record(range, &at, checkpoint, core.clock.now()).await?;
                return Ok(RangeEnd::Stopped);
            }
            let compared = async {
                let page = match &mut page {
                    Some(page) => page,
                    None => page.insert(listing.page(self.options.objects_per_page).await?),
                };
                Ok((compare(core, page, &at, self.marked_at).await?, page.is_last))
            };
            let (step, is_last_page) = match compared.await {
                Ok(compared) => compared,
                Err(error) => {
                    // Keep what was compared before the error.
                    self.store.record(range, &at, checkpoint, core.clock.now()).await?;
                    return Err(error);
                }
            };
            let is_last = is_last_page && step.is_page_done;
            checkpoint.add(step.found);
            at = step.upto;
            if step.is_page_done {
                page = None;
            }
            let findings = checkpoint.found.orphans.len() + checkpoint.found.missing.len();
            if is_last || checkpoint.steps >= self.options.pages_per_checkpoint || findings >= FINDINGS_MAX {
                self.store.record(range, &at, std::mem::take(&mut checkpoint), core.clock.now()).await?;
            }
            if is_last {
                self.store.finish(range).await?;
                return Ok(RangeEnd::Done);
            }
        }
    }
}
