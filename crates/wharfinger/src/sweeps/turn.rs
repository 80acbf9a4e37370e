//! Whose turn a scheduled sweep is. Its row in the catalog holds the next time, a lease and a fence: of many
//! processes one claims it when it is due, and whoever loses the lease writes nothing more.

use std::sync::atomic::{AtomicI64, Ordering};

use croner::Cron;
use tokio_util::sync::CancellationToken;
use wharfinger_backends::catalog::{Catalog, Fence, SweepClaim, SweepTurn};
use wharfinger_lifecycle::UnixMs;

use super::{expired_batches, pending_cleanups, quota_sync, record, stuck_files, upload_window};
use crate::app::App;
use crate::clock::to_utc;
use crate::config::Settings;
use crate::uploads::VerbError;

/// How long a process that died keeps the others from its sweep.
pub const LEASE_MS: i64 = 30_000;
const EXTEND_EVERY_MS: i64 = LEASE_MS / 3;
/// After an error of the catalog.
const ERROR_PAUSE_MS: i64 = 1_000;

/// The sweeps that run by a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    UploadWindow,
    PendingCleanups,
    QuotaSync,
    ExpiredBatches,
    StuckFiles,
}

impl Sweep {
    pub fn name(self) -> &'static str {
        match self {
            Sweep::UploadWindow => upload_window::NAME,
            Sweep::PendingCleanups => pending_cleanups::NAME,
            Sweep::QuotaSync => quota_sync::NAME,
            Sweep::ExpiredBatches => expired_batches::NAME,
            Sweep::StuckFiles => stuck_files::NAME,
        }
    }

    fn schedule(self, settings: &Settings) -> &Cron {
        match self {
            Sweep::UploadWindow => &settings.window_schedule,
            Sweep::PendingCleanups => &settings.cleanup_schedule,
            Sweep::QuotaSync => &settings.quota_sync_schedule,
            Sweep::ExpiredBatches => &settings.batch_timeout_schedule,
            Sweep::StuckFiles => &settings.stuck_schedule,
        }
    }

    /// When it is due next by this process's schedule.
    pub fn next_time(self, app: &App) -> UnixMs {
        let schedule = self.schedule(&app.settings);
        let next = schedule.find_next_occurrence(&to_utc(app.clock.now()), false);
        next.map_or(i64::MAX, |at| at.timestamp_millis())
    }

    async fn run(self, app: &App, turn: &Turn) -> Result<(), VerbError> {
        match self {
            Sweep::UploadWindow => upload_window::run(app, turn).await.map(|_| ()),
            Sweep::PendingCleanups => pending_cleanups::run(app, turn).await.map(|_| ()),
            Sweep::QuotaSync => quota_sync::run(app, turn).await.map(|_| ()),
            Sweep::ExpiredBatches => expired_batches::run(app, turn).await.map(|_| ()),
            Sweep::StuckFiles => {
                let started_at = app.clock.now();
                let outcome = stuck_files::run(app, turn).await;
                record(app, turn, stuck_files::NAME, started_at, &outcome).await;
                outcome.map(|_| ())
            }
        }
    }
}

/// The right to run a sweep, and the catalog to write to while doing so.
pub struct Turn {
    pub catalog: Catalog,
    /// Everything is found and counted, and nothing changed.
    is_dry_run: bool,
    /// When it last got something done.
    progress_at: AtomicI64,
    /// Cancelled when nothing new is to be begun.
    stop: CancellationToken,
}

impl Turn {
    /// Outside the schedule and beside whoever's turn it is: for what is fenced row by row, or asked for by a person.
    pub fn by_hand(app: &App) -> Turn {
        Turn {
            catalog: app.catalog.clone(),
            is_dry_run: false,
            progress_at: AtomicI64::new(app.clock.now()),
            stop: CancellationToken::new(),
        }
    }

    /// A look at what there would be to do.
    pub fn dry(app: &App) -> Turn {
        Turn { is_dry_run: true, ..Turn::by_hand(app) }
    }

    pub fn under(app: &App, fence: Fence) -> Turn {
        Turn { catalog: app.catalog.fenced(fence), ..Turn::by_hand(app) }
    }

    /// The same, ending after the item that is under way.
    pub fn until(self, stop: &CancellationToken) -> Turn {
        Turn { stop: stop.clone(), ..self }
    }

    /// Asked before each item: false if the sweep is to end here. One that hangs at an item does not come to ask, and
    /// does not keep its turn for ever.
    pub(super) fn goes_on(&self, app: &App) -> bool {
        self.progress_at.store(app.clock.now(), Ordering::Relaxed);
        !self.is_cut_short()
    }

    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    pub(super) fn is_cut_short(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Extends the lease while the sweep gets on; ends when it is lost or the sweep hangs.
    async fn keep(&self, app: &App, name: &'static str) -> VerbError {
        loop {
            let now = app.clock.now();
            app.clock.sleep_until(now.saturating_add(EXTEND_EVERY_MS)).await;
            let now = app.clock.now();
            if now - self.progress_at.load(Ordering::Relaxed) > app.settings.stage_timeout_ms {
                tracing::error!(job = name, "a sweep hung at one item, and gives its turn away");
                return VerbError::Unavailable("the sweep hung at one item".into());
            }
            match self.catalog.extend_sweep(name, now.saturating_add(LEASE_MS)).await.map_err(VerbError::from)
            {
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

/// What came of looking whether a sweep is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Whether it was, and was ours to run.
    pub ran: bool,
    /// When to look again.
    pub again_at: UnixMs,
}

/// Runs a sweep if it is due and nobody else is at it. Runs that nobody was there for are made up for by one.
pub async fn take_turn(app: &App, sweep: Sweep, stop: &CancellationToken) -> Looked {
    let name = sweep.name();
    let claim = SweepClaim {
        name,
        owner: format!("{} {}", app.settings.instance_id, std::process::id()),
        now: app.clock.now(),
        lease_ms: LEASE_MS,
    };
    let scheduled = |at: UnixMs| Looked { ran: false, again_at: at.min(sweep.next_time(app)) };
    match app.catalog.claim_sweep(claim).await {
        Ok(SweepTurn::Ours(fence)) => run_in_turn(app, sweep, &Turn::under(app, fence).until(stop)).await,
        Ok(SweepTurn::NotYet { next_run_at }) => scheduled(next_run_at),
        Ok(SweepTurn::Taken { lease_until }) => scheduled(lease_until),
        Err(error) => {
            tracing::warn!(job = name, error = %error, "whether a sweep is due is not known");
            scheduled(app.clock.now() + ERROR_PAUSE_MS)
        }
    }
}

async fn run_in_turn(app: &App, sweep: Sweep, turn: &Turn) -> Looked {
    let name = sweep.name();
    let outcome = tokio::select! {
        biased;
        outcome = sweep.run(app, turn) => outcome,
        lost = turn.keep(app, name) => Err(lost),
    };
    let again_at = sweep.next_time(app);
    if outcome == Err(VerbError::TakenOver) {
        tracing::warn!(job = name, "another process has taken this sweep over");
        return Looked { ran: true, again_at };
    }
    // A sweep that failed has said so itself, and is due again as scheduled; one that was cut short, at once.
    let next_run_at = (!turn.is_cut_short()).then_some(again_at);
    if let Err(error) = turn.catalog.release_sweep(name, next_run_at).await {
        tracing::warn!(job = name, error = %error, "a sweep's turn ends when its lease does");
    }
    Looked { ran: true, again_at }
}
