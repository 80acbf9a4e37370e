//! Runs of the cleanup sweep as soon as a cleanup is due. Under load there are many in a second, so those that follow each
//! other are recorded as one run.

use tokio_util::sync::CancellationToken;
use wharfinger_catalog::Scope;
use wharfinger_lifecycle::UnixMs;

use super::pending_cleanups::{self, Outcome};
use super::run::Run;
use super::{Report, Sweep, SweepLease};
use crate::core::{Core, VerbError};

/// Under constant load, and while each run fails, a run is recorded this often.
const RECORD_MS: i64 = 60_000;

/// The runs since the last record.
#[derive(Default)]
pub struct ReaperRun {
    started_at: Option<UnixMs>,
    outcome: Outcome,
    error: Option<VerbError>,
}

impl ReaperRun {
    /// Runs the due cleanups once. True: some were due, so more may be.
    pub async fn step(&mut self, core: &Core, stop: &CancellationToken) -> bool {
        let now = core.clock.now();
        if self.is_old(now) {
            self.record(core).await;
        }
        self.started_at.get_or_insert(now);
        let lease = SweepLease::unleased(core).with_stop(stop);
        match pending_cleanups::run(core, &lease, &Scope::All).await {
            Ok(outcome) => {
                self.outcome += outcome;
                outcome != Outcome::default()
            }
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    /// Called when nothing is due, or the last step failed. Failed steps follow each other quickly, so they are recorded
    /// together.
    pub async fn pause(&mut self, core: &Core) {
        if self.error.is_none() || self.is_old(core.clock.now()) {
            self.record(core).await;
        }
    }

    fn is_old(&self, now: UnixMs) -> bool {
        self.started_at.is_some_and(|at| at.saturating_add(RECORD_MS) <= now)
    }

    /// Records the runs so far, if they did something.
    pub async fn record(&mut self, core: &Core) {
        let ReaperRun { started_at, outcome, error } = std::mem::take(self);
        let Some(started_at) = started_at else { return };
        let run = || Run::scheduled(core, Sweep::PendingCleanups, started_at);
        // Nothing was done if another process had claimed the cleanups.
        if outcome != Outcome::default() {
            run().record(&Ok(Report::PendingCleanups(outcome)), false).await;
        }
        if let Some(error) = error {
            run().record(&Err(error), false).await;
        }
    }
}
